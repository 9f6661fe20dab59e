// Q4_K and Q6_K weights times int8 activations with a scale per 256 values.
#include "kernels/avx2/blocked.h"

namespace vericache::avx2 {
namespace {

constexpr int kChunkBlocks = kChunkCols / 256;

// (scale, scale) as int16 for 8 rows, from 8 signed bytes.
inline __m256i PairsOf(const uint8_t* src) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(src));
  return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(bytes, bytes));
}
inline void UnpackHalfs(const uint8_t* src, float dst[16]) {
  _mm256_store_ps(dst, LoadHalf8(src));
  _mm256_store_ps(dst + 8, LoadHalf8(src + 16));
}

inline __m256i LowNibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline __m256i HighNibbles(__m256i v) { return LowNibbles(_mm256_srli_epi16(v, 4)); }

template <int kRows>
inline void Zero(__m256i t[kRows][2]) {
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) t[m][0] = t[m][1] = _mm256_setzero_si256();
}
// s[m] += scales of group g * t[m].
template <int kRows>
inline void AddScaled(__m256i scale, int g, const __m256i t[kRows][2], __m256i s[kRows][2]) {
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    s[m][g] = _mm256_add_epi32(s[m][g], _mm256_madd_epi16(t[m][g], scale));
  }
}
// acc += float(s) * (d * dx), block b.
template <int kRows>
inline void AddBlock(const ActChunk& x, int b, int g, __m256 d, const __m256i s[kRows][2],
                     __m256 acc[kRows][2]) {
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    const __m256 dx = _mm256_broadcast_ss(x.scale + m * x.scale_stride + b);
    acc[m][g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[m][g]), _mm256_mul_ps(d, dx), acc[m][g]);
  }
}

struct FormatQ4_K {
  static constexpr bool kUnpack = true;
  static constexpr int kBlock = 256, kSumBlock = 16;
  static constexpr int64_t kTileBytes = kBytesQ4_K, kAheadBytes = 4096;
  static constexpr bool kAheadNear = false;
  struct Tile {
    uint8_t codes[kChunkBlocks][8][8][2][32];  // [block][sub-block][k group][group]
    int16_t scale[kChunkBlocks][8][2][16];     // each twice: one for each int16 lane
    int16_t min[kChunkBlocks][4][2][16];       // sub-blocks 2j and 2j + 1 of each row
    float d[kChunkBlocks][16];
    float dmin[kChunkBlocks][16];
  };

