// Q5_0, Q4_1 and Q8_0 weights times int8 activations with a scale per 32 values.
#include "kernels/avx2/blocked.h"

namespace vericache::avx2 {
namespace {

constexpr int kChunkBlocks = kChunkCols / 32;

struct Tile32 {
  uint8_t codes[kChunkBlocks][8][2][32];  // [block][k group][group]
  float d[kChunkBlocks][16];
  float m[kChunkBlocks][16];  // Q4_1 only
};

inline void UnpackHalfs(const uint8_t* src, float dst[16]) {
  _mm256_store_ps(dst, LoadHalf8(src));
  _mm256_store_ps(dst + 8, LoadHalf8(src + 16));
}

// codes . x of one block for kRows rows, starting at t.
template <int kRows>
inline void AddProducts(const uint8_t codes[8][2][32], const int8_t* q, int64_t stride,
                        __m256i t[kRows][2]) {
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) {
    const __m256i w0 = Load256(codes[v][0]);
    const __m256i w1 = Load256(codes[v][1]);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m256i x = Broadcast32(q + m * stride + 4 * v);
      t[m][0] = _mm256_add_epi16(t[m][0], _mm256_maddubs_epi16(w0, x));
      t[m][1] = _mm256_add_epi16(t[m][1], _mm256_maddubs_epi16(w1, x));
    }
  }
}

struct FormatQ5_0 {
  static constexpr int kBlock = 32, kSumBlock = 32, kRowTile = 3;
  static constexpr int64_t kTileBytes = kBytesQ5_0;
  using Tile = Tile32;

  static void Unpack(const uint8_t* src, int num_blocks, Tile* tile) {
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i fifth = _mm256_set1_epi8(16);
    for (int b = 0; b < num_blocks; ++b, src += kTileBytes) {
      for (int g = 0; g < 2; ++g) {
        const __m256i high = Load256(src + 256 + 32 * g);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const __m256i nibbles = Load256(src + (2 * i + g) * 32);
          const __m256i h0 = _mm256_and_si256(_mm256_slli_epi16(high, 4 - i), fifth);
          const __m256i h1 = _mm256_and_si256(_mm256_srli_epi16(high, i), fifth);
          const __m256i c0 = _mm256_and_si256(nibbles, low);
          const __m256i c1 = _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), low);
          Store256(tile->codes[b][i][g], _mm256_or_si256(c0, h0));
          Store256(tile->codes[b][i + 4][g], _mm256_or_si256(c1, h1));
        }
      }
      UnpackHalfs(src + 320, tile->d[b]);
    }
  }
  static void Prepare(const int8_t* q, const int16_t*, int num_blocks, uint32_t* prep) {
    for (int b = 0; b < num_blocks; ++b) {
      uint32_t lower, upper;
      LaneSums(Load256(q + 32 * b), &lower, &upper);
      prep[b] = NegateShifted(AddHalves(lower, upper), 4);
    }
  }
  template <int kRows>
  static void Rows(const Tile& tile, int num_blocks, const ActChunk& x, const OutChunk& out) {
    __m256 acc[kRows][2];
    LoadAcc<kRows>(out, acc);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int b = 0; b < num_blocks; ++b) {
      __m256i t[kRows][2];
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) t[m][0] = t[m][1] = Broadcast32(x.prep + m * kPrepWords + b);
      AddProducts<kRows>(tile.codes[b], x.q + 32 * b, x.q_stride, t);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const __m256 dx = _mm256_broadcast_ss(x.scale + m * x.scale_stride + b);
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          const __m256 s = _mm256_cvtepi32_ps(_mm256_madd_epi16(t[m][g], ones));
          const __m256 d = _mm256_mul_ps(_mm256_load_ps(tile.d[b] + 8 * g), dx);
          acc[m][g] = _mm256_fmadd_ps(s, d, acc[m][g]);
        }
      }
    }
    StoreAcc<kRows>(out, acc);
  }
};

struct FormatQ4_1 {
  static constexpr int kBlock = 32, kSumBlock = 32, kRowTile = 3;
  static constexpr int64_t kTileBytes = kBytesQ4_1;
  using Tile = Tile32;

