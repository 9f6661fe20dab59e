// What the kernel tests share: a seeded generator and comparison by bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/float16.h"
#include "base/split_mix.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"

namespace vericache {

// The same values on every machine.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return NextSplitMix(&state_); }
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

// All formats of draft keys and values.
inline constexpr DraftFormat kAllDraftFormats[] = {
    DraftFormat::kInt2, DraftFormat::kInt3, DraftFormat::kInt4, DraftFormat::kInt5,
    DraftFormat::kInt6, DraftFormat::kInt7, DraftFormat::kInt8, DraftFormat::kF16};
inline int MaxCodeOf(DraftFormat format) { return (1 << BitsOf(format)) - 1; }

// Where `width` bits of one code lie in a block of 1,024 (kv_view.h): bit `code_bit` of the code is
// bit `bit` of byte `byte`.
struct CodePart {
  int byte, bit, width, code_bit;
};
inline std::vector<CodePart> PartsOf(DraftFormat format, int row, int lane) {
  const int step = row / 4, n = BitsOf(format);
  if (n == 8) return {{step * 128 + lane / 16 * 64 + lane % 16 * 4 + row % 4, 0, 8, 0}};
  std::vector<CodePart> parts;
  int plane = 0, code_bit = 0;
  for (int w = 4; w >= 1; w /= 2) {
    if (n / w % 2 == 0) continue;
    const int steps = 4 / w;  // that share a byte
    parts.push_back({plane + step / steps * 64 + lane % 16 * 4 + row % 4,
                     step % steps * w + (lane < 16 ? 0 : 4), w, code_bit});
    plane += 8 / steps * 64;
    code_bit += w;
  }
  return parts;
}
inline int BlockCode(DraftFormat format, const uint8_t* block, int row, int lane) {
  int code = 0;
  for (const CodePart& part : PartsOf(format, row, lane))
    code |= (block[part.byte] >> part.bit & ((1 << part.width) - 1)) << part.code_bit;
  return code;
}
// REQUIRES: the code was 0 before.
inline void PutBlockCode(DraftFormat format, uint8_t* block, int row, int lane, int code) {
  for (const CodePart& part : PartsOf(format, row, lane))
    block[part.byte] = static_cast<uint8_t>(
        block[part.byte] | (code >> part.code_bit & ((1 << part.width) - 1)) << part.bit);
}
// Codes of a group of 32 keys: of channel c of key `key`.
inline int GroupKeyCode(DraftFormat format, const uint8_t* group, int key, int c) {
  return BlockCode(format, group + c / 32 * 128 * BitsOf(format), c % 32, key);
}
inline int GroupValueCode(DraftFormat format, const uint8_t* group, int key, int c) {
  return BlockCode(format, group + c / 32 * 128 * BitsOf(format), key, c % 32);
}

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

// H32 / sqrt(32) on every 32 values, from the matrix's definition: element (i, j) is
// (-1)^popcount(i & j) / sqrt(32).
inline std::vector<double> RotateExactly(const std::vector<double>& x) {
  std::vector<double> y(x.size(), 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j)
      y[i] += __builtin_popcountll(i % 32 & j % 32) % 2 == 0 ? x[j] : -x[j];
    y[i] /= std::sqrt(32.0);
  }
  return y;
}

}  // namespace vericache
