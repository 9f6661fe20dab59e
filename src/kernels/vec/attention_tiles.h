// Register tiles of attention: R query rows against G vectors of 16 keys (QK) or channels (PV).
//
// R * G accumulators stay in registers while the reduction runs in order, so a tile's shape never
// shows in the bits. AVX-512 has room for 24 accumulators, so that seven query heads are one tile.
// AVX2, measured on Zen 4, cycles a step of the reduction beside the limit of 2 FMA a cycle: 6 x 1
// 6.1 (6), 4 x 1 4.4 (4), 3 x 2 6.1 (6) from fp32 but 12.6 from f16 (spills), 7 x 1 in halves 8.4
// (7). So there seven rows run as 4 + 3, and the tile that reads f16 first leaves an fp32 copy for
// the others: conversion hides behind its FMAs, a second one would not.
#pragma once

#include "kernels/vec/vec16.h"
#include "kernels/with_rows.h"

namespace vericache::VC_KERNEL_NS {
namespace {

// Where a tile takes its keys or values from. Offsets count values, in the layout of kv_view.h.
struct F32Source {
  static constexpr bool kFp32 = true;
  const float* data;
  VC_INLINE Vec16 Get(int64_t offset) const { return Load(data + offset); }
  VC_INLINE F32Source At(int64_t offset) const { return {data + offset}; }
};
struct F16Source {
  static constexpr bool kFp32 = false;
  const uint16_t* data;
  const uint16_t* ahead;  // fetched into L2 along the way, in the same order; any address
  VC_INLINE Vec16 Get(int64_t offset) const {
    __builtin_prefetch(ahead + offset, 0, 2);
    return Load(data + offset);
  }
  VC_INLINE F16Source At(int64_t offset) const { return {data + offset, ahead + offset}; }
};
struct F16CopyingSource {
  static constexpr bool kFp32 = false;
  const uint16_t* data;
  const uint16_t* ahead;
  float* copy;  // what was read, in the same layout
  VC_INLINE Vec16 Get(int64_t offset) const {
    __builtin_prefetch(ahead + offset, 0, 2);
    const Vec16 v = Load(data + offset);
    Store(v, copy + offset);
    return v;
  }
  VC_INLINE F16CopyingSource At(int64_t offset) const {
    return {data + offset, ahead + offset, copy + offset};
  }
};

// s[r * lds + g * 16 + lane] = scale * sum over d of q[r * head_dim + d] * k[g][d][lane].
template <int R, int G, typename Source>
VC_INLINE void QkTile(const float* q, int64_t head_dim, Source k, float scale, float* s,
                      int64_t lds) {
  Vec16 a[R][G];
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) a[r][g] = Zero();
  }
  const float* row[R];
  for (int r = 0; r < R; ++r) row[r] = q + r * head_dim;
  for (int64_t d = 0; d < head_dim; ++d) {
    Vec16 keys[G];
    for (int g = 0; g < G; ++g) keys[g] = k.Get((g * head_dim + d) * 16);
    for (int r = 0; r < R; ++r) {
      const Vec16 x = Set(row[r][d]);
      for (int g = 0; g < G; ++g) a[r][g] = Fma(x, keys[g], a[r][g]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) Store(Mul(a[r][g], Set(scale)), s + r * lds + g * 16);
  }
}

// What the QK tiles of one group of keys share.
struct QkArgs {
  int64_t head_dim;
  float scale;
  int64_t lds;
};

template <int R, int G, typename Source>
VC_NOINLINE void QkGroups(const QkArgs& args, const float* q, Source k, int64_t num_groups,
                          float* s) {
  const int64_t group_values = args.head_dim * 16;
  int64_t g = 0;
  for (; g + G <= num_groups; g += G) {
    QkTile<R, G>(q, args.head_dim, k.At(g * group_values), args.scale, s + g * 16, args.lds);
  }
  if constexpr (G > 1) {
    for (; g < num_groups; ++g) {
      QkTile<R, 1>(q, args.head_dim, k.At(g * group_values), args.scale, s + g * 16, args.lds);
    }
  }
}

// Most rows of a tile.
constexpr int kMaxTileRows = kManyRegisters ? 12 : 6;

// Vectors of keys or channels that a tile of `rows` rows takes at once.
constexpr int TileGroups(int rows, bool from_fp32) {
  if (kManyRegisters) return rows <= 6 ? 4 : 2;
  if (rows <= 2) return rows == 1 ? 4 : 2;
  return rows == 3 && from_fp32 ? 2 : 1;
}

// Scores of `rows` (1 to kMaxTileRows) rows over `num_groups` groups of 16 keys.
template <typename Source>
inline void QkRows(int rows, const QkArgs& args, const float* q, Source k, int64_t groups,
                   float* s) {
  WithRows<kMaxTileRows>(
      rows, [&]<int R>() { QkGroups<R, TileGroups(R, Source::kFp32)>(args, q, k, groups, s); });
}

// acc[r * lda + g * 16 + lane] += sum over keys j in [begin, end) of p[r * ldp + j] *
// v[g][j][lane]; v's groups are `stride` values apart.
template <int R, int G, typename Source>
VC_INLINE void PvTile(const float* p, int64_t ldp, Source v, int64_t stride, int64_t begin,
                      int64_t end, float* acc, int64_t lda) {
  Vec16 a[R][G];
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) a[r][g] = Load(acc + r * lda + g * 16);
  }
  const float* row[R];
  for (int r = 0; r < R; ++r) row[r] = p + r * ldp;
  for (int64_t j = begin; j < end; ++j) {
    Vec16 values[G];
    for (int g = 0; g < G; ++g) values[g] = v.Get(g * stride + j * 16);
    for (int r = 0; r < R; ++r) {
      const Vec16 x = Set(row[r][j]);
      for (int g = 0; g < G; ++g) a[r][g] = Fma(x, values[g], a[r][g]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) Store(a[r][g], acc + r * lda + g * 16);
  }
}

