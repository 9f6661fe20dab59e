// The loops around the quantised kernels (internal to avx2/).
//
// With many rows, weights of one tile x 1,024 columns are unpacked once to bytes that stay in the
// first-level cache and meet all rows there; with few they are unpacked in registers. Each output's
// FMA chain runs over k in order: parked in y between two column chunks, which changes no bit.
//
// Offsets. Q5_0 and Q6_K have signed weights code - 16 and code - 32, but vpmaddubsw wants unsigned
// ones. An int16 lane sums 16 (Q5_0) or 8 (Q6_K) products, at most 16*16*127 = 8*32*127 = 32,512 in
// magnitude for the signed weights. So the lane starts at -offset * (sum of its activations) and
// adds the unsigned products modulo 2^16: steps may wrap, the end is the exact signed sum.
#pragma once

#include "kernels/avx2/weights.h"

namespace vericache::avx2 {
namespace {

// Activations of a chunk stay in the second-level cache, unpacked weights in the first.
constexpr int kChunkCols = 1024;
constexpr int kChunkRows = 96;
// Rows from which it pays to unpack a tile before use (formats with kUnpack), and columns one pass
// takes below that.
constexpr int kUnpackRows = 13;
constexpr int kNarrowCols = 2048;
// Three rows and fewer take one pass, nearly always over all columns: the weights are one stream.
constexpr int kStreamRows = 3;
constexpr int kStreamCols = 9216;

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

// t += pair sums of w (unsigned) * x (signed), modulo 2^16. In assembly because g++ 12 otherwise
// hoists dozens of products above their additions and spills them all: half the speed.
inline void AddPairs(__m256i w, __m256i x, __m256i* t) {
  __m256i pairs;
  __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(*t), "=&x"(pairs) : "x"(w), "x"(x));
}

// The unpacked codes of kVectors k groups times x for kRows rows, added to t.
template <int kRows, int kVectors>
inline void AddProducts(const uint8_t (*codes)[2][32], const int8_t* q, int64_t stride,
                        __m256i t[kRows][2]) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const __m256i w0 = Load256(codes[v][0]);
    const __m256i w1 = Load256(codes[v][1]);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m256i x = Broadcast32(q + m * stride + 4 * v);
      AddPairs(w0, x, &t[m][0]);
      AddPairs(w1, x, &t[m][1]);
    }
  }
}
// One vector of codes of group g, fresh from the packed weights, times x at q.
template <int kRows>
inline void AddVector(__m256i codes, int g, const int8_t* q, int64_t stride, __m256i t[kRows][2]) {
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) AddPairs(codes, Broadcast32(q + m * stride), &t[m][g]);
}

// Weights to ask for while a block is computed: `bytes` from begin + block * Format::kTileBytes.
// The hardware's own prefetcher stops at each page and sees nothing of the next tile.
struct Ahead {
  const uint8_t* begin;
  int64_t bytes;
  bool near;  // into the first-level cache, or only the second

  // One of num_parts parts of a block's share: more at once would stall on the miss buffers.
  void Fetch(int64_t offset, int part, int num_parts) const {
    const int64_t num_lines = bytes / 64;
    const char* first = reinterpret_cast<const char*>(begin + offset);
    for (int64_t i = num_lines * part / num_parts; i < num_lines * (part + 1) / num_parts; ++i) {
      // In assembly: g++ 12 takes _mm_prefetch for dead code in some of these functions.
      if (near) {
        __asm__ volatile("prefetcht0 (%0)" : : "r"(first + 64 * i));
      } else {
        __asm__ volatile("prefetcht1 (%0)" : : "r"(first + 64 * i));
      }
    }
  }
};

