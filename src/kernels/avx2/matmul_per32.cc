// Q5_0, Q4_1 and Q8_0 weights times int8 activations with a scale per 32 values.
#include "kernels/avx2/blocked.h"

namespace vericache::avx2 {
namespace {

inline __m256i LowNibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline __m256i HighNibbles(__m256i v) { return LowNibbles(_mm256_srli_epi16(v, 4)); }

struct FormatQ5_0 {
  static constexpr bool kUnpack = true;
  static constexpr int kBlock = 32, kSumBlock = 32;
  static constexpr int64_t kTileBytes = kBytesQ5_0, kAheadBytes = 2048;
  static constexpr bool kAheadNear = false;
  struct Tile {
    uint8_t codes[kChunkCols / 32][8][2][32];  // [block][k group][group]
    float d[kChunkCols / 32][16];
  };

  // Codes of k groups i and i + 4.
  static __m256i LowCode(__m256i nibbles, __m256i high, int i) {
    const __m256i fifth = _mm256_and_si256(_mm256_slli_epi16(high, 4 - i), _mm256_set1_epi8(16));
    return _mm256_or_si256(LowNibbles(nibbles), fifth);
  }
  static __m256i HighCode(__m256i nibbles, __m256i high, int i) {
    const __m256i fifth = _mm256_and_si256(_mm256_srli_epi16(high, i), _mm256_set1_epi8(16));
    return _mm256_or_si256(HighNibbles(nibbles), fifth);
  }
  [[gnu::noinline]] static void Unpack(const uint8_t* src, int num_blocks, Tile* tile) {
    for (int b = 0; b < num_blocks; ++b, src += kTileBytes) {
      for (int g = 0; g < 2; ++g) {
        const __m256i high = Load256(src + 256 + 32 * g);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const __m256i nibbles = Load256(src + (2 * i + g) * 32);
          Store256(tile->codes[b][i][g], LowCode(nibbles, high, i));
          Store256(tile->codes[b][i + 4][g], HighCode(nibbles, high, i));
        }
      }
      _mm256_store_ps(tile->d[b], LoadHalf8(src + 320));
      _mm256_store_ps(tile->d[b] + 8, LoadHalf8(src + 336));
    }
  }
  [[gnu::noinline]] static void Prepare(const int8_t* q, const int16_t*, int num_blocks,
                                        uint32_t* prep) {
    for (int b = 0; b < num_blocks; ++b) {
      uint32_t lower, upper;
      LaneSums(Load256(q + 32 * b), &lower, &upper);
      prep[b] = NegateShifted(AddHalves(lower, upper), 4);
    }
  }
  template <int kRows>
  static void Begin(const ActChunk& x, int b, __m256i t[kRows][2]) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) t[m][0] = t[m][1] = Broadcast32(x.prep + m * x.prep_stride + b);
  }
  template <int kRows>
  static void Finish(const ActChunk& x, int b, __m256 d0, __m256 d1, const __m256i t[kRows][2],
                     __m256 acc[kRows][2]) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m256 dx = _mm256_broadcast_ss(x.scale + m * x.scale_stride + b);
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        const __m256 s = _mm256_cvtepi32_ps(_mm256_madd_epi16(t[m][g], _mm256_set1_epi16(1)));
        acc[m][g] = _mm256_fmadd_ps(s, _mm256_mul_ps(g == 0 ? d0 : d1, dx), acc[m][g]);
      }
    }
  }
  template <int kRows>
  [[gnu::noinline]] static void Rows(const Tile& tile, int num_blocks, const ActChunk& x,
                                     const OutChunk& out, const Ahead& ahead) {
    __m256 acc[kRows][2];
    LoadAcc<kRows>(out, acc);
    for (int b = 0; b < num_blocks; ++b) {
      ahead.Fetch(b * kTileBytes, 0, 1);
      __m256i t[kRows][2];
      Begin<kRows>(x, b, t);
      AddProducts<kRows, 8>(tile.codes[b], x.q + 32 * b, x.q_stride, t);
      Finish<kRows>(x, b, _mm256_load_ps(tile.d[b]), _mm256_load_ps(tile.d[b] + 8), t, acc);
    }
    StoreAcc<kRows>(out, acc);
  }
  template <int kRows>
  [[gnu::noinline]] static void Rows(const uint8_t* src, int num_blocks, const ActChunk& x,
                                     const OutChunk& out, const Ahead& ahead) {
    __m256 acc[kRows][2];
    LoadAcc<kRows>(out, acc);
    for (int b = 0; b < num_blocks; ++b, src += kTileBytes) {
      ahead.Fetch(b * kTileBytes, 0, 1);
      __m256i t[kRows][2];
      Begin<kRows>(x, b, t);
      const int8_t* q = x.q + 32 * b;
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        const __m256i high = Load256(src + 256 + 32 * g);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const __m256i nibbles = Load256(src + (2 * i + g) * 32);
          AddVector<kRows>(LowCode(nibbles, high, i), g, q + 4 * i, x.q_stride, t);
          AddVector<kRows>(HighCode(nibbles, high, i), g, q + 16 + 4 * i, x.q_stride, t);
        }
      }
      Finish<kRows>(x, b, LoadHalf8(src + 320), LoadHalf8(src + 336), t, acc);
    }
    StoreAcc<kRows>(out, acc);
  }
};

