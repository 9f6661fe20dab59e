#include "model/rope.h"

#include "base/fp_env.h"
#include "kernels/kernels.h"

namespace vericache {

Rope::Rope(const ModelConfig& config, const std::vector<float>& factors)
    : inv_freq_(config.rotary_dim / 2) {
  const ScopedFpEnv fp_env;
  for (size_t i = 0; i < inv_freq_.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / config.rotary_dim;
    inv_freq_[i] = ContractPow(config.rope_theta, exponent) / config.rope_scale;
    if (!factors.empty()) inv_freq_[i] /= static_cast<double>(factors[i]);
  }
}

void Rope::AnglesOf(int64_t pos, float* cos, float* sin) const {
  for (size_t i = 0; i < inv_freq_.size(); ++i) {
    double s, c;
    ContractSinCos(static_cast<double>(pos) * inv_freq_[i], &s, &c);
    cos[i] = static_cast<float>(c);
    sin[i] = static_cast<float>(s);
  }
}

}  // namespace vericache