  [[gnu::noinline]] static void Unpack(const uint8_t* src, int num_blocks, Tile* tile) {
    for (int b = 0; b < num_blocks; ++b, src += kTileBytes) {
      for (int j = 0; j < 8; ++j) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          const __m256i nibbles = Load256(src + 256 * j + 32 * i);
          Store256(tile->codes[b][j][i / 2][i % 2], LowNibbles(nibbles));
          Store256(tile->codes[b][j][i / 2 + 4][i % 2], HighNibbles(nibbles));
        }
        Store256(tile->scale[b][j][0], PairsOf(src + 2048 + 16 * j));
        Store256(tile->scale[b][j][1], PairsOf(src + 2048 + 16 * j + 8));
      }
      for (int j = 0; j < 8; ++j) {
        Store256(tile->min[b][j / 2][j % 2], _mm256_cvtepu8_epi16(Load128(src + 2176 + 16 * j)));
      }
      UnpackHalfs(src + 2304, tile->d[b]);
      UnpackHalfs(src + 2336, tile->dmin[b]);
    }
  }
  // Word j: the activation sums of sub-blocks 2j and 2j + 1.
  [[gnu::noinline]] static void Prepare(const int8_t*, const int16_t* sums, int num_blocks,
                                        uint32_t* prep) {
    for (int j = 0; j < 4 * num_blocks; ++j, sums += 4) {
      const uint32_t even = static_cast<uint32_t>(sums[0] + sums[1]);
      const uint32_t odd = static_cast<uint32_t>(sums[2] + sums[3]);
      prep[j] = (even & 0xffffu) | (odd << 16);
    }
  }
  // acc -= float(M) * (dmin * dx), block b; mins: vectors of sub-block pairs.
  template <int kRows>
  static void AddMins(const ActChunk& x, int b, int g, __m256 dmin, const __m256i mins[4],
                      __m256 acc[kRows][2]) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m256 dx = _mm256_broadcast_ss(x.scale + m * x.scale_stride + b);
      __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m256i sums = Broadcast32(x.prep + m * x.prep_stride + 4 * b + j);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(mins[j], sums));
      }
      acc[m][g] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(dmin, dx), acc[m][g]);
    }
  }
  template <int kRows>
  [[gnu::noinline]] static void Rows(const Tile& tile, int num_blocks, const ActChunk& x,
                                     const OutChunk& out, const Ahead& ahead) {
    __m256 acc[kRows][2];
    LoadAcc<kRows>(out, acc);
    for (int b = 0; b < num_blocks; ++b) {
      __m256i s[kRows][2];
      Zero<kRows>(s);
      for (int j = 0; j < 8; ++j) {
        ahead.Fetch(b * kTileBytes, j, 8);
        __m256i t[kRows][2];
        Zero<kRows>(t);
        AddProducts<kRows, 8>(tile.codes[b][j], x.q + 256 * b + 32 * j, x.q_stride, t);
        AddScaled<kRows>(Load256(tile.scale[b][j][0]), 0, t, s);
        AddScaled<kRows>(Load256(tile.scale[b][j][1]), 1, t, s);
      }
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        AddBlock<kRows>(x, b, g, _mm256_load_ps(tile.d[b] + 8 * g), s, acc);
        const __m256i mins[4] = {Load256(tile.min[b][0][g]), Load256(tile.min[b][1][g]),
                                 Load256(tile.min[b][2][g]), Load256(tile.min[b][3][g])};
        AddMins<kRows>(x, b, g, _mm256_load_ps(tile.dmin[b] + 8 * g), mins, acc);
      }
    }
    StoreAcc<kRows>(out, acc);
  }
  template <int kRows>
  [[gnu::noinline]] static void Rows(const uint8_t* src, int num_blocks, const ActChunk& x,
                                     const OutChunk& out, const Ahead& ahead) {
    __m256 acc[kRows][2];
    LoadAcc<kRows>(out, acc);
    for (int b = 0; b < num_blocks; ++b, src += kTileBytes) {
      __m256i s[kRows][2];
      Zero<kRows>(s);
      for (int j = 0; j < 8; ++j) {
        ahead.Fetch(b * kTileBytes, j, 8);
        __m256i t[kRows][2];
        Zero<kRows>(t);
        const int8_t* q = x.q + 256 * b + 32 * j;
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          const __m256i nibbles = Load256(src + 256 * j + 32 * i);
          AddVector<kRows>(LowNibbles(nibbles), i % 2, q + i / 2 * 4, x.q_stride, t);
          AddVector<kRows>(HighNibbles(nibbles), i % 2, q + 16 + i / 2 * 4, x.q_stride, t);
        }
        AddScaled<kRows>(PairsOf(src + 2048 + 16 * j), 0, t, s);
        AddScaled<kRows>(PairsOf(src + 2056 + 16 * j), 1, t, s);
      }
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        AddBlock<kRows>(x, b, g, LoadHalf8(src + 2304 + 16 * g), s, acc);
        __m256i mins[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          mins[j] = _mm256_cvtepu8_epi16(Load128(src + 2176 + 32 * j + 16 * g));
        }
        AddMins<kRows>(x, b, g, LoadHalf8(src + 2336 + 16 * g), mins, acc);
      }
    }
    StoreAcc<kRows>(out, acc);
  }
};

struct FormatQ6_K {
  static constexpr bool kUnpack = true;
  static constexpr int kBlock = 256, kSumBlock = 16;
  static constexpr int64_t kTileBytes = kBytesQ6_K, kAheadBytes = 8192;
  static constexpr bool kAheadNear = true;
  struct Tile {
    uint8_t codes[kChunkBlocks][16][4][2][32];  // [block][sub-block of 16][k group][group]
    int16_t scale[kChunkBlocks][16][2][16];     // each twice
    float d[kChunkBlocks][16];
  };