  static void Unpack(const uint8_t* src, int num_blocks, Tile* tile) {
    const __m256i low = _mm256_set1_epi8(15);
    for (int b = 0; b < num_blocks; ++b, src += kTileBytes) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const __m256i nibbles = Load256(src + i * 32);
        Store256(tile->codes[b][i / 2][i % 2], _mm256_and_si256(nibbles, low));
        Store256(tile->codes[b][i / 2 + 4][i % 2],
                 _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), low));
      }
      UnpackHalfs(src + 256, tile->d[b]);
      UnpackHalfs(src + 288, tile->m[b]);
    }
  }
  // float(B) of each block.
  static void Prepare(const int8_t*, const int16_t* sums, int num_blocks, uint32_t* prep) {
    for (int b = 0; b < num_blocks; ++b) {
      const float sum = static_cast<float>(sums[b]);
      __builtin_memcpy(prep + b, &sum, sizeof(sum));
    }
  }
  template <int kRows>
  static void Rows(const Tile& tile, int num_blocks, const ActChunk& x, const OutChunk& out) {
    __m256 acc[kRows][2];
    LoadAcc<kRows>(out, acc);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int b = 0; b < num_blocks; ++b) {
      __m256i t[kRows][2];
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) t[m][0] = t[m][1] = _mm256_setzero_si256();
      AddProducts<kRows>(tile.codes[b], x.q + 32 * b, x.q_stride, t);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const __m256 dx = _mm256_broadcast_ss(x.scale + m * x.scale_stride + b);
        const __m256 sum = _mm256_castsi256_ps(Broadcast32(x.prep + m * kPrepWords + b));
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          const __m256 s = _mm256_cvtepi32_ps(_mm256_madd_epi16(t[m][g], ones));
          const __m256 d = _mm256_mul_ps(_mm256_load_ps(tile.d[b] + 8 * g), dx);
          const __m256 min = _mm256_mul_ps(_mm256_load_ps(tile.m[b] + 8 * g), dx);
          acc[m][g] = _mm256_fmadd_ps(s, d, acc[m][g]);
          acc[m][g] = _mm256_fmadd_ps(sum, min, acc[m][g]);
        }
      }
    }
    StoreAcc<kRows>(out, acc);
  }
};

// |w| * sign(x, w): a pair sums to at most 2*128*127 = 32,512, so every pair is widened on its own.
struct FormatQ8_0 {
  static constexpr int kBlock = 32, kSumBlock = 32, kRowTile = 2;
  static constexpr int64_t kTileBytes = kBytesQ8_0;
  using Tile = Tile32;

  static void Unpack(const uint8_t* src, int num_blocks, Tile* tile) {
    for (int b = 0; b < num_blocks; ++b, src += kTileBytes) {
      __builtin_memcpy(tile->codes[b], src, 512);
      UnpackHalfs(src + 512, tile->d[b]);
    }
  }
  static void Prepare(const int8_t*, const int16_t*, int, uint32_t*) {}
  template <int kRows>
  static void Rows(const Tile& tile, int num_blocks, const ActChunk& x, const OutChunk& out) {
    __m256 acc[kRows][2];
    LoadAcc<kRows>(out, acc);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int b = 0; b < num_blocks; ++b) {
      __m256i s[kRows][2];
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) s[m][0] = s[m][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) {
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          const __m256i w = Load256(tile.codes[b][v][g]);
          const __m256i magnitude = _mm256_abs_epi8(w);  // -128 becomes 128, unsigned
#pragma GCC unroll 8
          for (int m = 0; m < kRows; ++m) {
            const __m256i q = Broadcast32(x.q + m * x.q_stride + 32 * b + 4 * v);
            const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(q, w));
            s[m][g] = _mm256_add_epi32(s[m][g], _mm256_madd_epi16(pairs, ones));
          }
        }
      }
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const __m256 dx = _mm256_broadcast_ss(x.scale + m * x.scale_stride + b);
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          const __m256 d = _mm256_mul_ps(_mm256_load_ps(tile.d[b] + 8 * g), dx);
          acc[m][g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[m][g]), d, acc[m][g]);
        }
      }
    }
    StoreAcc<kRows>(out, acc);
  }
};

}  // namespace

void MatmulQ5_0(const MatmulArgs& args) { BlockedMatmul<FormatQ5_0>(args); }
void MatmulQ4_1(const MatmulArgs& args) { BlockedMatmul<FormatQ4_1>(args); }
void MatmulQ8_0(const MatmulArgs& args) { BlockedMatmul<FormatQ8_0>(args); }

}  // namespace vericache::avx2