struct FormatQ4_1 {
  static constexpr bool kUnpack = false;
  static constexpr int kBlock = 32, kSumBlock = 32;
  static constexpr int64_t kTileBytes = kBytesQ4_1, kAheadBytes = 2048;
  static constexpr bool kAheadNear = false;
  // float(B) of each block.
  static void Prepare(const int8_t*, const int16_t* sums, int num_blocks, uint32_t* prep) {
    for (int b = 0; b < num_blocks; ++b) {
      const float sum = static_cast<float>(sums[b]);
      __builtin_memcpy(prep + b, &sum, sizeof(sum));
    }
  }
  // d: two vectors of scales, then two of minima.
  template <int kRows>
  static void Finish(const ActChunk& x, int b, const __m256 d[4], const __m256i t[kRows][2],
                     __m256 acc[kRows][2]) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m256 dx = _mm256_broadcast_ss(x.scale + m * x.scale_stride + b);
      const __m256 sum = _mm256_castsi256_ps(Broadcast32(x.prep + m * x.prep_stride + b));
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        const __m256 s = _mm256_cvtepi32_ps(_mm256_madd_epi16(t[m][g], _mm256_set1_epi16(1)));
        acc[m][g] = _mm256_fmadd_ps(s, _mm256_mul_ps(d[g], dx), acc[m][g]);
        acc[m][g] = _mm256_fmadd_ps(sum, _mm256_mul_ps(d[2 + g], dx), acc[m][g]);
      }
    }
  }
  template <int kRows>
  [[gnu::noinline]] static void Rows(const uint8_t* src, int num_blocks, const ActChunk& x,
                                     const OutChunk& out, const Ahead& ahead) {
    __m256 acc[kRows][2];
    LoadAcc<kRows>(out, acc);
    for (int b = 0; b < num_blocks; ++b, src += kTileBytes) {
      ahead.Fetch(b * kTileBytes, 0, 1);
      __m256i t[kRows][2];
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) t[m][0] = t[m][1] = _mm256_setzero_si256();
      const int8_t* q = x.q + 32 * b;
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const __m256i nibbles = Load256(src + i * 32);
        AddVector<kRows>(LowNibbles(nibbles), i % 2, q + i / 2 * 4, x.q_stride, t);
        AddVector<kRows>(HighNibbles(nibbles), i % 2, q + 16 + i / 2 * 4, x.q_stride, t);
      }
      const __m256 d[4] = {LoadHalf8(src + 256), LoadHalf8(src + 272), LoadHalf8(src + 288),
                           LoadHalf8(src + 304)};
      Finish<kRows>(x, b, d, t, acc);
    }
    StoreAcc<kRows>(out, acc);
  }
};

// |w| * sign(x, w): a pair sums to at most 2*128*127 = 32,512, so every pair is widened on its own.
// In assembly for the reason given at AddPairs.
inline void AddSigned(__m256i w, __m256i magnitude, __m256i x, __m256i ones, __m256i* s) {
  __m256i tmp;
  __asm__("vpsignb %2, %4, %1\n\tvpmaddubsw %1, %3, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
          : "+x"(*s), "=&x"(tmp)
          : "x"(w), "x"(magnitude), "x"(x), "x"(ones));
}

struct FormatQ8_0 {
  static constexpr bool kUnpack = false;
  static constexpr int kBlock = 32, kSumBlock = 32;
  static constexpr int64_t kTileBytes = kBytesQ8_0, kAheadBytes = 2048;
  static constexpr bool kAheadNear = false;
  static void Prepare(const int8_t*, const int16_t*, int, uint32_t*) {}
  // codes: [8][2][32]; d0, d1: scales of the two groups.
  template <int kRows>
  static void Block(const uint8_t* codes, __m256 d0, __m256 d1, const ActChunk& x, int b,
                    __m256 acc[kRows][2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i s[kRows][2];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) s[m][0] = s[m][1] = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m256i w = Load256(codes + 32 * i);
      const __m256i magnitude = _mm256_abs_epi8(w);  // -128 becomes 128, unsigned
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const __m256i q = Broadcast32(x.q + m * x.q_stride + 32 * b + i / 2 * 4);
        AddSigned(w, magnitude, q, ones, &s[m][i % 2]);
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m256 dx = _mm256_broadcast_ss(x.scale + m * x.scale_stride + b);
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        const __m256 d = _mm256_mul_ps(g == 0 ? d0 : d1, dx);
        acc[m][g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[m][g]), d, acc[m][g]);
      }
    }
  }
  template <int kRows>
  [[gnu::noinline]] static void Rows(const uint8_t* src, int num_blocks, const ActChunk& x,
                                     const OutChunk& out, const Ahead& ahead) {
    __m256 acc[kRows][2];
    LoadAcc<kRows>(out, acc);
    for (int b = 0; b < num_blocks; ++b, src += kTileBytes) {
      ahead.Fetch(b * kTileBytes, 0, 1);
      Block<kRows>(src, LoadHalf8(src + 512), LoadHalf8(src + 528), x, b, acc);
    }
    StoreAcc<kRows>(out, acc);
  }
};

}  // namespace

void MatmulQ5_0(const MatmulArgs& args) { BlockedMatmul<FormatQ5_0>(args); }
void MatmulQ4_1(const MatmulArgs& args) { BlockedMatmul<FormatQ4_1>(args); }
void MatmulQ8_0(const MatmulArgs& args) { BlockedMatmul<FormatQ8_0>(args); }

}  // namespace vericache::avx2
