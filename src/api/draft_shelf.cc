#include "api/draft_shelf.h"

#include <algorithm>
#include <utility>

namespace vericache {

std::list<DraftShelf::Entry>::iterator DraftShelf::Longest(absl::Span<const TokenId> prompt,
                                                           const std::string& salt,
                                                           const std::string& spec) {
  auto best = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->salt != salt || it->spec != spec || it->tokens.size() > prompt.size() ||
        (best != entries_.end() && it->tokens.size() <= best->tokens.size()) ||
        !std::equal(it->tokens.begin(), it->tokens.end(), prompt.begin()))
      continue;
    best = it;
  }
  return best;
}

std::optional<DraftKv> DraftShelf::Find(absl::Span<const TokenId> prompt, const std::string& salt,
                                        const std::string& spec) {
  const auto best = Longest(prompt, salt, spec);
  if (best == entries_.end() || 2 * best->tokens.size() < prompt.size()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, best);
  return best->draft.Copy();
}

void DraftShelf::Put(absl::Span<const TokenId> prompt, const std::string& salt,
                     const std::string& spec, const DraftKv& draft) {
  const uint64_t bytes = draft.num_bytes();
  if (bytes > max_bytes_) return;
  const auto covered = prompt.first(draft.num_tokens());
  const auto known = Longest(covered, salt, spec);
  if (known != entries_.end() && known->tokens.size() == covered.size()) {
    entries_.splice(entries_.begin(), entries_, known);
    return;
  }
  if (num_bytes_ + bytes > max_bytes_) Free(num_bytes_ + bytes - max_bytes_);
  entries_.push_front({salt, spec, {covered.begin(), covered.end()}, draft.Copy(), bytes});
  num_bytes_ += bytes;
}

void DraftShelf::Free(uint64_t bytes) {
  uint64_t freed = 0;
  while (freed < bytes && !entries_.empty()) {
    freed += entries_.back().bytes;
    num_bytes_ -= entries_.back().bytes;
    entries_.pop_back();
  }
}

}  // namespace vericache
