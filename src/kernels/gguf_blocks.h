// The GGUF quantisation blocks in plain C++: byte layouts and how a value's code is found in them.
//
// Internal to kernels/. Everything sits in an anonymous namespace on purpose: this header is
// compiled with several instruction sets, and a copy made for one must never replace another's at
// link time. base/float16.h is not used in kernel units for the same reason.
#pragma once

#include <cstdint>
#include <cstring>

namespace vericache {
namespace {

struct BlockQ8_0 {
  uint16_t d;
  int8_t q[32];
};
struct BlockQ5_0 {
  uint16_t d;
  uint8_t qh[4];   // bit k: fifth bit of value k
  uint8_t qs[16];  // low nibbles: values 0..15, high nibbles: values 16..31
};
struct BlockQ4_1 {
  uint16_t d;
  uint16_t m;
  uint8_t qs[16];
};
struct BlockQ4_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];  // 8 scales and 8 minima of 6 bits
  uint8_t qs[128];     // 4 runs of 32 bytes: low nibbles one sub-block, high nibbles the next
};
struct BlockQ6_K {
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];  // one for 16 values
  uint16_t d;
};
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ5_0) == 22 && sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ4_K) == 144 && sizeof(BlockQ6_K) == 210);

inline float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float HalfToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31;
  const uint32_t mantissa = h & 0x3ff;
  if (exponent == 31) {  // inf; NaNs become quiet
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return FloatFromBits(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  if (exponent == 0) {  // zero and denormals: mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return (sign != 0) ? -magnitude : magnitude;
  }
  return FloatFromBits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline float Bf16ToFloat(uint16_t b) { return FloatFromBits(static_cast<uint32_t>(b) << 16); }

// Unsigned codes of one block, in order of k.
inline void CodesQ5_0(const BlockQ5_0& block, uint8_t codes[32]) {
  for (int k = 0; k < 32; ++k) {
    const int nibble = k < 16 ? block.qs[k] & 15 : block.qs[k - 16] >> 4;
    const int high = (block.qh[k / 8] >> (k % 8)) & 1;
    codes[k] = static_cast<uint8_t>(nibble | (high << 4));
  }
}
inline void CodesQ4_1(const BlockQ4_1& block, uint8_t codes[32]) {
  for (int k = 0; k < 32; ++k) codes[k] = k < 16 ? block.qs[k] & 15 : block.qs[k - 16] >> 4;
}
inline void CodesQ4_K(const BlockQ4_K& block, uint8_t codes[256]) {
  for (int k = 0; k < 256; ++k) {
    const uint8_t byte = block.qs[k / 64 * 32 + k % 32];
    codes[k] = k % 64 < 32 ? byte & 15 : byte >> 4;
  }
}
// Scale and minimum of sub-block j (32 values), 0..63 each.
inline void ScaleMinQ4_K(const uint8_t s[12], int j, int* scale, int* min) {
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = (s[j + 4] & 15) | (s[j - 4] >> 6 << 4);
    *min = (s[j + 4] >> 4) | (s[j] >> 6 << 4);
  }
}
inline void CodesQ6_K(const BlockQ6_K& block, uint8_t codes[256]) {
  for (int k = 0; k < 256; ++k) {
    const int half = k / 128;          // 64 bytes of ql, 32 of qh
    const int quarter = k % 128 / 32;  // 0, 1: low nibbles; 2, 3: high nibbles
    const uint8_t low = block.ql[half * 64 + quarter % 2 * 32 + k % 32];
    const uint8_t high = block.qh[half * 32 + k % 32];
    const int nibble = quarter < 2 ? low & 15 : low >> 4;
    codes[k] = static_cast<uint8_t>(nibble | (((high >> (2 * quarter)) & 3) << 4));
  }
}

}  // namespace
}  // namespace vericache
