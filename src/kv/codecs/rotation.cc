#include "kv/codecs/rotation.h"

#include <cstring>

namespace vericache {
namespace {

// Four lanes of the base instruction set, as in int_codec.cc.
typedef float Floats __attribute__((vector_size(16)));

constexpr float kScale = 0x1.6a09e6p-3f;  // 1 / sqrt(32)

// Butterflies of `n` vectors over distances of 1, 2, .. n / 2 vectors.
template <int n>
inline void Butterflies(Floats v[n]) {
#pragma GCC unroll 5
  for (int s = 1; s < n; s *= 2) {
#pragma GCC unroll 32
    for (int i = 0; i < n; ++i) {
      if ((i & s) != 0) continue;
      const Floats a = v[i], b = v[i + s];
      v[i] = a + b;
      v[i + s] = a - b;
    }
  }
}

// Thirty-two consecutive values.
inline void Rotate32(float* x) {
  Floats v[8];
  std::memcpy(v, x, sizeof(v));
  const Floats odd_minus = {kScale, -kScale, kScale, -kScale}, high_minus = {1, 1, -1, -1};
  for (Floats& lanes : v) {  // distances 1 and 2, within a vector
    const Floats even = __builtin_shufflevector(lanes, lanes, 0, 0, 2, 2);
    const Floats odd = __builtin_shufflevector(lanes, lanes, 1, 1, 3, 3);
    const Floats ones = even * kScale + odd * odd_minus;
    const Floats low = __builtin_shufflevector(ones, ones, 0, 1, 0, 1);
    const Floats high = __builtin_shufflevector(ones, ones, 2, 3, 2, 3);
    lanes = low + high * high_minus;
  }
  Butterflies<8>(v);
  std::memcpy(x, v, sizeof(v));
}

}  // namespace

void RotateKeys(int head_dim, float* k) {
  for (int d = 0; d < head_dim; d += 32) {
    for (int key = 0; key < 32; key += 4) {
      float* const first = k + d * 32 + key;
      Floats v[32];
      for (int c = 0; c < 32; ++c) {
        std::memcpy(&v[c], first + c * 32, sizeof(Floats));
        v[c] *= kScale;
      }
      Butterflies<32>(v);
      for (int c = 0; c < 32; ++c) std::memcpy(first + c * 32, &v[c], sizeof(Floats));
    }
  }
}

void RotateValues(int head_dim, float* v) {
  for (int i = 0; i < 32 * head_dim; i += 32) Rotate32(v + i);
}

}  // namespace vericache
