// Q5_0, Q4_1 and Q8_0 weights times int8 activations with a scale per 32 values.
#include "kernels/avx512/blocked.h"
#include "kernels/avx512/matmul.h"

namespace vericache::avx512 {
namespace {

// Packed weights of one tile: scales and (Q4_1) minima of block b.
template <int64_t kTileBytes, int64_t kScaleOffset>
struct PackedBlocks {
  const uint8_t* data;
  int64_t ahead;
  const uint8_t* At(int64_t b) const { return data + b * kTileBytes; }
  __m512 Scale(int64_t b) const { return LoadHalf16(At(b) + kScaleOffset); }
  __m512 Min(int64_t b) const { return LoadHalf16(At(b) + kScaleOffset + 32); }
  void Ahead(int64_t b) const {
    if (ahead != 0) Fetch<kTileBytes>(At(b) + ahead);
  }
};

// t[m] += block b of the sources times its activations. Vectors i and i + 4 share their bytes.
template <int kRows, int kTiles, class Source>
inline void AddProducts(const Source* source, const ActChunk& x, int64_t b,
                        __m512i t[kRows][kTiles]) {
#pragma GCC unroll 8
  for (int step = 0; step < 8; ++step) {
    const int i = step / 2 + 4 * (step % 2);
    __m512i codes[kTiles];
#pragma GCC unroll 2
    for (int g = 0; g < kTiles; ++g) codes[g] = source[g].Vector(b, i);
    AddVector<kRows, kTiles>(codes, x.q + 32 * b + 4 * i, x.q_stride, t);
  }
}
template <int kTiles, class Source>
inline void Scales(const Source* source, int64_t b, __m512 d[kTiles]) {
#pragma GCC unroll 2
  for (int g = 0; g < kTiles; ++g) d[g] = source[g].Scale(b);
}

// Signed weights code - kOffset: one FMA a block.
template <int32_t kOffset>
struct OffsetPass {
  static void Prepare(const int16_t* sums, int64_t n, uint32_t* prep) {
    for (int64_t b = 0; b < n; ++b) prep[b] = static_cast<uint32_t>(-kOffset * sums[b]);
  }
  template <int kRows, int kTiles, class Source>
  [[gnu::noinline]] static void Pass(const Source* source, int64_t num_blocks, const ActChunk& x,
                                     const OutChunk& out) {
    __m512 acc[kRows][kTiles];
    LoadAcc<kRows, kTiles>(out, acc);
    for (int64_t b = 0; b < num_blocks; ++b) {
      for (int g = 0; g < kTiles; ++g) source[g].Ahead(b);
      __m512i t[kRows][kTiles];
      Begin<kRows, kTiles>(x, b, t);
      AddProducts<kRows, kTiles>(source, x, b, t);
      __m512 d[kTiles];
      Scales<kTiles>(source, b, d);
      AddBlock<kRows, kTiles>(x, b, d, t, acc);
    }
    StoreAcc<kRows, kTiles>(out, acc);
  }
};

struct FormatQ5_0 : OffsetPass<16> {
  static constexpr int kBlock = 32, kSumBlock = 32;
  static constexpr int64_t kTileBytes = avx2::kBytesQ5_0;
  static constexpr int64_t kAhead = 4096;
  struct Packed : PackedBlocks<kTileBytes, 320> {
    __m512i Vector(int64_t b, int i) const {
      const __m512i nibbles = Load512(At(b) + 64 * (i % 4));
      const __m512i high = Load512(At(b) + 256);
      const __m512i shifted = i < 4    ? _mm512_slli_epi16(high, 4 - i)
                              : i == 4 ? high
                                       : _mm512_srli_epi16(high, i - 4);
      const __m512i fifth = _mm512_and_si512(shifted, _mm512_set1_epi8(16));
      // (nibbles & 15) | fifth
      return _mm512_ternarylogic_epi32(i < 4 ? nibbles : _mm512_srli_epi16(nibbles, 4),
                                       _mm512_set1_epi8(15), fifth, 0xea);
    }
  };
};

struct FormatQ8_0 : OffsetPass<128> {
  static constexpr int kBlock = 32, kSumBlock = 32;
  static constexpr int64_t kTileBytes = avx2::kBytesQ8_0;
  static constexpr int64_t kAhead = 4096;
  struct Packed : PackedBlocks<kTileBytes, 512> {
    __m512i Vector(int64_t b, int i) const {  // w + 128, unsigned
      return _mm512_xor_si512(Load512(At(b) + 64 * i), _mm512_set1_epi8(-128));
    }
  };
};

struct FormatQ4_1 {
  static constexpr int kBlock = 32, kSumBlock = 32;
  static constexpr int64_t kTileBytes = avx2::kBytesQ4_1;
  static constexpr int64_t kAhead = 4096;
  struct Packed : PackedBlocks<kTileBytes, 256> {
    __m512i Vector(int64_t b, int i) const {
      const __m512i nibbles = Load512(At(b) + 64 * (i % 4));
      return i < 4 ? LowNibbles(nibbles) : HighNibbles(nibbles);
    }
  };
  // float(B) of each block.
  static void Prepare(const int16_t* sums, int64_t n, uint32_t* prep) {
    for (int64_t b = 0; b < n; ++b) {
      const float sum = static_cast<float>(sums[b]);
      __builtin_memcpy(prep + b, &sum, sizeof(sum));
    }
  }
  template <int kRows, int kTiles, class Source>
  static void AddMins(const Source* source, const ActChunk& x, int64_t b,
                      __m512 acc[kRows][kTiles]) {
    __m512 min[kTiles];
#pragma GCC unroll 2
    for (int g = 0; g < kTiles; ++g) min[g] = source[g].Min(b);
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) {
      const __m512 dx = _mm512_set1_ps(x.scale[m * x.scale_stride + b]);
      const __m512 sum = _mm512_castsi512_ps(Broadcast32(x.prep + m * x.prep_stride + b));
#pragma GCC unroll 2
      for (int g = 0; g < kTiles; ++g) {
        acc[m][g] = _mm512_fmadd_ps(sum, _mm512_mul_ps(min[g], dx), acc[m][g]);
      }
    }
  }
  template <int kRows, int kTiles, class Source>
  [[gnu::noinline]] static void Pass(const Source* source, int64_t num_blocks, const ActChunk& x,
                                     const OutChunk& out) {
    __m512 acc[kRows][kTiles];
    LoadAcc<kRows, kTiles>(out, acc);
    for (int64_t b = 0; b < num_blocks; ++b) {
      for (int g = 0; g < kTiles; ++g) source[g].Ahead(b);
      __m512i t[kRows][kTiles];
      Zero<kRows, kTiles>(t);
      AddProducts<kRows, kTiles>(source, x, b, t);
      __m512 d[kTiles];
      Scales<kTiles>(source, b, d);
      AddBlock<kRows, kTiles>(x, b, d, t, acc);
      AddMins<kRows, kTiles>(source, x, b, acc);
    }
    StoreAcc<kRows, kTiles>(out, acc);
  }
};

}  // namespace

void MatmulQ5_0(const MatmulArgs& args) { BlockedMatmul<FormatQ5_0>(args); }
void MatmulQ4_1(const MatmulArgs& args) { BlockedMatmul<FormatQ4_1>(args); }
void MatmulQ8_0(const MatmulArgs& args) { BlockedMatmul<FormatQ8_0>(args); }

}  // namespace vericache::avx512
