#include "api/logprobs.h"

#include <algorithm>
#include <numeric>

#include "base/fp_env.h"

namespace vericache {

LogprobMaker::LogprobMaker(const KernelTable* kernels, int64_t vocab_size, int64_t num_ids)
    : kernels_(kernels), vocab_size_(vocab_size), num_ids_(std::min(num_ids, vocab_size)) {}

bool LogprobMaker::IsFinite(const float* logits) const {
  const ScopedFpEnv fp_env;
  return kernels_->argmax(logits, vocab_size_).all_finite;
}

PositionLogprobs LogprobMaker::Of(const float* logits, TokenId chosen, int num_top) {
  const ScopedFpEnv fp_env;
  const float max = logits[kernels_->argmax(logits, num_ids_).id];
  exp_.resize(num_ids_);
  for (int64_t i = 0; i < num_ids_; ++i) exp_[i] = logits[i] - max;
  kernels_->exp(exp_.data(), num_ids_, exp_.data());
  double lanes[16] = {};
  for (int64_t i = 0; i < num_ids_; ++i) lanes[i % 16] += exp_[i];
  for (int s = 8; s > 0; s /= 2)
    for (int i = 0; i < s; ++i) lanes[i] += lanes[i + s];
  const double log_sum = static_cast<double>(max) + ContractLog(lanes[0]);
  const auto logprob = [&](TokenId id) -> TokenLogprob {
    return {id, static_cast<float>(static_cast<double>(logits[id]) - log_sum)};
  };
  PositionLogprobs row;
  row.chosen = logprob(chosen);
  const int64_t n = std::min<int64_t>(num_top, num_ids_);
  if (n <= 0) return row;
  ids_.resize(num_ids_);
  std::iota(ids_.begin(), ids_.end(), 0);
  std::partial_sort(ids_.begin(), ids_.begin() + n, ids_.end(), [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (int64_t i = 0; i < n; ++i) row.top.push_back(logprob(ids_[i]));
  return row;
}

}  // namespace vericache
