// Rotary position angles, computed for the rows of a pass when they are needed.
//
// A row costs rotary_dim / 2 fp64 sines and is shared by all layers and heads, so no table over the
// whole context is kept. SOURCE: arXiv 2104.09864; frequency factors as in Llama 3.1; YaRN: arXiv
// 2309.00071.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace vericache {

// Pairs up to `low` turn as trained, from `high` on all angles are divided by the scale; between
// them the share of the division grows evenly. REQUIRES: rope_theta, orig_context and rotary_dim.
struct YarnRange {
  double low = 0, high = 0;  // index of a pair
};
YarnRange YarnRangeOf(const ModelConfig& config);

class Rope {
 public:
  // `factors`: [rotary_dim / 2] divisors of the frequencies, or empty.
  Rope(const ModelConfig& config, const std::vector<float>& factors);

  // cos, sin: [rotary_dim / 2], times YaRN's attention factor; fp64 results rounded once to fp32.
  void AnglesOf(int64_t pos, float* cos, float* sin) const;
  int half_dim() const { return static_cast<int>(inv_freq_.size()); }

 private:
  std::vector<double> inv_freq_;
  double attn_factor_ = 1.0;
};

}  // namespace vericache
