#include "model/rope.h"

#include <algorithm>
#include <cmath>

#include "base/fp_env.h"
#include "kernels/kernels.h"

namespace vericache {
namespace {

constexpr double kTwoPi = 0x1.921fb54442d18p+2;

// The pair, as a real number, that turns `turns` times within the original context.
double PairThatTurns(const ModelConfig& config, double turns) {
  const double length = static_cast<double>(config.orig_context);
  return config.rotary_dim * ContractLog(length / (turns * kTwoPi)) /
         (2 * ContractLog(config.rope_theta));
}

}  // namespace

YarnRange YarnRangeOf(const ModelConfig& config) {
  const ScopedFpEnv fp_env;
  YarnRange range;
  range.low = std::max(0.0, std::floor(PairThatTurns(config, config.yarn_beta_fast)));
  range.high =
      std::min(config.rotary_dim - 1.0, std::ceil(PairThatTurns(config, config.yarn_beta_slow)));
  return range;
}

Rope::Rope(const ModelConfig& config, const std::vector<float>& factors)
    : inv_freq_(config.rotary_dim / 2) {
  const ScopedFpEnv fp_env;
  const bool yarn = config.rope_scaling == RopeScaling::kYarn;
  YarnRange range;
  if (yarn) {
    range = YarnRangeOf(config);
    if (range.low == range.high) range.high += 0.001;
    const double by_scale = 0.1 * ContractLog(config.rope_scale) + 1.0;
    attn_factor_ = (config.yarn_attn_factor > 0 ? config.yarn_attn_factor : by_scale) *
                   config.rope_attn_factor;
  }
  for (size_t i = 0; i < inv_freq_.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / config.rotary_dim;
    const double trained = ContractPow(config.rope_theta, exponent);
    inv_freq_[i] = trained / config.rope_scale;
    if (yarn) {
      const double pair = static_cast<double>(i);
      const double share = std::clamp((pair - range.low) / (range.high - range.low), 0.0, 1.0);
      inv_freq_[i] = inv_freq_[i] * share + trained * (1.0 - share);
    }
    if (!factors.empty()) inv_freq_[i] /= static_cast<double>(factors[i]);
  }
}

void Rope::AnglesOf(int64_t pos, float* cos, float* sin) const {
  for (size_t i = 0; i < inv_freq_.size(); ++i) {
    double s, c;
    ContractSinCos(static_cast<double>(pos) * inv_freq_[i], &s, &c);
    cos[i] = static_cast<float>(c * attn_factor_);
    sin[i] = static_cast<float>(s * attn_factor_);
  }
}

}  // namespace vericache
