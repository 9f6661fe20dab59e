// What a prompt need not compute, on its way: found in RAM at once, in a store beside everything
// else.
//
//   lookup = cache.Plan(prompt, ...);            // the engine's thread: RAM alone, no I/O
//   if (lookup->asks_store()) lookup->Load();    // any thread; ends early after Cancel()
//   hit = cache.Finish(std::move(lookup));       // the engine's thread
//
// THREADS: Load() touches nothing that others touch but the store, the block pool and the tier's
// files, which are safe. progress() and Cancel() may be called by anyone meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/memory_prefixes.h"
#include "engine/stored_prefixes.h"
#include "kv/draft_kv.h"
#include "kv/draft_spec.h"
#include "kv/full_kv.h"
#include "kv/selectors/selector.h"
#include "storage/blob_store.h"

namespace vericache {

// What a prompt need not compute.
struct PrefixHit {
  std::optional<FullKv> full;  // the prompt's first rows, at most all but one
  std::optional<DraftKv> draft;
  std::shared_ptr<const KeyScores> scores;  // over at least half of the prompt

  int64_t num_tokens() const { return full.has_value() ? full->num_tokens() : 0; }
};

// What a store has of a prompt, before any of it is read but the first block.
struct PrefixFacts {
  int64_t num_blocks = 0;    // full ones
  int64_t draft_blocks = 0;  // that it has a draft KV over; 0: none
  StoreLink link;
};
enum class PrefixChoice { kNothing, kBlocks, kDraftThenBlocks };

// What a look-up may cost. Under a KV budget: what it may put into RAM.
struct PrefixRoom {
  // Whole blocks of what is loaded; the rest is spilled as it comes, kLoadedAtOnce blocks at a
  // time. < 0: as new_full says.
  int64_t hot_blocks = -1;
  // LimitMemory() for what is kept, before anything is loaded.
  uint64_t memory_bytes = std::numeric_limits<uint64_t>::max();
  // Seconds in which the prompt could be computed: no store is waited for any longer, in all. 0:
  // not known.
  double recompute_s = 0;
  // Asked by Load(), on its thread, where the store has blocks that are wanted. Empty: kBlocks.
  std::function<PrefixChoice(const PrefixFacts&)> choose;
};

// After `recompute_s` from now a store is of no use, but for the least that a far one takes to
// answer. 0: kNoDeadline.
Deadline DeadlineOf(double recompute_s);

class PrefixLookup {
 public:
  struct Progress {
    int64_t blocks_wanted = -1;  // -1: not known yet
    int64_t blocks_done = 0;
    uint64_t bytes_done = 0;  // of full blocks
  };

  // Whether a store may have more than is known: else Load() would do nothing.
  bool asks_store() const { return stored_.has_value(); }
  // RAM has rows, but not the scores that the spec chooses by.
  bool memory_lacks_scores() const {
    return memory_tokens_ > 0 && spec_.score_kind() != ScoreKind::kNone && !memory_has_scores_;
  }
  // Reads what the store has: scores, full blocks in order of position, a draft KV. Never fails:
  // what did not come is computed. Once.
  void Load();
  // Load() ends after the blob it is at, with what came.
  void Cancel() { load_.cancelled = true; }
  Progress progress() const { return {load_.blocks_wanted, load_.blocks_done, load_.bytes_done}; }
  // The draft KV over the prefix's first whole blocks, as soon as it is here: before the full
  // blocks, if the choice was so. Once.
  std::optional<DraftKv> TakeEarlyDraft();
  // Tokens that RAM had when it was planned.
  int64_t memory_tokens() const { return memory_tokens_; }
  // Lets what RAM holds be evicted meanwhile; Finish() then looks again.
  void LetGo() { match_.reset(); }

 private:
  friend class PrefixCache;
  PrefixLookup(absl::Span<const TokenId> prompt, std::string_view salt, const DraftSpec& spec,
               int64_t known_tokens, const PrefixRoom& room)
      : tokens_(prompt.begin(), prompt.end()),
        salt_(salt),
        spec_(spec),
        known_tokens_(known_tokens),
        room_(room) {}
  int64_t num_prompt() const { return static_cast<int64_t>(tokens_.size()); }
  // The last token is always computed: its logits choose the first new one.
  int64_t MostTokens(int64_t have) const { return std::min(have, num_prompt() - 1); }
  int64_t QueriesWanted() const;
  bool StoreMayHelp() const;
  void LoadFull(int64_t num_blocks, Deadline deadline);
  // The shortest draft KV that is worth more than a new choice.
  int64_t LeastDraftTokens() const;
  bool EnoughScores(const std::shared_ptr<const KeyScores>& scores) const {
    return scores != nullptr && 2 * scores->num_scored >= num_prompt();
  }

  const std::vector<TokenId> tokens_;
  const std::string salt_;
  const DraftSpec spec_;
  const int64_t known_tokens_;
  const PrefixRoom room_;
  std::optional<MemoryPrefixes::Match> match_;  // what RAM had; none: look again
  int64_t memory_tokens_ = 0;
  bool memory_has_draft_ = false, memory_has_scores_ = false;
  StoredPrefixes* prefixes_ = nullptr;
  std::optional<StoredPrefixes::Prompt> stored_;  // of tokens_; none: no store
  StoredLoad load_;
  // What Load() has found:
  std::optional<FullKv> full_;
  std::optional<DraftKv> draft_;
  std::shared_ptr<const KeyScores> scores_;
  std::mutex early_mutex_;
  std::optional<DraftKv> early_;  // guarded by early_mutex_
};

}  // namespace vericache
