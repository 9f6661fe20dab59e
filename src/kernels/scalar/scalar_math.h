// The contract's fp32 elementary functions (docs/exactness.md), one value at a time.
//
// Included by kernel units only, which may be built with different flags: everything here lives in
// an anonymous namespace, so that no copy can replace another at link time.
#pragma once

#include <cstdint>

namespace vericache::VC_KERNEL_NS {
namespace {

constexpr float kInf = __builtin_inff();
constexpr float kLog2E = 1.44269504f;

inline float Pow2(float n) {  // n integral, in [-126, 127]
  const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  return __builtin_bit_cast(float, bits);
}

inline float Exp(float x) {
  if (x != x) return x;
  if (x > 88.0f) return kInf;
  if (x < -87.0f) return 0.0f;
  const float n = __builtin_rintf(x * 1.44269504f);
  float f = __builtin_fmaf(n, -0.693359375f, x);
  f = __builtin_fmaf(n, 2.12194440e-4f, f);
  float p = 1.9875691500e-4f;
  p = __builtin_fmaf(p, f, 1.3981999507e-3f);
  p = __builtin_fmaf(p, f, 8.3334519073e-3f);
  p = __builtin_fmaf(p, f, 4.1665795894e-2f);
  p = __builtin_fmaf(p, f, 1.6666665459e-1f);
  p = __builtin_fmaf(p, f, 5.0000001201e-1f);
  const float r = __builtin_fmaf(p, f * f, f + 1.0f);
  return r * Pow2(n);
}

// 2^t for t <= 0: the softmax exponential. exp2(0) is 1 exactly.
inline float Exp2NonPositive(float t) {
  if (t != t) return t;
  if (t < -125.0f) return 0.0f;
  const float n = __builtin_rintf(t);
  const float f = t - n;
  float p = 0x1.5bba14p-10f;
  p = __builtin_fmaf(p, f, 0x1.3cea88p-7f);
  p = __builtin_fmaf(p, f, 0x1.c6b752p-5f);
  p = __builtin_fmaf(p, f, 0x1.ebf9bcp-3f);
  p = __builtin_fmaf(p, f, 0x1.62e42ap-1f);
  p = __builtin_fmaf(p, f, 1.0f);
  return p * Pow2(n);
}

inline float Max(float a, float b) { return a != a ? a : (b != b ? b : (a > b ? a : b)); }

// Adds 16 lanes in the contract's tree; destroys them.
inline float LaneTree(float* lane) {
  for (int s = 8; s >= 1; s /= 2) {
    for (int i = 0; i < s; ++i) lane[i] += lane[i + s];
  }
  return lane[0];
}

// x = H32 x / sqrt(32) for 32 values in place, its own inverse: butterflies over distances 1, 2, 4,
// 8 and 16, then one product each.
inline void Hadamard32(float* x) {
  for (int s = 1; s < 32; s *= 2) {
    for (int i = 0; i < 32; i += 2 * s) {
      for (int j = i; j < i + s; ++j) {
        const float a = x[j], b = x[j + s];
        x[j] = a + b;
        x[j + s] = a - b;
      }
    }
  }
  for (int i = 0; i < 32; ++i) x[i] *= 0x1.6a09e6p-3f;
}

// Nearest integer, ties to even, for |x| <= 2^22: above 1.5 * 2^23 fp32 has no fractions.
inline int RoundToNearest(float x) {
  const float shifted = x + 12582912.0f;
  return static_cast<int>(shifted - 12582912.0f);
}

// Codes of one block of activations (or of other products); returns the scale.
inline float QuantizeBlock(const float* x, int n, int8_t* q) {
  float amax = 0.0f;
  bool all_finite = true;
  for (int i = 0; i < n; ++i) {
    const float magnitude = __builtin_fabsf(x[i]);
    if (!(magnitude <= 3.402823466e38f)) all_finite = false;  // NaN fails the comparison too
    if (magnitude > amax) amax = magnitude;
  }
  if (!all_finite || amax < 0x1p-100f) {
    for (int i = 0; i < n; ++i) q[i] = 0;
    return all_finite ? 0.0f : __builtin_nanf("");
  }
  const float inverse = 127.0f / amax;
  for (int i = 0; i < n; ++i) q[i] = static_cast<int8_t>(RoundToNearest(x[i] * inverse));
  return amax / 127.0f;
}

}  // namespace
}  // namespace vericache::VC_KERNEL_NS
