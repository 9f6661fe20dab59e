// Q4_K and Q6_K weights times int8 activations with a scale per 256 values.
#include "kernels/avx512/blocked.h"
#include "kernels/avx512/matmul.h"

namespace vericache::avx512 {
namespace {

// s[m] += (scales of sub-block j of block b) * t[m].
template <int kRows, int kTiles, class Source>
inline void AddScaled(const Source* source, int64_t b, int j, const __m512i t[kRows][kTiles],
                      __m512i s[kRows][kTiles]) {
  __m512i scale[kTiles];
#pragma GCC unroll 2
  for (int g = 0; g < kTiles; ++g) scale[g] = source[g].Scale(b, j);
#pragma GCC unroll 12
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int g = 0; g < kTiles; ++g) {
      s[m][g] = _mm512_add_epi32(s[m][g], _mm512_mullo_epi32(t[m][g], scale[g]));
    }
  }
}
template <int kRows, int kTiles, class Source>
inline void AddBlockOf(const Source* source, const ActChunk& x, int64_t b,
                       const __m512i s[kRows][kTiles], __m512 acc[kRows][kTiles]) {
  __m512 d[kTiles];
#pragma GCC unroll 2
  for (int g = 0; g < kTiles; ++g) d[g] = source[g].D(b);
  AddBlock<kRows, kTiles>(x, b, d, s, acc);
}

struct FormatQ4_K {
  static constexpr int kBlock = 256, kSumBlock = 16;
  static constexpr int64_t kTileBytes = avx2::kBytesQ4_K;
  static constexpr int64_t kAhead = 4096;
  struct Packed {
    const uint8_t* data;
    int64_t ahead;
    const uint8_t* At(int64_t b) const { return data + b * kTileBytes; }
    // K group i of sub-block j.
    __m512i Vector(int64_t b, int j, int i) const {
      const __m512i nibbles = Load512(At(b) + 256 * j + 64 * (i % 4));
      return i < 4 ? LowNibbles(nibbles) : HighNibbles(nibbles);
    }
    __m512i Scale(int64_t b, int j) const {
      return _mm512_cvtepu8_epi32(Load128(At(b) + 2048 + 16 * j));
    }
    // Minima of sub-blocks 2j and 2j + 1 of each row, as int16.
    __m512i Mins(int64_t b, int j) const {
      return _mm512_cvtepu8_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(At(b) + 2176 + 32 * j)));
    }
    __m512 D(int64_t b) const { return LoadHalf16(At(b) + 2304); }
    __m512 DMin(int64_t b) const { return LoadHalf16(At(b) + 2336); }
    void Ahead(int64_t b, int j) const {
      if (ahead != 0) Fetch<kTileBytes / 8>(At(b) + ahead + kTileBytes / 8 * j);
    }
  };
  // Words 0 to 3 of a block (of 16): the activation sums of sub-blocks 2j and 2j + 1.
  static void Prepare(const int16_t* sums, int64_t n, uint32_t* prep) {
    for (int64_t b = 0; b < n; b += 16) {
      for (int64_t j = 0; j < 4; ++j) {
        const int16_t* four = sums + b + 4 * j;
        const uint32_t even = static_cast<uint32_t>(four[0] + four[1]);
        const uint32_t odd = static_cast<uint32_t>(four[2] + four[3]);
        prep[b + j] = (even & 0xffffu) | (odd << 16);
      }
    }
  }
  // acc -= float(M) * (dmin * dx), block b.
  template <int kRows, class Source>
  static void AddMins(const Source& source, const ActChunk& x, int64_t b, __m512* acc,
                      int acc_stride) {
    const __m512i mins[4] = {source.Mins(b, 0), source.Mins(b, 1), source.Mins(b, 2),
                             source.Mins(b, 3)};
    const __m512 dmin = source.DMin(b);
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) {
      const uint32_t* sums = x.prep + m * x.prep_stride + 16 * b;
      __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sum = _mm512_dpwssd_epi32(sum, mins[j], Broadcast32(sums + j));
      const __m512 dx = _mm512_set1_ps(x.scale[m * x.scale_stride + b]);
      __m512* a = acc + m * acc_stride;
      *a = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(dmin, dx), *a);
    }
  }
  template <int kRows, int kTiles, class Source>
  [[gnu::noinline]] static void Pass(const Source* source, int64_t num_blocks, const ActChunk& x,
                                     const OutChunk& out) {
    __m512 acc[kRows][kTiles];
    LoadAcc<kRows, kTiles>(out, acc);
    for (int64_t b = 0; b < num_blocks; ++b) {
      __m512i s[kRows][kTiles];
      Zero<kRows, kTiles>(s);
      for (int j = 0; j < 8; ++j) {
        for (int g = 0; g < kTiles; ++g) source[g].Ahead(b, j);
        __m512i t[kRows][kTiles];
        Zero<kRows, kTiles>(t);
#pragma GCC unroll 8
        for (int step = 0; step < 8; ++step) {
          const int i = step / 2 + 4 * (step % 2);  // i and i + 4 share their bytes
          __m512i codes[kTiles];
#pragma GCC unroll 2
          for (int g = 0; g < kTiles; ++g) codes[g] = source[g].Vector(b, j, i);
          AddVector<kRows, kTiles>(codes, x.q + 256 * b + 32 * j + 4 * i, x.q_stride, t);
        }
        AddScaled<kRows, kTiles>(source, b, j, t, s);
      }
      AddBlockOf<kRows, kTiles>(source, x, b, s, acc);
#pragma GCC unroll 2
      for (int g = 0; g < kTiles; ++g) AddMins<kRows>(source[g], x, b, &acc[0][g], kTiles);
    }
    StoreAcc<kRows, kTiles>(out, acc);
  }
};

