// Lets a prompt begin where an earlier one has been: in RAM by token, in a store by block.
//
// What is found is what a cold prompt would compute, bit for bit, so answers do not change. Nor do
// the drafts, as far as that is free: a selector that asks the newest queries gets them computed
// again (32 rows cost little more than one) unless the draft KV of this very prompt is at hand.
// One draft KV is kept for a prompt that was computed for the most part, none for each question
// about it.
// THREADS: one call at a time, but for what says otherwise; writing goes on beside
// (engine/prefix_writer.h), and so may reading (engine/prefix_lookup.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "engine/memory_prefixes.h"
#include "engine/prefix_lookup.h"
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

class PrefixCache {
 public:
  // new_full: an empty full KV as sequences have it.
  PrefixCache(PrefixCacheOptions options, const KvShape& shape, const KernelTable* kernels,
              std::function<FullKv()> new_full);
  // Finishes what is to be written.
  ~PrefixCache();

  // Looks into RAM, and says what a store is to be asked. `known_tokens`: the rows a session lends
  // anyway; no shorter hit is given. The look-up must not outlive *this.
  std::unique_ptr<PrefixLookup> Plan(absl::Span<const TokenId> prompt, std::string_view salt,
                                     const DraftSpec& spec, int64_t known_tokens,
                                     const PrefixRoom& room = {});
  // What RAM has now or Load() has found, the longer one. REQUIRES: Load() has ended or never ran.
  PrefixHit Finish(std::unique_ptr<PrefixLookup> lookup);
  // All three in a row: waits for a store.
  PrefixHit Find(absl::Span<const TokenId> prompt, std::string_view salt, const DraftSpec& spec,
                 int64_t known_tokens, const PrefixRoom& room = {});
  // The draft KV of the longest beginning of `prompt` that the store has one for, and nothing of
  // its full KV: for a node that drafts far from it. Looks at whole blocks from the longest stored
  // beginning down, and at the prompt itself. recompute_s: as in PrefixRoom. THREADS: safe beside
  // everything else.
  struct StoredDraft {
    std::optional<DraftKv> draft;
    int64_t full_tokens = 0;  // of the prompt, that the store seems to have full blocks of
  };
  StoredDraft FindDraftAlone(absl::Span<const TokenId> prompt, std::string_view salt,
                             const DraftSpec& spec, double recompute_s);
  // Of the prompt's first tokens, those whose full KV is in RAM now.
  int64_t TokensInMemory(absl::Span<const TokenId> prompt, std::string_view salt) {
    return memory_.Find(salt, prompt).num_tokens;
  }
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
  std::string why_not_saved() const { return stored_ == nullptr ? "" : stored_->why_not_saved(); }
  PrefixStats Stats();
  StoreLink Link() const;

 private:
  // What RAM has of a draft KV that continues nearly all of the prompt; null: nothing.
  static const DraftKv* DraftInMemory(const PrefixLookup& lookup,
                                      const MemoryPrefixes::Match& match);
  static std::shared_ptr<const KeyScores> ScoresInMemory(const PrefixLookup& lookup,
                                                         const MemoryPrefixes::Match& match);
  std::optional<StoredPrefixes::Prompt> PromptInStore(absl::Span<const TokenId> tokens,
                                                      std::string_view salt) const;
  void CountOne(int64_t PrefixStats::*counter);
  void AddToMemory(const Finding& finding, bool keeps_draft);
  void AddToStore(const Finding& finding, bool keeps_draft);

  PrefixCacheOptions options_;
  MemoryPrefixes memory_;
  std::unique_ptr<StoredPrefixes> stored_;
  std::unique_ptr<PrefixWriter> writer_;  // null if read only
  std::mutex stats_mutex_;
  PrefixStats stats_;  // guarded by stats_mutex_
};

// Rows of `full` from `begin` on before the first whose K or V is not finite.
// REQUIRES: begin <= full.num_tokens(). COST: reads the rows once.
int64_t CountFiniteRows(const FullKv& full, int64_t begin);

}  // namespace vericache
