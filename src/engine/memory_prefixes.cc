#include "engine/memory_prefixes.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/common_tokens.h"

namespace vericache {

MemoryPrefixes::Match MemoryPrefixes::Find(std::string_view salt,
                                           absl::Span<const TokenId> tokens) {
  auto best = entries_.end();
  int64_t best_tokens = 0;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if ((*entry)->salt != salt) continue;
    const int64_t common = CommonTokens((*entry)->tokens, tokens);
    if (common <= best_tokens) continue;
    best = entry;
    best_tokens = common;
  }
  if (best == entries_.end()) return {};
  entries_.splice(entries_.begin(), entries_, best);
  return {entries_.front(), best_tokens};
}

// What `from` has and `to`, which stands for more tokens, lacks. Tokens and K/V stay where they
// are: a look-up under way may hold them.
void MemoryPrefixes::Merge(MemoryPrefix* from, MemoryPrefix* to) {
  for (MemoryPrefix::Draft& draft : from->drafts) {
    const bool known = std::any_of(to->drafts.begin(), to->drafts.end(), [&](const auto& other) {
      return other.spec == draft.spec && other.num_tokens == draft.num_tokens;
    });
    if (!known) to->drafts.push_back({draft.spec, draft.num_tokens, draft.kv.Copy()});
  }
  for (const auto& [key, scores] : from->scores) {
    std::shared_ptr<const KeyScores>& held = to->scores[key];
    if (held == nullptr || held->num_scored < scores->num_scored) held = scores;
  }
}

void MemoryPrefixes::Add(MemoryPrefix prefix) {
  if (prefix.tokens.empty()) return;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto here = entry++;
    MemoryPrefix& held = **here;
    if (held.salt != prefix.salt) continue;
    const int64_t common = CommonTokens(held.tokens, prefix.tokens);
    if (common == static_cast<int64_t>(held.tokens.size())) {
      Merge(&held, &prefix);
      entries_.erase(here);
    } else if (common == static_cast<int64_t>(prefix.tokens.size())) {
      Merge(&prefix, &held);
      entries_.splice(entries_.begin(), entries_, here);
      MakeRoom();
      return;
    }
  }
  entries_.push_front(std::make_shared<MemoryPrefix>(std::move(prefix)));
  MakeRoom();
}

void MemoryPrefixes::set_max_bytes(uint64_t max_bytes) {
  max_bytes_ = max_bytes;
  if (num_bytes_ > max_bytes_) MakeRoom();
}

// Blocks that several entries share count once.
uint64_t MemoryPrefixes::CountBytes() const {
  std::unordered_set<const uint16_t*> blocks;
  uint64_t bytes = 0;
  for (const auto& held : entries_) {
    const MemoryPrefix& entry = *held;
    for (int64_t i = 0; i < entry.full.num_blocks(); ++i)
      if (entry.full.block(i) != nullptr && blocks.insert(entry.full.block(i)).second)
        bytes += entry.full.block_bytes();
    for (const MemoryPrefix::Draft& draft : entry.drafts) bytes += draft.kv.num_bytes();
    for (const auto& [key, scores] : entry.scores)
      bytes += scores->of_head.size() * scores->num_scored * sizeof(float);
    bytes += entry.tokens.size() * sizeof(TokenId);
  }
  return bytes;
}

void MemoryPrefixes::MakeRoom() {
  for (num_bytes_ = CountBytes(); num_bytes_ > max_bytes_ || entries_.size() > kMaxMemoryPrefixes;
       num_bytes_ = CountBytes()) {
    const MemoryPrefix& oldest = *entries_.back();
    const int64_t fit =
        static_cast<int64_t>(max_bytes_ / (oldest.full.block_bytes() + kBlockTokens * 4));
    if (entries_.size() > 1 || fit == 0 || fit >= oldest.full.num_blocks()) {
      entries_.pop_back();
      ++evicted_;
      continue;
    }
    // The only one: its beginning is what the next prompt shares most likely.
    const auto tokens = oldest.tokens.begin();
    entries_.back() = std::make_shared<MemoryPrefix>(MemoryPrefix{
        oldest.salt, {tokens, tokens + fit * kBlockTokens}, oldest.full.Fork(fit * kBlockTokens)});
  }
}

}  // namespace vericache
