#include "engine/prefix_lookup.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace vericache {

// A store far away may take its round trip even where computing would be faster still.
Deadline DeadlineOf(double recompute_s) {
  constexpr double kLeast = 0.25, kMost = 3600;
  if (recompute_s <= 0) return kNoDeadline;
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(std::clamp(recompute_s, kLeast, kMost)));
}

int64_t PrefixLookup::QueriesWanted() const {
  return spec_.uses_queries() ? QueryRowsWanted(spec_) : 0;
}

// Only the draft of this very prompt, or of all but its last few tokens, is worth more than a new
// choice: prefill continues it while there are fewer new queries than a choice asks for.
int64_t PrefixLookup::LeastDraftTokens() const {
  return std::max<int64_t>(1, num_prompt() - QueryRowsWanted(spec_) + 1);
}

bool PrefixLookup::StoreMayHelp() const {
  if (prefixes_ == nullptr) return false;
  const int64_t common = MostTokens(memory_tokens_);
  if (MostTokens(num_prompt() / kBlockTokens * kBlockTokens) > std::max(common, known_tokens_))
    return true;
  if (spec_.score_kind() != ScoreKind::kNone && !memory_has_scores_) return true;
  return common > known_tokens_ && num_prompt() - common < QueriesWanted() && !memory_has_draft_;
}

std::optional<DraftKv> PrefixLookup::TakeEarlyDraft() {
  const std::lock_guard lock(early_mutex_);
  return std::exchange(early_, std::nullopt);
}

void PrefixLookup::LoadFull(int64_t num_blocks, Deadline deadline) {
  if (load_.cancelled) return;
  full_.emplace(prefixes_->NewFull());
  if (room_.hot_blocks >= 0) full_->set_hot_blocks(room_.hot_blocks);
  if (room_.choose) {
    // Unless it is computed, the first block is needed anyway: it tells how fast the link is.
    if (prefixes_->Link().is_remote && prefixes_->Link().bytes_per_s == 0)
      prefixes_->LoadBlocks(*stored_, 1, deadline, &load_, &*full_);
    PrefixFacts facts;
    facts.num_blocks = num_blocks;
    if (spec_.enabled)
      facts.draft_blocks = prefixes_->FindDraftOfBlocks(*stored_, num_blocks, spec_, deadline);
    facts.link = prefixes_->Link();
    const PrefixChoice choice = room_.choose(facts);
    if (choice == PrefixChoice::kNothing) {
      full_.reset();
      return;
    }
    if (choice == PrefixChoice::kDraftThenBlocks && facts.draft_blocks > 0) {
      const int64_t num_tokens = facts.draft_blocks * kBlockTokens;
      std::optional<DraftKv> draft =
          prefixes_->LoadDraft(*stored_, num_tokens, num_tokens, spec_, deadline);
      const std::lock_guard lock(early_mutex_);
      early_ = std::move(draft);
    }
  }
  prefixes_->LoadBlocks(*stored_, num_blocks, deadline, &load_, &*full_);
  // It may wait to be taken. What cannot be written now is tried again when it is used.
  if (room_.hot_blocks == 0) (void)full_->Spill();
}

void PrefixLookup::Load() {
  if (!asks_store() || load_.cancelled) return;
  const Deadline deadline = DeadlineOf(room_.recompute_s);
  if (spec_.score_kind() != ScoreKind::kNone && !memory_has_scores_)
    scores_ = prefixes_->LoadScores(*stored_, spec_, deadline);
  int64_t common = MostTokens(memory_tokens_);
  if (load_.cancelled) return;
  const int64_t num_blocks = prefixes_->CountBlocks(*stored_, deadline);
  if (MostTokens(num_blocks * kBlockTokens) > std::max(common, known_tokens_)) {
    load_.blocks_wanted = num_blocks;
    LoadFull(num_blocks, deadline);
    if (full_.has_value()) common = std::max(common, MostTokens(full_->num_tokens()));
  } else {
    load_.blocks_wanted = 0;
  }
  if (load_.cancelled || common <= known_tokens_ || num_prompt() - common >= QueriesWanted() ||
      memory_has_draft_)
    return;
  draft_ = prefixes_->LoadDraft(*stored_, LeastDraftTokens(), num_prompt(), spec_, deadline);
}

}  // namespace vericache
