#include "engine/draft_length.h"

#include <algorithm>

namespace vericache {

void DraftLength::Update(int num_drafted, int num_accepted) {
  // A draft shorter than asked for (the answer's end) says nothing about the length.
  if (fixed_ || num_drafted < next_) return;
  if (num_accepted == num_drafted) {
    next_ = std::min(kMax, next_ * 2);
  } else if (2 * num_accepted < num_drafted) {
    next_ = std::max(kMin, next_ / 2);
  }
}

}  // namespace vericache
