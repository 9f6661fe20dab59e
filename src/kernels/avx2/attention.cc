// Attention over full KV: one pass over the blocks of a segment, each read once for all rows.
//
// A block of 64 keys goes through three steps for all rows together: scores (register tiles over
// 16-key groups), softmax (16 lanes), values (register tiles over 16-channel groups). With many rows
// the f16 keys and values of a group are converted to fp32 once, into L1; with few, on the fly.
#include "kernels/avx2/attention_tiles.h"
#include "kernels/avx2/vec16.h"
#include "kernels/scalar/scalar_math.h"
#include "kernels/table_parts.h"

namespace vericache::VC_KERNEL_NS {
namespace {

// From this many rows on, converting a group once beats converting it in every tile.
constexpr int64_t kConvertRows = 12;

// What the steps share. Rows are sorted by position, so `valid` never decreases.
struct BlockRows {
  int64_t num_rows;
  int64_t first_row;  // rows before it see no key of this block
  const float* q;     // [num_rows][head_dim]
  int head_dim;
  int64_t padded;
  int64_t valid[kMaxAttnRows];  // keys of the block each row sees, 0 to 64
  AttnState state;
  float* p;     // [num_rows][64]: scores, then probabilities
  float* copy;  // fp32 copy of a group
};

float* AlignTo64(float* p) {
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t{63});
}

void Convert(const uint16_t* src, int64_t n, float* dst) {  // n is a multiple of 16
  for (int64_t i = 0; i < n; i += 16) Store(Load(src + i), dst + i);
}

void Scores(const BlockRows& b, const uint16_t* k) {
  const int64_t num_groups = (b.valid[b.num_rows - 1] + 15) / 16;
  const bool convert = b.num_rows - b.first_row >= kConvertRows;
  const int64_t group_values = static_cast<int64_t>(b.head_dim) * 16;
  const int64_t step = convert ? 1 : num_groups;
  for (int64_t g = 0; g < num_groups; g += step) {
    if (convert) Convert(k + g * group_values, group_values, b.copy);
    for (int64_t r = b.first_row; r < b.num_rows;) {
      const int rows = TileRows(b.num_rows - r);
      const float* q = b.q + r * b.head_dim;
      float* s = b.p + r * 64 + g * 16;
      if (convert) {
        QkRows(rows, q, b.head_dim, b.copy, 1, s, 64);
      } else {
        QkRows(rows, q, b.head_dim, k, num_groups, s, 64);
      }
      r += rows;
    }
  }
}

// Softmax of a row that meets NaN or an infinite maximum: plain loops, any value is allowed.
void SoftmaxSlow(float* p, int64_t valid, float old_max, float new_max, float* lanes) {
  const float c = Exp2NonPositive(old_max - new_max);
  for (int l = 0; l < 16; ++l) lanes[l] = lanes[l] * c;
  for (int64_t j = 0; j < valid; ++j) {
    p[j] = Exp2NonPositive(p[j] - new_max);
    lanes[j % 16] = lanes[j % 16] + p[j];
  }
}

// Scales the scores of one row to log2 units, masks them and returns the new maximum.
VC_INLINE float ScaleAndMax(float* p, int64_t valid, float old_max) {
  const Vec16 masked = Set(-kInf);
  Vec16 max = masked;
  Mask16 nan = Unordered(masked, masked);
  for (int64_t j = 0; j < valid; j += 16) {
    Vec16 u = Mul(Load(p + j), Set(kLog2E));
    if (valid - j < 16) u = Select(FirstLanes(valid - j), u, masked);
    Store(u, p + j);
    nan = Or(nan, Unordered(u, u));
    max = MaxOrSecond(max, u);
  }
  if (Any(nan)) return __builtin_nanf("");
  return Max(old_max, MaxLane(max)) + 0.0f;
}

void SoftmaxRow(float* p, int64_t valid, float old_max, float new_max, float* lanes) {
  if (!(new_max > -kInf && new_max < kInf)) {
    return SoftmaxSlow(p, valid, old_max, new_max, lanes);
  }
  Vec16 sum = Load(lanes);
  if (old_max != new_max) sum = Mul(sum, Set(Exp2NonPositive(old_max - new_max)));
  const Vec16 max = Set(new_max);
  for (int64_t j = 0; j < valid; j += 16) {  // masked lanes hold -inf: +0, which changes no sum
    const Vec16 e = Exp2NonPositiveNoNan(Sub(Load(p + j), max));
    Store(e, p + j);
    sum = Add(sum, e);
  }
  Store(sum, lanes);
}

void Softmax(const BlockRows& b) {
  float new_max[kMaxAttnRows];
  for (int64_t r = b.first_row; r < b.num_rows; ++r) {
    new_max[r] = ScaleAndMax(b.p + r * 64, b.valid[r], b.state.max[r]);
  }
  for (int64_t r = b.first_row; r < b.num_rows; ++r) {
    const float old_max = b.state.max[r];
    SoftmaxRow(b.p + r * 64, b.valid[r], old_max, new_max[r], b.state.sum + r * 16);
    if (old_max == new_max[r]) continue;  // the factor is exactly 1
    const Vec16 c = Set(Exp2NonPositive(old_max - new_max[r]));
    float* acc = b.state.acc + r * b.padded;
    for (int64_t d = 0; d < b.padded; d += 16) Store(Mul(Load(acc + d), c), acc + d);
    b.state.max[r] = new_max[r];
  }
}

// One tile of rows; keys beyond a row's bound are never touched by it.
template <typename T>
void ValuesOfTile(const BlockRows& b, const PvBlock<T>& v, int64_t r, int rows, int64_t channel) {
  float* acc = b.state.acc + channel;
  const int64_t common = b.valid[r];
  PvRows(rows, v, b.p + r * 64, 0, common, acc + r * b.padded);
  for (int64_t i = r; i < r + rows; ++i) {
    if (b.valid[i] > common) PvRows(1, v, b.p + i * 64, common, b.valid[i], acc + i * b.padded);
  }
}

void Values(const BlockRows& b, const uint16_t* v) {
  const int64_t num_groups = b.padded / 16;
  const bool convert = b.num_rows - b.first_row >= kConvertRows;
  const int64_t step = convert ? 1 : num_groups;
  for (int64_t g = 0; g < num_groups; g += step) {
    const uint16_t* group = v + g * 64 * 16;
    if (convert) Convert(group, b.valid[b.num_rows - 1] * 16, b.copy);
    for (int64_t r = b.first_row; r < b.num_rows;) {
      const int rows = TileRows(b.num_rows - r);
      if (convert) {
        ValuesOfTile(b, PvBlock<float>{b.copy, 64 * 16, 1, 64, b.padded}, r, rows, g * 16);
      } else {
        const PvBlock<uint16_t> all{group, 64 * 16, num_groups, 64, b.padded};
        ValuesOfTile(b, all, r, rows, 0);
      }
      r += rows;
    }
  }
}

void AttendSegment(const FullKvView& kv, int kv_head, const AttnRows& rows, int64_t segment,
                   AttnState state, float* scratch) {
  BlockRows b;
  b.num_rows = rows.num_rows;
  b.q = rows.q;
  b.head_dim = kv.shape.head_dim;
  b.padded = kv.shape.padded_head_dim();
  b.state = state;
  b.p = AlignTo64(scratch);
  b.copy = b.p + kMaxAttnRows * 64;
  for (int64_t r = 0; r < b.num_rows; ++r) state.max[r] = -kInf;
  for (int64_t i = 0; i < b.num_rows * 16; ++i) state.sum[i] = 0.0f;
  for (int64_t i = 0; i < b.num_rows * b.padded; ++i) state.acc[i] = 0.0f;

  const int64_t begin = segment * kSegmentTokens;
  for (int64_t first = begin; first < begin + kSegmentTokens; first += 64) {
    b.first_row = b.num_rows;
    for (int64_t r = b.num_rows - 1; r >= 0; --r) {
      const int64_t seen = rows.first_pos + r / rows.heads_per_kv + 1 - first;
      b.valid[r] = seen < 0 ? 0 : (seen < 64 ? seen : 64);
      if (seen > 0) b.first_row = r;
    }
    if (b.first_row == b.num_rows) break;
    const uint16_t* head = kv.Head(first / 64, kv_head);
    Scores(b, head);
    Softmax(b);
    Values(b, head + kv.shape.k_block_values());
  }
}

void AttendCombine(int64_t num_rows, int64_t padded, AttnState next, AttnState total) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const float m2 = next.max[r];
    if (m2 == -kInf) continue;
    float* sum = total.sum + r * 16;
    float* acc = total.acc + r * padded;
    const float* sum2 = next.sum + r * 16;
    const float* acc2 = next.acc + r * padded;
    if (total.max[r] == -kInf) {
      Store(Load(sum2), sum);
      for (int64_t d = 0; d < padded; d += 16) Store(Load(acc2 + d), acc + d);
      total.max[r] = m2;
      continue;
    }
    const float new_max = Max(total.max[r], m2);
    const Vec16 a = Set(Exp2NonPositive(total.max[r] - new_max));
    const Vec16 b = Set(Exp2NonPositive(m2 - new_max));
    Store(Fma(Load(sum2), b, Mul(Load(sum), a)), sum);
    for (int64_t d = 0; d < padded; d += 16) {
      Store(Fma(Load(acc2 + d), b, Mul(Load(acc + d), a)), acc + d);
    }
    total.max[r] = new_max;
  }
}

