#include "tokenizer/bpe_merge.h"

#include <algorithm>

#include "base/check.h"

namespace vericache {

// The symbols form a linked list; a heap holds the merges that some pair of neighbours allows,
// lowest rank first and, among equals, leftmost first. A merge makes the candidates of its two
// symbols stale; they stay in the heap and are recognised when they come up, because a symbol's
// token changes with every merge and never changes back (merged tokens only grow). Each merge
// removes a symbol and adds at most two candidates: n log n for any input (case 16).
void BpeMerger::Merge(std::string_view piece, std::vector<TokenId>* ids) {
  symbols_.clear();
  heap_.clear();
  for (const char c : piece) {
    const TokenId id = vocab_.byte_token(static_cast<uint8_t>(c));
    if (id < 0) continue;
    const int32_t index = static_cast<int32_t>(symbols_.size());
    symbols_.push_back({id, index - 1, index + 1});
  }
  if (symbols_.empty()) return;
  symbols_.back().next = -1;
  for (size_t left = 0; left + 1 < symbols_.size(); ++left) {
    const BpeMerge* merge = vocab_.FindMerge(symbols_[left].id, symbols_[left + 1].id);
    if (merge != nullptr)
      heap_.push_back(
          {merge->rank, static_cast<int32_t>(left), symbols_[left].id, symbols_[left + 1].id});
  }
  std::make_heap(heap_.begin(), heap_.end(), Later);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    const Candidate candidate = heap_.back();
    heap_.pop_back();
    Apply(candidate);
  }
  for (int32_t i = 0; i >= 0; i = symbols_[i].next) ids->push_back(symbols_[i].id);
}

void BpeMerger::Apply(const Candidate& candidate) {
  Symbol& left = symbols_[candidate.left];
  if (left.id != candidate.left_id || left.next < 0) return;
  Symbol& right = symbols_[left.next];
  if (right.id != candidate.right_id) return;
  left.id = vocab_.FindMerge(candidate.left_id, candidate.right_id)->result;
  right.id = -1;
  left.next = right.next;
  if (left.next >= 0) symbols_[left.next].previous = candidate.left;
  if (left.previous >= 0) Propose(left.previous);
  if (left.next >= 0) Propose(candidate.left);
}

// REQUIRES: the symbol at `left` has a right neighbour.
void BpeMerger::Propose(int32_t left) {
  const TokenId left_id = symbols_[left].id;
  const TokenId right_id = symbols_[symbols_[left].next].id;
  const BpeMerge* merge = vocab_.FindMerge(left_id, right_id);
  if (merge == nullptr) return;
  heap_.push_back({merge->rank, left, left_id, right_id});
  std::push_heap(heap_.begin(), heap_.end(), Later);
}

}  // namespace vericache
