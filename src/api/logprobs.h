// Log probabilities of a row of the full KV's logits, as callers get them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "kernels/kernels.h"
#include "vericache/serving.h"

namespace vericache {

// A function of the row alone, with the contract's exp and log and a fixed order of sums: the same
// numbers on every CPU and for any draft, batch and thread count (case 38).
// THREADS: one caller at a time (owns scratch).
class LogprobMaker {
 public:
  // num_ids: ids with a text; the padding behind them has no probability (case 49).
  LogprobMaker(const KernelTable* kernels, int64_t vocab_size, int64_t num_ids);

  // logits: [vocab_size], finite. num_top: most likely ids to name; fewer if there are fewer.
  PositionLogprobs Of(const float* logits, TokenId chosen, int num_top);
  // False: the row holds a NaN or an infinity.
  bool IsFinite(const float* logits) const;

 private:
  const KernelTable* kernels_;
  int64_t vocab_size_, num_ids_;
  std::vector<float> exp_;  // [num_ids]
  std::vector<TokenId> ids_;
};

}  // namespace vericache
