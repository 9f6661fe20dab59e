// How the AVX2 units store weights, and the few helpers they share (internal to avx2/).
//
// A matrix is cut into tiles of 16 output rows, a tile into blocks of 32 or 256 columns; all bytes
// of one tile are contiguous, so a thread that owns outputs reads one stream. Within a tile, rows
// 0..7 are group 0 and rows 8..15 group 1. A "vector" holds the codes of 4 consecutive k for the 8
// rows of a group: byte 4 * row + k % 4. One broadcast of 4 activations meets it in one vpmaddubsw.
//
//   Q8_0  [8 vectors][group] int8, f16 d[16]
//   Q5_0  [4][group] nibbles, [group] high bits, f16 d[16]
//   Q4_1  [4][group] nibbles, f16 d[16], f16 m[16]
//   Q4_K  [8 sub-blocks][4][group] nibbles, u8 scale[8][16], u8 min[4][16 rows][2], f16 d[16],
//         f16 dmin[16]
//   Q6_K  [8][4][group] nibbles, [8][2][group] bit pairs, i8 scale[16][16], f16 d[16]
//   F32, F16, BF16  [cols][16]
// Nibbles of 32 columns: vector i (0..3) has the codes of k group i low, those of group i + 4 high.
// High bits of Q5_0: bit v of a byte belongs to k group v. Bit pairs of Q6_K: vector u, bits 2i and
// 2i + 1 belong to k group 4u + i.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace vericache::avx2 {

// Exported by pack.cc, quantize.cc, matmul_*.cc for FillMatmul.
size_t PackedBytes(TensorType type, int64_t rows, int64_t cols);
void Pack(TensorType type, int64_t rows, int64_t cols, const uint8_t* src, uint8_t* dst,
          int64_t row_begin, int64_t row_end);
void QuantizePer32(const float* x, int64_t n, int8_t* q, float* scale, int16_t* sums);
void QuantizePer256(const float* x, int64_t n, int8_t* q, float* scale, int16_t* sums);

// What every matmul function takes; the same as KernelTable::matmul's arguments.
struct MatmulArgs {
  const PackedMatrix& w;
  const Activations& x;
  int64_t num_rows;
  int64_t out_begin;
  int64_t out_end;
  float* y;
  int64_t ldy;
};
void MatmulQ8_0(const MatmulArgs& args);
void MatmulQ5_0(const MatmulArgs& args);
void MatmulQ4_1(const MatmulArgs& args);
void MatmulQ4_K(const MatmulArgs& args);
void MatmulQ6_K(const MatmulArgs& args);

namespace {

constexpr int64_t kTileRows = 16;
static_assert(kTileRows == kOutTile);

// Bytes of one tile's block, and where its parts begin.
constexpr int64_t kBytesQ8_0 = 512 + 32;
constexpr int64_t kBytesQ5_0 = 256 + 64 + 32;
constexpr int64_t kBytesQ4_1 = 256 + 32 + 32;
constexpr int64_t kBytesQ4_K = 2048 + 128 + 128 + 32 + 32;
constexpr int64_t kBytesQ6_K = 2048 + 1024 + 256 + 32;

inline __m256i Load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m128i Load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline void Store256(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
inline __m256 LoadHalf8(const void* p) { return _mm256_cvtph_ps(Load128(p)); }

// Four bytes, or a pair of int16, in every 32-bit lane.
inline __m256i Broadcast32(const void* p) {
  int32_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return _mm256_set1_epi32(bits);
}

// A chunk of activations of some rows, all pointers at the chunk's first column.
struct ActChunk {
  const int8_t* q;
  int64_t q_stride;
  const float* scale;
  int64_t scale_stride;
  const uint32_t* prep;  // what Format::Prepare wrote
  int64_t prep_stride;

  ActChunk Skip(int64_t rows) const {
    return {q + rows * q_stride,       q_stride,   scale + rows * scale_stride, scale_stride,
            prep + rows * prep_stride, prep_stride};
  }
};

// The outputs of one tile that exist. A tile is whole but at the end of a matrix whose rows are no
// multiple of 16; only then does the slow masked form run.
struct TileMask {
  bool whole;
  __m256i lanes[2];
};
inline TileMask MaskFor(int64_t rows_left) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int left = rows_left < 16 ? static_cast<int>(rows_left) : 16;
  return {left == 16,
          {_mm256_cmpgt_epi32(_mm256_set1_epi32(left), index),
           _mm256_cmpgt_epi32(_mm256_set1_epi32(left - 8), index)}};
}
inline __m256 LoadOutputs(const TileMask& mask, const float* y, int group) {
  if (mask.whole) [[likely]]
    return _mm256_loadu_ps(y + 8 * group);
  return _mm256_maskload_ps(y + 8 * group, mask.lanes[group]);
}
inline void StoreOutputs(const TileMask& mask, float* y, int group, __m256 value) {
  if (mask.whole) [[likely]] {
    _mm256_storeu_ps(y + 8 * group, value);
  } else {
    _mm256_maskstore_ps(y + 8 * group, mask.lanes[group], value);
  }
}

}  // namespace
}  // namespace vericache::avx2
