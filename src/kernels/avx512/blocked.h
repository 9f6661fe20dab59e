// The loops around the quantised kernels (internal to avx512/). Layout: avx2/weights.h; the two
// groups of a vector stand side by side, so one 64-byte load has 4 consecutive k of 16 rows.
//
// vpdpbusd multiplies unsigned weights by signed activations and adds four products to an int32
// lane: sums are exact without care. Q5_0, Q6_K and Q8_0 have signed weights code - offset; their
// sums start at -offset * (sum of the activations), which the activations bring along.
//
// Weights are unpacked in registers, beside the multiplications and on other execution ports, which
// is faster than bytes unpacked once for all rows. Six rows of two tiles of sixteen outputs, or
// twelve of one, fill the registers: 12 integer sums, 12 chains, weights. Each output's FMA chain
// runs over k in order: parked in y between two column chunks, which changes no bit.
#pragma once

#include "kernels/avx2/weights.h"
#include "kernels/with_rows.h"

namespace vericache::avx512 {
namespace {

using avx2::ActChunk;
using avx2::kTileRows;
using avx2::MatmulArgs;

// Rows of a pass over one tile, and over two side by side.
constexpr int kMaxRows = 12;
constexpr int kPairRows = 6;
// With so few rows a pass takes whole rows of weights, up to so many columns: one stream.
constexpr int kNarrowRows = 12;
constexpr int kNarrowCols = 9216;
// With more, weights of a chunk stay in the first-level cache, activations in the second.
constexpr int kChunkCols = 1024;
constexpr int kChunkRows = 192;

inline __m512i Load512(const void* p) { return _mm512_loadu_si512(p); }
inline __m128i Load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
// Four bytes in every 32-bit lane; becomes the memory operand of the multiplication.
inline __m512i Broadcast32(const void* p) {
  int32_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return _mm512_set1_epi32(bits);
}
inline __m512 LoadHalf16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline __m512i LowNibbles(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline __m512i HighNibbles(__m512i v) { return LowNibbles(_mm512_srli_epi16(v, 4)); }

// Where the outputs of a pass go; lanes: those of each tile that exist.
struct OutChunk {
  float* y;  // row 0, first output of the first tile
  int64_t ldy;
  bool first;  // first column chunk: the chains start at zero
  __mmask16 lanes[2];

  OutChunk Skip(int64_t rows) const { return {y + rows * ldy, ldy, first, {lanes[0], lanes[1]}}; }
};

template <int kRows, int kTiles>
inline void LoadAcc(const OutChunk& out, __m512 acc[kRows][kTiles]) {
#pragma GCC unroll 12
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int g = 0; g < kTiles; ++g) {
      acc[m][g] = out.first ? _mm512_setzero_ps()
                            : _mm512_maskz_loadu_ps(out.lanes[g], out.y + m * out.ldy + 16 * g);
    }
  }
}
template <int kRows, int kTiles>
inline void StoreAcc(const OutChunk& out, const __m512 acc[kRows][kTiles]) {
#pragma GCC unroll 12
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int g = 0; g < kTiles; ++g) {
      _mm512_mask_storeu_ps(out.y + m * out.ldy + 16 * g, out.lanes[g], acc[m][g]);
    }
  }
}

// Sums start at word `at` of the prepared ones, or at zero.
template <int kRows, int kTiles>
inline void Begin(const ActChunk& x, int64_t at, __m512i t[kRows][kTiles]) {
#pragma GCC unroll 12
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int g = 0; g < kTiles; ++g) t[m][g] = Broadcast32(x.prep + m * x.prep_stride + at);
  }
}
template <int kRows, int kTiles>
inline void Zero(__m512i t[kRows][kTiles]) {
#pragma GCC unroll 12
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int g = 0; g < kTiles; ++g) t[m][g] = _mm512_setzero_si512();
  }
}
// t[m] += codes times the four activations at q of row m.
template <int kRows, int kTiles>
inline void AddVector(const __m512i codes[kTiles], const int8_t* q, int64_t stride,
                      __m512i t[kRows][kTiles]) {
#pragma GCC unroll 12
  for (int m = 0; m < kRows; ++m) {
    const __m512i x = Broadcast32(q + m * stride);
#pragma GCC unroll 2
    for (int g = 0; g < kTiles; ++g) t[m][g] = _mm512_dpbusd_epi32(t[m][g], codes[g], x);
  }
}
// acc[m] += float(s[m]) * (d * dx) for block b; d: scales of each tile.
template <int kRows, int kTiles>
inline void AddBlock(const ActChunk& x, int64_t b, const __m512 d[kTiles],
                     const __m512i s[kRows][kTiles], __m512 acc[kRows][kTiles]) {
#pragma GCC unroll 12
  for (int m = 0; m < kRows; ++m) {
    const __m512 dx = _mm512_set1_ps(x.scale[m * x.scale_stride + b]);
#pragma GCC unroll 2
    for (int g = 0; g < kTiles; ++g) {
      acc[m][g] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[m][g]), _mm512_mul_ps(d[g], dx), acc[m][g]);
    }
  }
}

