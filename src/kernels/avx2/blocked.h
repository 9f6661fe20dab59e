// The loop around the quantised kernels for several rows of activations (internal to avx2/).
//
// Weights of one tile x 1,024 columns are unpacked once to bytes that stay in the first-level cache
// and meet all rows there. Each output's FMA chain runs over k in order: it is parked in y between
// two column chunks, which changes no bit.
//
// Offsets. Q5_0 and Q6_K have signed weights code - 16 and code - 32, but vpmaddubsw wants unsigned
// ones. An int16 lane sums 16 (Q5_0) or 8 (Q6_K) products, at most 16*16*127 = 8*32*127 = 32,512 in
// magnitude for the signed weights. So the lane starts at -offset * (sum of its activations) and
// adds the unsigned products modulo 2^16: steps may wrap, the end is the exact signed sum.
#pragma once

#include "kernels/avx2/weights.h"

namespace vericache::avx2 {
namespace {

constexpr int kChunkCols = 1024;
constexpr int kChunkRows = 96;
constexpr int kPrepWords = kChunkCols / 16;

// A chunk of activations of some rows, all pointers at the chunk's first column.
struct ActChunk {
  const int8_t* q;
  int64_t q_stride;
  const float* scale;
  int64_t scale_stride;
  const uint32_t* prep;  // [rows][kPrepWords], what Format::Prepare wrote

  ActChunk Skip(int64_t rows) const {
    return {q + rows * q_stride, q_stride, scale + rows * scale_stride, scale_stride,
            prep + rows * kPrepWords};
  }
};

// Where the outputs of one tile go.
struct OutChunk {
  float* y;  // row 0, first output of the tile
  int64_t ldy;
  bool first;  // first column chunk: the chains start at zero
  TileMask mask;

  OutChunk Skip(int64_t rows) const { return {y + rows * ldy, ldy, first, mask}; }
};

template <int kRows>
inline void LoadAcc(const OutChunk& out, __m256 acc[kRows][2]) {
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
      acc[m][g] = out.first ? _mm256_setzero_ps() : LoadOutputs(out.mask, out.y + m * out.ldy, g);
    }
  }
}
template <int kRows>
inline void StoreAcc(const OutChunk& out, const __m256 acc[kRows][2]) {
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) StoreOutputs(out.mask, out.y + m * out.ldy, g, acc[m][g]);
  }
}

// Sums of the activations each of the two int16 lanes of a broadcast meets in 16 values:
// k % 4 in {0, 1} in the low half of the word, {2, 3} in the high half. Two words for 32 values.
inline void LaneSums(__m256i codes, uint32_t* lower, uint32_t* upper) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
  const __m256i twos = _mm256_add_epi16(pairs, _mm256_srli_si256(pairs, 8));
  const __m256i ones = _mm256_add_epi16(twos, _mm256_srli_si256(twos, 4));
  *lower = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm256_castsi256_si128(ones)));
  *upper = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm256_extracti128_si256(ones, 1)));
}
// Both int16 halves of the word times -(1 << shift), modulo 2^16.
inline uint32_t NegateShifted(uint32_t word, int shift) {
  const uint32_t low = (0u - (word << shift)) & 0xffffu;
  const uint32_t high = (0u - ((word >> 16) << shift)) & 0xffffu;
  return low | (high << 16);
}
inline uint32_t AddHalves(uint32_t a, uint32_t b) {
  return ((a + b) & 0xffffu) | (((a >> 16) + (b >> 16)) << 16);
}

// Format: kBlock, kSumBlock (values per entry of Activations::sums), kTileBytes, kRowTile, a Tile
// of unpacked weights, Unpack, Prepare and Rows<kRows>.
template <class Format>
void RunTile(const typename Format::Tile& tile, int num_blocks, ActChunk x, int num_rows,
             OutChunk out) {
  for (; num_rows >= Format::kRowTile; num_rows -= Format::kRowTile) {
    Format::template Rows<Format::kRowTile>(tile, num_blocks, x, out);
    x = x.Skip(Format::kRowTile);
    out = out.Skip(Format::kRowTile);
  }
  if (num_rows >= 2) {
    Format::template Rows<2>(tile, num_blocks, x, out);
    x = x.Skip(2);
    out = out.Skip(2);
    num_rows -= 2;
  }
  if (num_rows == 1) Format::template Rows<1>(tile, num_blocks, x, out);
}

template <class Format>
void BlockedMatmul(const MatmulArgs& args) {
  const Activations& x = args.x;
  const int64_t row_blocks = x.cols / Format::kBlock;
  alignas(64) typename Format::Tile tile;
  alignas(64) uint32_t prep[kChunkRows * kPrepWords];
  for (int64_t row = 0; row < args.num_rows; row += kChunkRows) {
    const int rows = static_cast<int>(
        args.num_rows - row < kChunkRows ? args.num_rows - row : kChunkRows);
    for (int64_t k = 0; k < x.cols; k += kChunkCols) {
      const int cols = static_cast<int>(x.cols - k < kChunkCols ? x.cols - k : kChunkCols);
      const int num_blocks = cols / Format::kBlock;
      const ActChunk chunk = {x.q + row * x.cols + k, x.cols,
                              x.scale + row * row_blocks + k / Format::kBlock, row_blocks, prep};
      const int64_t sum_stride = x.cols / Format::kSumBlock;
      for (int r = 0; r < rows; ++r) {
        Format::Prepare(chunk.q + r * x.cols,
                        x.sums + (row + r) * sum_stride + k / Format::kSumBlock, num_blocks,
                        prep + r * kPrepWords);
      }
      for (int64_t o = args.out_begin; o < args.out_end; o += kTileRows) {
        const int64_t block = o / kTileRows * row_blocks + k / Format::kBlock;
        Format::Unpack(args.w.data + block * Format::kTileBytes, num_blocks, &tile);
        RunTile<Format>(tile, num_blocks, chunk, rows,
                        {args.y + row * args.ldy + o, args.ldy, k == 0, MaskFor(args.w.rows - o)});
      }
    }
  }
}

}  // namespace
}  // namespace vericache::avx2