void AttendFinish(int64_t num_rows, int64_t head_dim, AttnState total, float* out, int64_t ldo) {
  const int64_t padded = (head_dim + 15) / 16 * 16;
  for (int64_t r = 0; r < num_rows; ++r) {
    const Vec16 inv = Set(1.0f / LaneTree(Load(total.sum + r * 16)));
    const float* acc = total.acc + r * padded;
    float* y = out + r * ldo;
    int64_t d = 0;
    for (; d + 16 <= head_dim; d += 16) Store(Mul(Load(acc + d), inv), y + d);
    if (d < head_dim) StoreFirst(Mul(Load(acc + d), inv), y + d, head_dim - d);
  }
}

void KeyScores(const FullKvView& kv, int kv_head, const AttnRows& rows, int64_t key_begin,
               int64_t key_end, float* scores, int64_t ld) {
  const int head_dim = kv.shape.head_dim;
  for (int64_t j = key_begin; j < key_end; j += 16) {
    const uint16_t* k = kv.Head(j / 64, kv_head) + j % 64 * head_dim;
    for (int64_t r = 0; r < rows.num_rows;) {
      const int tile = TileRows(rows.num_rows - r);
      const float* q = rows.q + r * head_dim;
      if (key_end - j >= 16) {
        QkRows(tile, q, head_dim, k, 1, scores + r * ld + j, ld);
      } else {  // the last keys: nothing may be written behind them
        float s[6 * 16];
        QkRows(tile, q, head_dim, k, 1, s, 16);
        for (int i = 0; i < tile; ++i) {
          for (int64_t l = 0; l < key_end - j; ++l) scores[(r + i) * ld + j + l] = s[i * 16 + l];
        }
      }
      r += tile;
    }
  }
}

}  // namespace

void FillAttention(KernelTable* table) {
  table->attend_segment = AttendSegment;
  table->attend_combine = AttendCombine;
  table->attend_finish = AttendFinish;
  table->key_scores = KeyScores;
}

}  // namespace vericache::VC_KERNEL_NS