// What the PV tiles of one group of keys share.
struct PvArgs {
  int64_t stride;  // values from one channel group to the next
  int64_t ldp;
  int64_t lda;
};

template <int R, int G, typename Source>
VC_NOINLINE void PvGroups(const PvArgs& b, const float* p, Source v, int64_t num_groups,
                          int64_t begin, int64_t end, float* acc) {
  int64_t g = 0;
  for (; g + G <= num_groups; g += G) {
    PvTile<R, G>(p, b.ldp, v.At(g * b.stride), b.stride, begin, end, acc + g * 16, b.lda);
  }
  if constexpr (G > 1) {
    for (; g < num_groups; ++g) {
      PvTile<R, 1>(p, b.ldp, v.At(g * b.stride), b.stride, begin, end, acc + g * 16, b.lda);
    }
  }
}

// Adds keys [begin, end) to the accumulators of `rows` (1 to kMaxTileRows) rows, `groups` channel
// groups.
template <typename Source>
inline void PvRows(int rows, const PvArgs& b, const float* p, Source v, int64_t groups,
                   int64_t begin, int64_t end, float* acc) {
  WithRows<kMaxTileRows>(rows, [&]<int R>() {
    PvGroups<R, TileGroups(R, Source::kFp32)>(b, p, v, groups, begin, end, acc);
  });
}

// Rows of the next tile when `left` are to do. Sixteen registers: sixes, and a rest that has no
// tile of 1 or 2 beside others (7 = 4 + 3, 8 = 4 + 4). Thirty-two: as few as will do, all alike.
inline int TileRows(int64_t left) {
  if (left <= kMaxTileRows) return static_cast<int>(left);
  if constexpr (kManyRegisters) {
    const int64_t tiles = (left + kMaxTileRows - 1) / kMaxTileRows;
    return static_cast<int>((left + tiles - 1) / tiles);
  }
  return left <= 8 ? 4 : 6;
}

// Groups that are copied before the other tiles read them: a copy of up to 16 KB stays in L1 while
// rows stream by, and tiles of 3 rows want at least two groups. REQUIRES: the copy has room for
// 2 groups or kCopyFloats, whichever is more.
constexpr int64_t kCopyFloats = 4096;
inline int64_t GroupsPerCopy(int64_t group_values) {
  const int64_t n = kCopyFloats / group_values;
  return n < 2 ? 2 : n;
}

// All scores of `rows` rows over `groups` key groups held as f16, read and converted once. Calls
// done(r, n) as soon as rows r to r + n - 1 (a tile) are complete, while they are in L1.
template <typename Done>
VC_INLINE void QkAllRows(int64_t rows, const QkArgs& args, const float* q, F16Source k,
                         int64_t groups, float* s, float* copy, Done done) {
  const int first = TileRows(rows);
  if (first == rows) {
    QkRows(first, args, q, k, groups, s);
    return done(int64_t{0}, first);
  }
  const int64_t step = GroupsPerCopy(args.head_dim * 16);
  for (int64_t g = 0; g < groups; g += step) {
    const int64_t n = groups - g < step ? groups - g : step;
    const bool complete = g + n == groups;
    const F16Source part = k.At(g * args.head_dim * 16);
    const F16CopyingSource source{part.data, part.ahead, copy};
    float* out = s + g * 16;
    QkRows(first, args, q, source, n, out);
    if (complete) done(int64_t{0}, first);
    for (int64_t r = first; r < rows;) {
      const int tile = TileRows(rows - r);
      QkRows(tile, args, q + r * args.head_dim, F32Source{copy}, n, out + r * args.lds);
      if (complete) done(r, tile);
      r += tile;
    }
  }
}

// The same for values: adds keys [0, end) to all rows. copy: [2][stride].
inline void PvAllRows(int64_t rows, const PvArgs& args, const float* p, F16Source v, int64_t groups,
                      int64_t end, float* acc, float* copy) {
  const int first = TileRows(rows);
  if (first == rows) return PvRows(first, args, p, v, groups, 0, end, acc);
  const int64_t step = GroupsPerCopy(args.stride);
  for (int64_t g = 0; g < groups; g += step) {
    const int64_t n = groups - g < step ? groups - g : step;
    const F16Source part = v.At(g * args.stride);
    const F16CopyingSource source{part.data, part.ahead, copy};
    float* out = acc + g * 16;
    PvRows(first, args, p, source, n, 0, end, out);
    for (int64_t r = first; r < rows;) {
      const int tile = TileRows(rows - r);
      PvRows(tile, args, p + r * args.ldp, F32Source{copy}, n, 0, end, out + r * args.lda);
      r += tile;
    }
  }
}

}  // namespace
}  // namespace vericache::VC_KERNEL_NS