// Asks for kBytes bytes from p.
template <int64_t kBytes>
inline void Fetch(const uint8_t* p) {
#pragma GCC unroll 64
  for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

// Format: kBlock, kSumBlock (values per entry of Activations::sums), kTileBytes, Packed (the codes
// of a tile, `ahead` the bytes between them and what to fetch meanwhile, 0 for nothing), Prepare
// and Pass<kRows, kTiles> over kTiles tiles side by side.

inline __mmask16 LanesFrom(int64_t left) {
  return static_cast<__mmask16>(left >= 16 ? 0xffff : (left > 0 ? (1 << left) - 1 : 0));
}
inline OutChunk OutputsOf(const MatmulArgs& args, int64_t row, int64_t o, bool first) {
  const int64_t left = args.w.rows - o;
  return {args.y + row * args.ldy + o, args.ldy, first, {LanesFrom(left), LanesFrom(left - 16)}};
}

template <class Format>
ActChunk Prepared(const Activations& x, int64_t row, int64_t k, int rows, int cols,
                  uint32_t* prep) {
  const int64_t row_blocks = x.cols / Format::kBlock;
  const int64_t sum_stride = x.cols / Format::kSumBlock;
  const int64_t prep_stride = cols / Format::kSumBlock;
  const ActChunk chunk = {x.q + row * x.cols + k,
                          x.cols,
                          x.scale + row * row_blocks + k / Format::kBlock,
                          row_blocks,
                          prep,
                          prep_stride};
  for (int r = 0; r < rows; ++r) {
    Format::Prepare(x.sums + (row + r) * sum_stride + k / Format::kSumBlock,
                    cols / Format::kSumBlock, prep + r * prep_stride);
  }
  return chunk;
}

// One pass of kRows rows over kTiles tiles from `data` on.
template <class Format, int kRows, int kTiles>
inline void RunPass(const uint8_t* data, int64_t stride, int64_t ahead, int64_t num_blocks,
                    const ActChunk& x, const OutChunk& out) {
  typename Format::Packed source[kTiles];
  for (int g = 0; g < kTiles; ++g) source[g] = {data + g * stride, ahead};
  Format::template Pass<kRows, kTiles>(source, num_blocks, x, out);
}

// All rows of x against kTiles tiles, in passes of nearly equal size. The first one fetches what
// comes next.
template <class Format, int kMax, int kTiles>
void RunTiles(const uint8_t* data, int64_t stride, int64_t ahead, int64_t num_blocks, ActChunk x,
              OutChunk out, int rows) {
  for (int passes = (rows + kMax - 1) / kMax; passes > 0; --passes) {
    const int n = (rows + passes - 1) / passes;
    WithRows<kMax>(
        n, [&]<int R>() { RunPass<Format, R, kTiles>(data, stride, ahead, num_blocks, x, out); });
    x = x.Skip(n);
    out = out.Skip(n);
    rows -= n;
    ahead = 0;
  }
}

template <class Format, int kRowsMax, int kColsMax, bool kPairs>
void BlockedRows(const MatmulArgs& args, int64_t row, int rows) {
  alignas(64) uint32_t prep[kRowsMax * kColsMax / Format::kSumBlock];
  const int64_t row_blocks = args.x.cols / Format::kBlock;
  const int64_t stride = row_blocks * Format::kTileBytes;
  for (int64_t k = 0; k < args.x.cols; k += kColsMax) {
    const int64_t left = args.x.cols - k;
    const int cols = static_cast<int>(left < kColsMax ? left : kColsMax);
    const int num_blocks = cols / Format::kBlock;
    const ActChunk x = Prepared<Format>(args.x, row, k, rows, cols, prep);
    for (int64_t o = args.out_begin; o < args.out_end;) {
      const int64_t block = o / kTileRows * row_blocks + k / Format::kBlock;
      const uint8_t* data = args.w.data + block * Format::kTileBytes;
      const OutChunk out = OutputsOf(args, row, o, k == 0);
      if (kPairs && o + kTileRows < args.out_end) {
        RunTiles<Format, kPairRows, 2>(data, stride, 2 * stride, num_blocks, x, out, rows);
        o += 2 * kTileRows;
      } else {
        RunTiles<Format, kMaxRows, 1>(data, stride, kPairs ? stride : Format::kAhead, num_blocks, x,
                                      out, rows);
        o += kTileRows;
      }
    }
  }
}

template <class Format>
void BlockedMatmul(const MatmulArgs& args) {
  const int num_rows = static_cast<int>(args.num_rows);
  if (num_rows <= kNarrowRows) {
    return BlockedRows<Format, kNarrowRows, kNarrowCols, false>(args, 0, num_rows);
  }
  for (int row = 0; row < num_rows; row += kChunkRows) {
    const int left = num_rows - row;
    BlockedRows<Format, kChunkRows, kChunkCols, true>(args, row,
                                                      left < kChunkRows ? left : kChunkRows);
  }
}

}  // namespace
}  // namespace vericache::avx512
