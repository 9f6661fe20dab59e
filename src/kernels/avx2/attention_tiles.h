// Register tiles of attention: R query rows against G vectors of 16 keys (QK) or channels (PV).
//
// R * G accumulators stay in registers while the reduction runs in order, so a tile's shape never
// shows in the bits. K and V may be fp32 or f16 (T), converted as they are loaded.
// Shapes are chosen for 16 registers of 8 floats: 12 accumulators where the rows allow it, at least
// 8 to hide the latency of FMA (4 cycles, 2 a cycle).
#pragma once

#include "kernels/avx2/vec16.h"

namespace vericache::VC_KERNEL_NS {
namespace {

// s[r * lds + g * 16 + lane] = sum over d of q[r * head_dim + d] * k[g][d][lane].
template <int R, int G, typename T>
VC_INLINE void QkTile(const float* q, int head_dim, const T* k, float* s, int64_t lds) {
  Vec16 a[R][G];
  const T* group[G];
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) a[r][g] = Zero();
  }
  for (int g = 0; g < G; ++g) group[g] = k + static_cast<int64_t>(g) * head_dim * 16;
  const float* row[R];
  for (int r = 0; r < R; ++r) row[r] = q + static_cast<int64_t>(r) * head_dim;
  for (int64_t d = 0; d < head_dim; ++d) {
    Vec16 keys[G];
    for (int g = 0; g < G; ++g) keys[g] = Load(group[g] + d * 16);
    for (int r = 0; r < R; ++r) {
      const Vec16 x = Set(row[r][d]);
      for (int g = 0; g < G; ++g) a[r][g] = Fma(x, keys[g], a[r][g]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) Store(a[r][g], s + r * lds + g * 16);
  }
}

// acc[r * lda + g * 16 + lane] += sum over keys j in [begin, end) of p[r * ldp + j] * v[g][j][lane];
// v's groups are `stride` values apart.
template <int R, int G, typename T>
VC_INLINE void PvTile(const float* p, int64_t ldp, const T* v, int64_t stride, int64_t begin,
                      int64_t end, float* acc, int64_t lda) {
  Vec16 a[R][G];
  const T* group[G];
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) a[r][g] = Load(acc + r * lda + g * 16);
  }
  for (int g = 0; g < G; ++g) group[g] = v + g * stride;
  const float* row[R];
  for (int r = 0; r < R; ++r) row[r] = p + r * ldp;
  for (int64_t j = begin; j < end; ++j) {
    Vec16 values[G];
    for (int g = 0; g < G; ++g) values[g] = Load(group[g] + j * 16);
    for (int r = 0; r < R; ++r) {
      const Vec16 x = Set(row[r][j]);
      for (int g = 0; g < G; ++g) a[r][g] = Fma(x, values[g], a[r][g]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) Store(a[r][g], acc + r * lda + g * 16);
  }
}

// Rows of the next tile when `left` are to do: sixes, and a rest that has no tile of 1 or 2 beside
// others (7 = 4 + 3, 8 = 4 + 4).
inline int TileRows(int64_t left) {
  if (left <= 6) return static_cast<int>(left);
  return left <= 8 ? 4 : 6;
}

template <int R, int G, typename T>
void QkGroups(const float* q, int head_dim, const T* k, int64_t num_groups, float* s,
              int64_t lds) {
  const int64_t group_values = static_cast<int64_t>(head_dim) * 16;
  int64_t g = 0;
  for (; g + G <= num_groups; g += G) {
    QkTile<R, G>(q, head_dim, k + g * group_values, s + g * 16, lds);
  }
  if constexpr (G > 1) {
    for (; g < num_groups; ++g) QkTile<R, 1>(q, head_dim, k + g * group_values, s + g * 16, lds);
  }
}

// Scores of `rows` (1 to 6) rows over `num_groups` groups of 16 keys.
template <typename T>
void QkRows(int rows, const float* q, int head_dim, const T* k, int64_t num_groups, float* s,
            int64_t lds) {
  switch (rows) {
    case 1: return QkGroups<1, 4>(q, head_dim, k, num_groups, s, lds);
    case 2: return QkGroups<2, 2>(q, head_dim, k, num_groups, s, lds);
    case 3: return QkGroups<3, 2>(q, head_dim, k, num_groups, s, lds);
    case 4: return QkGroups<4, 1>(q, head_dim, k, num_groups, s, lds);
    case 5: return QkGroups<5, 1>(q, head_dim, k, num_groups, s, lds);
    default: return QkGroups<6, 1>(q, head_dim, k, num_groups, s, lds);
  }
}

// Arguments of PvRows that stay the same for all tiles of a block.
template <typename T>
struct PvBlock {
  const T* v;          // [num_groups][stride / 16 keys][16]
  int64_t stride;      // values from one channel group to the next
  int64_t num_groups;  // of 16 channels
  int64_t ldp;
  int64_t lda;
};

template <int R, int G, typename T>
void PvGroups(const PvBlock<T>& b, const float* p, int64_t begin, int64_t end, float* acc) {
  int64_t g = 0;
  for (; g + G <= b.num_groups; g += G) {
    PvTile<R, G>(p, b.ldp, b.v + g * b.stride, b.stride, begin, end, acc + g * 16, b.lda);
  }
  if constexpr (G > 1) {
    for (; g < b.num_groups; ++g) {
      PvTile<R, 1>(p, b.ldp, b.v + g * b.stride, b.stride, begin, end, acc + g * 16, b.lda);
    }
  }
}

// Adds keys [begin, end) of a block to the accumulators of `rows` (1 to 6) rows.
template <typename T>
void PvRows(int rows, const PvBlock<T>& b, const float* p, int64_t begin, int64_t end,
            float* acc) {
  switch (rows) {
    case 1: return PvGroups<1, 4>(b, p, begin, end, acc);
    case 2: return PvGroups<2, 2>(b, p, begin, end, acc);
    case 3: return PvGroups<3, 2>(b, p, begin, end, acc);
    case 4: return PvGroups<4, 1>(b, p, begin, end, acc);
    case 5: return PvGroups<5, 1>(b, p, begin, end, acc);
    default: return PvGroups<6, 1>(b, p, begin, end, acc);
  }
}

}  // namespace
}  // namespace vericache::VC_KERNEL_NS