  // codes of k group i (low nibbles, bit pairs of vector u = 0) or i + 4 (high nibbles, u = 1).
  static __m256i Code(__m256i nibbles, __m256i pairs, int i) {
    const __m256i shifted =
        i < 2 ? _mm256_slli_epi16(pairs, 4 - 2 * i) : _mm256_srli_epi16(pairs, 2 * i - 4);
    return _mm256_or_si256(_mm256_and_si256(nibbles, _mm256_set1_epi8(15)),
                           _mm256_and_si256(shifted, _mm256_set1_epi8(0x30)));
  }
  [[gnu::noinline]] static void Unpack(const uint8_t* src, int num_blocks, Tile* tile) {
    for (int b = 0; b < num_blocks; ++b, src += kTileBytes) {
      for (int j = 0; j < 8; ++j) {
        for (int g = 0; g < 2; ++g) {
          const __m256i pairs0 = Load256(src + 2048 + 128 * j + 32 * g);
          const __m256i pairs1 = Load256(src + 2048 + 128 * j + 64 + 32 * g);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const __m256i nibbles = Load256(src + 256 * j + (2 * i + g) * 32);
            Store256(tile->codes[b][2 * j][i][g], Code(nibbles, pairs0, i));
            Store256(tile->codes[b][2 * j + 1][i][g],
                     Code(_mm256_srli_epi16(nibbles, 4), pairs1, i));
          }
        }
      }
      for (int j = 0; j < 32; ++j) {
        Store256(tile->scale[b][j / 2][j % 2], PairsOf(src + 3072 + 8 * j));
      }
      UnpackHalfs(src + 3328, tile->d[b]);
    }
  }
  [[gnu::noinline]] static void Prepare(const int8_t* q, const int16_t*, int num_blocks,
                                        uint32_t* prep) {
    for (int j = 0; j < 8 * num_blocks; ++j) {
      uint32_t lower, upper;
      LaneSums(Load256(q + 32 * j), &lower, &upper);
      prep[2 * j] = NegateShifted(lower, 5);
      prep[2 * j + 1] = NegateShifted(upper, 5);
    }
  }
  template <int kRows>
  static void Begin(const ActChunk& x, int j, __m256i t[kRows][2]) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) t[m][0] = t[m][1] = Broadcast32(x.prep + m * x.prep_stride + j);
  }
  template <int kRows>
  [[gnu::noinline]] static void Rows(const Tile& tile, int num_blocks, const ActChunk& x,
                                     const OutChunk& out, const Ahead& ahead) {
    __m256 acc[kRows][2];
    LoadAcc<kRows>(out, acc);
    for (int b = 0; b < num_blocks; ++b) {
      __m256i s[kRows][2];
      Zero<kRows>(s);
      for (int j = 0; j < 16; ++j) {
        ahead.Fetch(b * kTileBytes, j, 16);
        __m256i t[kRows][2];
        Begin<kRows>(x, 16 * b + j, t);
        AddProducts<kRows, 4>(tile.codes[b][j], x.q + 256 * b + 16 * j, x.q_stride, t);
        AddScaled<kRows>(Load256(tile.scale[b][j][0]), 0, t, s);
        AddScaled<kRows>(Load256(tile.scale[b][j][1]), 1, t, s);
      }
      AddBlock<kRows>(x, b, 0, _mm256_load_ps(tile.d[b]), s, acc);
      AddBlock<kRows>(x, b, 1, _mm256_load_ps(tile.d[b] + 8), s, acc);
    }
    StoreAcc<kRows>(out, acc);
  }
  template <int kRows>
  [[gnu::noinline]] static void Rows(const uint8_t* src, int num_blocks, const ActChunk& x,
                                     const OutChunk& out, const Ahead& ahead) {
    __m256 acc[kRows][2];
    LoadAcc<kRows>(out, acc);
    for (int b = 0; b < num_blocks; ++b, src += kTileBytes) {
      __m256i s[kRows][2];
      Zero<kRows>(s);
      for (int j = 0; j < 8; ++j) {
        ahead.Fetch(b * kTileBytes, j, 8);
        const int8_t* q = x.q + 256 * b + 32 * j;
        __m256i lower[kRows][2], upper[kRows][2];  // sub-blocks 2j and 2j + 1
        Begin<kRows>(x, 16 * b + 2 * j, lower);
        Begin<kRows>(x, 16 * b + 2 * j + 1, upper);
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          const __m256i pairs0 = Load256(src + 2048 + 128 * j + 32 * g);
          const __m256i pairs1 = Load256(src + 2048 + 128 * j + 64 + 32 * g);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const __m256i nibbles = Load256(src + 256 * j + (2 * i + g) * 32);
            AddVector<kRows>(Code(nibbles, pairs0, i), g, q + 4 * i, x.q_stride, lower);
            AddVector<kRows>(Code(_mm256_srli_epi16(nibbles, 4), pairs1, i), g, q + 16 + 4 * i,
                             x.q_stride, upper);
          }
          AddScaled<kRows>(PairsOf(src + 3072 + 32 * j + 8 * g), g, lower, s);
          AddScaled<kRows>(PairsOf(src + 3072 + 32 * j + 16 + 8 * g), g, upper, s);
        }
      }
      AddBlock<kRows>(x, b, 0, LoadHalf8(src + 3328), s, acc);
      AddBlock<kRows>(x, b, 1, LoadHalf8(src + 3344), s, acc);
    }
    StoreAcc<kRows>(out, acc);
  }
};

}  // namespace

void MatmulQ4_K(const MatmulArgs& args) { BlockedMatmul<FormatQ4_K>(args); }
void MatmulQ6_K(const MatmulArgs& args) { BlockedMatmul<FormatQ6_K>(args); }

}  // namespace vericache::avx2