// Format: kBlock, kSumBlock (values per entry of Activations::sums), kTileBytes, kAheadBytes and
// kAheadNear (what a single pass fetches, measured), Prepare, Rows<kRows> for packed weights; with
// kUnpack also a Tile of unpacked weights, Unpack and Rows<kRows> for a Tile.
//
// All rows of x against one tile; Weights is Format::Tile or const uint8_t*. Three rows of sixteen
// outputs fill the registers: 6 integer sums, 6 chains, 2 vectors of weights, x, a product.
// The passes share the fetching of the next tile (at `src` in memory lies this one).
template <class Format, class Weights>
void RunTile(const Weights& weights, const uint8_t* src, const uint8_t* next_src, int num_blocks,
             ActChunk x, int num_rows, OutChunk out) {
  const int num_passes = (num_rows + 2) / 3;
  const int64_t share = (Format::kTileBytes / num_passes + 63) / 64 * 64;
  Ahead ahead = {next_src, share, num_rows >= kUnpackRows};
  if (num_passes == 1) {
    ahead = {src + Format::kAheadBytes, (Format::kTileBytes + 63) / 64 * 64, Format::kAheadNear};
  }
  while (num_rows > 0) {
    const int rows = num_rows == 4 ? 2 : (num_rows < 3 ? num_rows : 3);
    if (rows == 3) {
      Format::template Rows<3>(weights, num_blocks, x, out, ahead);
    } else if (rows == 2) {
      Format::template Rows<2>(weights, num_blocks, x, out, ahead);
    } else {
      Format::template Rows<1>(weights, num_blocks, x, out, ahead);
    }
    x = x.Skip(rows);
    out = out.Skip(rows);
    num_rows -= rows;
    ahead.begin += share;
    if (ahead.begin >= next_src + Format::kTileBytes) ahead.bytes = 0;
  }
}

// `rows` rows (at most kMaxRows) from `row` on, in chunks of kCols columns.
template <class Format, int kMaxRows, int kCols, bool kUnpack>
void BlockedRows(const MatmulArgs& args, int64_t row, int rows) {
  const Activations& x = args.x;
  const int64_t row_blocks = x.cols / Format::kBlock;
  const int64_t sum_stride = x.cols / Format::kSumBlock;
  alignas(64) uint32_t prep[kMaxRows * kCols / 16];
  for (int64_t k = 0; k < x.cols; k += kCols) {
    const int cols = static_cast<int>(x.cols - k < kCols ? x.cols - k : kCols);
    const int num_blocks = cols / Format::kBlock;
    const ActChunk chunk = {x.q + row * x.cols + k,
                            x.cols,
                            x.scale + row * row_blocks + k / Format::kBlock,
                            row_blocks,
                            prep,
                            kCols / 16};
    for (int r = 0; r < rows; ++r) {
      Format::Prepare(chunk.q + r * x.cols, x.sums + (row + r) * sum_stride + k / Format::kSumBlock,
                      num_blocks, prep + r * (kCols / 16));
    }
    for (int64_t o = args.out_begin; o < args.out_end; o += kTileRows) {
      const int64_t block = o / kTileRows * row_blocks + k / Format::kBlock;
      const uint8_t* src = args.w.data + block * Format::kTileBytes;
      const uint8_t* next_src = src + row_blocks * Format::kTileBytes;
      const OutChunk out = {args.y + row * args.ldy + o, args.ldy, k == 0,
                            MaskFor(args.w.rows - o)};
      if constexpr (kUnpack) {
        alignas(64) typename Format::Tile tile;
        Format::Unpack(src, num_blocks, &tile);
        RunTile<Format>(tile, src, next_src, num_blocks, chunk, rows, out);
      } else {
        RunTile<Format>(src, src, next_src, num_blocks, chunk, rows, out);
      }
    }
  }
}

// Decoding and narrow verifications are bound by the weights' bytes, the rest by arithmetic.
template <class Format>
void BlockedMatmul(const MatmulArgs& args) {
  const int num_rows = static_cast<int>(args.num_rows);
  if (num_rows <= kStreamRows) {
    return BlockedRows<Format, kStreamRows, kStreamCols, false>(args, 0, num_rows);
  }
  if (num_rows < kUnpackRows) {
    return BlockedRows<Format, kUnpackRows, kNarrowCols, false>(args, 0, num_rows);
  }
  for (int row = 0; row < num_rows; row += kChunkRows) {
    const int left = num_rows - row;
    BlockedRows<Format, kChunkRows, kChunkCols, Format::kUnpack>(
        args, row, left < kChunkRows ? left : kChunkRows);
  }
}

}  // namespace
}  // namespace vericache::avx2
