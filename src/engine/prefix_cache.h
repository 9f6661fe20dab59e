// Lets a prompt begin where an earlier one has been: in RAM by token, in a store by block.
//
// What is found is what a cold prompt would compute, bit for bit, so answers do not change. Nor do
// the drafts, as far as that is free: a selector that asks the newest queries gets them computed
// again (32 rows cost little more than one) unless the draft KV of this very prompt is at hand.
// One draft KV is kept for a prompt that was computed for the most part, none for each question
// about it.
// THREADS: one call at a time; writing goes on beside (engine/prefix_writer.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "engine/memory_prefixes.h"
#include "engine/prefix_writer.h"
#include "engine/stored_prefixes.h"
#include "kv/prefix_key.h"
#include "storage/blob_store.h"

namespace vericache {

struct PrefixCacheOptions {
  PrefixIdentity identity;           // without salt: that is the request's
  std::string model_name;            // for `vericache prefix ls`
  uint64_t memory_bytes = 0;         // 0: nothing is kept in RAM
  std::unique_ptr<BlobStore> store;  // may be null
  bool store_read_only = false;
  int digest_bits = 256;  // fewer in tests, where collisions of keys are wanted
};

struct PrefixStats {
  int64_t lookups = 0, memory_hits = 0, store_hits = 0;
  int64_t looked_up_tokens = 0, found_tokens = 0;
  int64_t bad_sequences = 0;    // cut before a row with a NaN or an infinity
  int64_t skipped_records = 0;  // not written: the writer was too far behind
  int64_t memory_evicted = 0;
  uint64_t memory_bytes = 0;
  BlobStoreStats store;
};

// What a prompt need not compute.
struct PrefixHit {
  std::optional<FullKv> full;  // the prompt's first rows, at most all but one
  std::optional<DraftKv> draft;
  std::shared_ptr<const KeyScores> scores;  // over at least half of the prompt

  int64_t num_tokens() const { return full.has_value() ? full->num_tokens() : 0; }
};

// What a look-up may cost. Under a KV budget: what it may put into RAM.
struct PrefixRoom {
  // Whole blocks of what is loaded; the rest is spilled as it comes. < 0: as new_full says.
  int64_t hot_blocks = -1;
  // LimitMemory() for what is kept, before anything is loaded.
  uint64_t memory_bytes = std::numeric_limits<uint64_t>::max();
  // Seconds in which the prompt could be computed: no store is waited for any longer, in all. 0:
  // not known.
  double recompute_s = 0;
};

class PrefixCache {
 public:
  // new_full: an empty full KV as sequences have it.
  PrefixCache(PrefixCacheOptions options, const KvShape& shape, const KernelTable* kernels,
              std::function<FullKv()> new_full);
  // Finishes what is to be written.
  ~PrefixCache();

  // `known_tokens`: the rows a session lends anyway; no shorter hit is given.
  PrefixHit Find(absl::Span<const TokenId> prompt, std::string_view salt, const DraftSpec& spec,
                 int64_t known_tokens, const PrefixRoom& room = {});
  // The draft KV of the longest beginning of `prompt` that the store has one for, and nothing of
  // its full KV: for a node that drafts far from it. Looks at whole blocks from the longest stored
  // beginning down, and at the prompt itself. recompute_s: as in PrefixRoom.
  std::optional<DraftKv> FindDraftAlone(absl::Span<const TokenId> prompt, std::string_view salt,
                                        const DraftSpec& spec, double recompute_s);
  // What is kept in RAM takes at most this from now on, and never more than
  // PrefixCacheOptions::memory_bytes.
  void LimitMemory(uint64_t bytes);

  // A sequence whose K/V hold for `tokens` [full.num_tokens()]: every row has been part of an
  // answer's finite logits, or will be checked here for what is not finite.
  struct Finding {
    absl::Span<const TokenId> tokens;
    const FullKv& full;
    std::string_view salt;
    const DraftSpec& spec;
    const DraftKv* draft = nullptr;  // over all of `tokens`, or null
    std::shared_ptr<const KeyScores> scores;
    int64_t known_tokens = 0;  // rows that came out of this cache
    enum class Draft { kAsItPays, kAlways };
    Draft keep_draft = Draft::kAsItPays;
    std::string_view label;  // for `vericache prefix ls`
  };
  void Add(const Finding& finding);

  void WaitForWrites();
  // True: nothing is left to be written; false: not within `time`.
  bool WaitForWrites(std::chrono::milliseconds time);
  // As StoredPrefixes has them; 0 without a store.
  uint64_t saved_bytes() const { return stored_ == nullptr ? 0 : stored_->saved_bytes(); }
  int64_t failed_saves() const { return stored_ == nullptr ? 0 : stored_->failed_saves(); }
  PrefixStats Stats();

 private:
  bool FindDraft(const StoredPrefixes::Prompt* stored, const MemoryPrefixes::Match& match,
                 absl::Span<const TokenId> prompt, const DraftSpec& spec, Deadline deadline,
                 PrefixHit* hit);
  void FindScores(StoredPrefixes::Prompt* stored, const MemoryPrefixes::Match& match,
                  absl::Span<const TokenId> prompt, const DraftSpec& spec, Deadline deadline,
                  PrefixHit* hit);
  std::unique_ptr<StoredPrefixes::Prompt> PromptInStore(absl::Span<const TokenId> tokens,
                                                        std::string_view salt) const;
  void AddToMemory(const Finding& finding, bool keeps_draft);
  void AddToStore(const Finding& finding, bool keeps_draft);

  PrefixCacheOptions options_;
  MemoryPrefixes memory_;
  std::unique_ptr<StoredPrefixes> stored_;
  std::unique_ptr<PrefixWriter> writer_;  // null if read only
  PrefixStats stats_;
};

// Rows of `full` from `begin` on before the first whose K or V is not finite.
// REQUIRES: begin <= full.num_tokens(). COST: reads the rows once.
int64_t CountFiniteRows(const FullKv& full, int64_t begin);

}  // namespace vericache
