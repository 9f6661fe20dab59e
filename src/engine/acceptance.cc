#include "engine/acceptance.h"

namespace vericache {

void AcceptWalk::Start(absl::Span<const DraftToken> draft, int64_t max_emit) {
  draft_ = draft;
  max_emit_ = max_emit;
  num_accepted_ = 0;
  emitted_.clear();
  emitted_.reserve(draft.size() + 1);
  finish_ = FinishReason::kNone;
}

bool AcceptWalk::Push(TokenId chosen, bool ends_generation) {
  const size_t row = emitted_.size();
  emitted_.push_back(chosen);
  const bool matches = row < draft_.size() && draft_[row].id == chosen;
  if (matches) ++num_accepted_;
  if (ends_generation) {
    finish_ = FinishReason::kStop;
  } else if (static_cast<int64_t>(emitted_.size()) >= max_emit_) {
    finish_ = FinishReason::kLength;
  }
  return matches && finish_ == FinishReason::kNone;
}

}  // namespace vericache
