// Prefixes in a BlobStore: one blob a block of full KV, one a draft KV, one a block of scores.
//
// Blocks are found and read in order of position, and the first miss ends a prefix. Whatever is
// missing, damaged or of other tokens is computed again; no error of the store reaches a request.
// THREADS: any number of readers and one Save() may run at the same time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "kernels/kernels.h"
#include "kv/draft_kv.h"
#include "kv/draft_spec.h"
#include "kv/full_kv.h"
#include "kv/prefix_blob.h"
#include "kv/prefix_key.h"
#include "kv/prefix_record.h"
#include "kv/selectors/selector.h"
#include "storage/blob_store.h"

namespace vericache {

// Shorter beginnings that are looked at for a draft KV over whole blocks.
inline constexpr int64_t kMaxDraftTries = 64;

// Blocks that are loaded between two looks at what must be spilled.
inline constexpr int64_t kLoadedAtOnce = 2;

// The values of one block, wherever it lies; null if it cannot be had, then what it is a part of
// ends before it. `scratch` may hold them.
const uint16_t* BlockValues(const FullKv& full, int64_t block, std::vector<uint16_t>* scratch);

// How far the reading of full blocks has got, and whether it is still wanted. THREADS: safe.
struct StoredLoad {
  std::atomic<bool> cancelled{false};
  std::atomic<int64_t> blocks_wanted{-1};  // -1: not known yet
  std::atomic<int64_t> blocks_done{0};
  std::atomic<uint64_t> bytes_done{0};
};

class StoredPrefixes {
 public:
  // new_full: an empty full KV as sequences have it. `store` must outlive *this.
  StoredPrefixes(BlobStore* store, const KvShape& shape, const KernelTable* kernels,
                 std::function<FullKv()> new_full)
      : store_(store), shape_(shape), kernels_(kernels), new_full_(std::move(new_full)) {}

  // A prompt, and the names of its whole blocks.
  struct Prompt {
    absl::Span<const TokenId> tokens;
    PrefixKeyer keyer;
    std::vector<PrefixKey> chain;  // keyer.Chain(tokens)

    Prompt(absl::Span<const TokenId> ids, const PrefixIdentity& identity, int digest_bits)
        : tokens(ids), keyer(identity, digest_bits), chain(keyer.Chain(ids)) {}
    absl::Span<const TokenId> BlockIds(int64_t block) const {
      return tokens.subspan(block * kBlockTokens, kBlockTokens);
    }
    // Of the last block, whole or not, of the first num_tokens >= 1 tokens.
    absl::Span<const TokenId> LastIds(int64_t num_tokens) const;
    PrefixKey LastKey(int64_t num_tokens) const;
  };

  // Whole blocks that the store seems to have from position 0 on. After `deadline`, here and below:
  // none, or what came before it.
  int64_t CountBlocks(const Prompt& prompt, Deadline deadline) const;
  // Goes on loading into *full, which holds whole blocks, until it has `num_blocks` of them or the
  // next one is not sound. `load`: told of each block; where it says so, no more are read.
  void LoadBlocks(const Prompt& prompt, int64_t num_blocks, Deadline deadline, StoredLoad* load,
                  FullKv* full);
  FullKv NewFull() const { return new_full_(); }
  StoreLink Link() const { return store_->Link(); }
  // The draft KV of the first n tokens, most >= n >= least, with the largest n that has one.
  std::optional<DraftKv> LoadDraft(const Prompt& prompt, int64_t least, int64_t most,
                                   const DraftSpec& spec, Deadline deadline);
  // The most whole blocks, of most_blocks or fewer, that there seems to be a draft KV over; 0:
  // none. One question, over kMaxDraftTries lengths.
  int64_t FindDraftOfBlocks(const Prompt& prompt, int64_t most_blocks, const DraftSpec& spec,
                            Deadline deadline) const;
  // Scores of as many blocks from position 0 on as have some; null if none has.
  std::shared_ptr<const KeyScores> LoadScores(const Prompt& prompt, const DraftSpec& spec,
                                              Deadline deadline);

  // What is to be kept of one sequence. Owns everything: it is written on another thread.
  struct Record {
    std::vector<TokenId> tokens;
    std::vector<PrefixKey> chain;  // of the whole blocks of `full`
    int64_t num_known_blocks = 0;  // that came from the store or went there before
    FullKv full;                   // whole blocks only
    std::string draft;             // DraftKv::AppendTo, or empty
    BlobKey draft_key{};
    PrefixKey draft_last;             // of the draft's last block,
    std::vector<TokenId> draft_ids;   // and its ids
    std::vector<BlobKey> score_keys;  // [blocks with scores]
    std::shared_ptr<const KeyScores> scores;
    // What `vericache prefix ls` is to say; the names of the blobs are filled in by Save().
    PrefixRecord about;
    std::string draft_spec;    // of `draft`,
    int64_t draft_tokens = 0;  // and its tokens

    explicit Record(FullKv kv) : full(std::move(kv)) {}
  };
  // Puts what the store lacks, in order of position, and marks all of it as used. What had to be
  // computed although the store has a blob of its name is checked: it lay behind a damaged one.
  // False: it gave up at a blob that could not be put.
  bool Save(const Record& record);

  // Since the beginning: payload bytes of blobs that the store had or has got, and records that
  // were given up. THREADS: may be read while Save() runs.
  uint64_t saved_bytes() const { return saved_bytes_; }
  int64_t failed_saves() const { return failed_saves_; }
  // Of the blob that the last of those was given up at: the store's words.
  std::string why_not_saved() const;

 private:
  absl::StatusOr<absl::Span<const uint8_t>> Fetch(const BlobKey& key, PrefixBlobKind kind,
                                                  const PrefixKey& prefix,
                                                  absl::Span<const TokenId> ids, BlobBytes* blob,
                                                  Deadline deadline);
  // The draft KV of the first `num_tokens` tokens, if `blob` is that.
  std::optional<DraftKv> OpenDraft(const Prompt& prompt, int64_t num_tokens, const DraftSpec& spec,
                                   const BlobBytes& blob) const;
  bool SaveBlobs(const Record& record, std::vector<BlobKey>* used);
  bool SaveAbout(const Record& record, std::vector<BlobKey>* used);
  enum class Held { kTrusted, kChecked };
  // False: the store refuses it, and has said why.
  bool Put(const BlobKey& key, absl::Span<const std::string_view> parts);
  bool PutIfMissing(const BlobKey& key, PrefixBlobKind kind, const PrefixKey& prefix,
                    absl::Span<const TokenId> ids, std::string_view payload, Held held);
  size_t num_lists() const { return static_cast<size_t>(shape_.num_layers) * shape_.num_kv_heads; }

  BlobStore* store_;
  KvShape shape_;
  const KernelTable* kernels_;
  std::function<FullKv()> new_full_;
  std::atomic<uint64_t> saved_bytes_{0};
  std::atomic<int64_t> failed_saves_{0};
  mutable std::mutex why_mutex_;
  std::string why_not_saved_;                     // guarded by why_mutex_
  std::map<BlobKey, std::string> known_records_;  // of Save() alone, which has one caller
};

}  // namespace vericache