struct FormatQ6_K {
  static constexpr int kBlock = 256, kSumBlock = 16;
  static constexpr int64_t kTileBytes = avx2::kBytesQ6_K;
  static constexpr int64_t kAhead = 8192;
  struct Packed {
    const uint8_t* data;
    int64_t ahead;
    const uint8_t* At(int64_t b) const { return data + b * kTileBytes; }
    // K group i of sub-block 2 * pair + u (of 16 values): low nibbles (u = 0) or high ones, and
    // two bits.
    __m512i Vector(int64_t b, int pair, int u, int i) const {
      const __m512i nibbles = Load512(At(b) + 256 * pair + 64 * i);
      const __m512i bits = Load512(At(b) + 2048 + 128 * pair + 64 * u);
      const __m512i shifted = i < 2    ? _mm512_slli_epi16(bits, 4 - 2 * i)
                              : i == 2 ? bits
                                       : _mm512_srli_epi16(bits, 2);
      const __m512i upper = _mm512_and_si512(shifted, _mm512_set1_epi8(0x30));
      return _mm512_ternarylogic_epi32(u == 0 ? nibbles : _mm512_srli_epi16(nibbles, 4),
                                       _mm512_set1_epi8(15), upper, 0xea);
    }
    __m512i Scale(int64_t b, int j) const {
      return _mm512_cvtepi8_epi32(Load128(At(b) + 3072 + 16 * j));
    }
    __m512 D(int64_t b) const { return LoadHalf16(At(b) + 3328); }
    void Ahead(int64_t b, int pair) const {
      if (ahead != 0) Fetch<kTileBytes / 8>(At(b) + ahead + kTileBytes / 8 * pair);
    }
  };
  static void Prepare(const int16_t* sums, int64_t n, uint32_t* prep) {
    for (int64_t j = 0; j < n; ++j) prep[j] = static_cast<uint32_t>(-32 * sums[j]);
  }
  template <int kRows, int kTiles, class Source>
  [[gnu::noinline]] static void Pass(const Source* source, int64_t num_blocks, const ActChunk& x,
                                     const OutChunk& out) {
    __m512 acc[kRows][kTiles];
    LoadAcc<kRows, kTiles>(out, acc);
    for (int64_t b = 0; b < num_blocks; ++b) {
      __m512i s[kRows][kTiles];
      Zero<kRows, kTiles>(s);
      for (int pair = 0; pair < 8; ++pair) {
        for (int g = 0; g < kTiles; ++g) source[g].Ahead(b, pair);
#pragma GCC unroll 2
        for (int u = 0; u < 2; ++u) {
          __m512i t[kRows][kTiles];
          Begin<kRows, kTiles>(x, 16 * b + 2 * pair + u, t);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            __m512i codes[kTiles];
#pragma GCC unroll 2
            for (int g = 0; g < kTiles; ++g) codes[g] = source[g].Vector(b, pair, u, i);
            AddVector<kRows, kTiles>(codes, x.q + 256 * b + 32 * pair + 16 * u + 4 * i, x.q_stride,
                                     t);
          }
          AddScaled<kRows, kTiles>(source, b, 2 * pair + u, t, s);
        }
      }
      AddBlockOf<kRows, kTiles>(source, x, b, s, acc);
    }
    StoreAcc<kRows, kTiles>(out, acc);
  }
};

}  // namespace

void MatmulQ4_K(const MatmulArgs& args) { BlockedMatmul<FormatQ4_K>(args); }
void MatmulQ6_K(const MatmulArgs& args) { BlockedMatmul<FormatQ6_K>(args); }

}  // namespace vericache::avx512
