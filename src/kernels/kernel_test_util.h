// What the kernel tests share: a seeded generator and comparison by bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/float16.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"

namespace vericache {

// SplitMix64: the same values on every machine.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  // Uniform in [-range, range).
  float Uniform(float range) {
    return (static_cast<float>(Next() >> 40) * 0x1p-23f - 1.0f) * range;
  }
  std::vector<float> Floats(size_t n, float range) {
    std::vector<float> values(n);
    for (float& v : values) v = Uniform(range);
    return values;
  }

 private:
  uint64_t state_;
};

// Equal bits; NaN is one class.
inline bool SameBits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

inline ::testing::AssertionResult AllSameBits(const std::vector<float>& a,
                                              const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < a.size(); ++i) {
    if (!SameBits(a[i], b[i])) {
      return ::testing::AssertionFailure()
             << "at " << i << ": " << a[i] << " and " << b[i] << " (of " << a.size() << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

// The judge and the others.
inline const KernelTable& Judge() { return *AllKernelTables()[0]; }

// The softmax exponential, written a second time from docs/exactness.md.
inline float ReferenceExp2(float t) {
  if (std::isnan(t)) return t;
  if (t < -125) return 0;
  const float n = std::nearbyint(t);
  const float f = t - n;
  const float terms[] = {0x1.5bba14p-10f, 0x1.3cea88p-7f, 0x1.c6b752p-5f,
                         0x1.ebf9bcp-3f,  0x1.62e42ap-1f, 1.0f};
  float p = terms[0];
  for (int i = 1; i < 6; ++i) p = std::fma(p, f, terms[i]);
  return std::ldexp(p, static_cast<int>(n));
}

}  // namespace vericache
