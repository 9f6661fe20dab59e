// Rotary position angles, computed for the rows of a pass when they are needed.
//
// A row costs rotary_dim / 2 fp64 sines and is shared by all layers and heads, so no table over the
// whole context is kept. SOURCE: arXiv 2104.09864; frequency factors as in Llama 3.1.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace vericache {

class Rope {
 public:
  // `factors`: [rotary_dim / 2] divisors of the frequencies, or empty.
  Rope(const ModelConfig& config, const std::vector<float>& factors);

  // cos, sin: [rotary_dim / 2], fp64 results rounded once to fp32.
  void AnglesOf(int64_t pos, float* cos, float* sin) const;
  int half_dim() const { return static_cast<int>(inv_freq_.size()); }

 private:
  std::vector<double> inv_freq_;
};

}  // namespace vericache
