// Attention over full KV: one pass over the blocks of a segment, each read once for all rows.
//
// A block of 64 keys goes through three steps for all rows together: scores (register tiles over
// 16-key groups), softmax (16 lanes), values (register tiles over 16-channel groups). With many
// rows the f16 keys and values of a group are converted to fp32 once, into L1; with few, on the
// fly.
#include "kernels/scalar/scalar_math.h"
#include "kernels/table_parts.h"
#include "kernels/vec/attention_tiles.h"
#include "kernels/vec/vec16.h"

namespace vericache::VC_KERNEL_NS {
namespace {

// What the steps share. Rows are sorted by position, so `valid` never decreases.
struct BlockRows {
  int64_t num_rows;
  int64_t first_row;  // rows before it see no key of this block
  const float* q;     // [num_rows][head_dim]
  int64_t head_dim;
  int64_t padded;
  int64_t valid[kMaxAttnRows];  // keys of the block each row sees, 0 to 64
  AttnState state;
  float* p;     // [num_rows][64]: scores in log2 units, then probabilities
  float* copy;  // fp32 copy of two groups
};

float* AlignTo64(float* p) {
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t{63});
}

// Softmax of any row, by plain loops: for edges, NaN and infinities.
void SoftmaxAny(float* p, int64_t valid, float* max, float* lanes, float* acc, int64_t padded) {
  float new_max = *max;
  for (int64_t j = 0; j < valid; ++j) new_max = Max(new_max, p[j]);
  new_max = new_max + 0.0f;
  const float c = Exp2NonPositive(*max - new_max);
  for (int l = 0; l < 16; ++l) lanes[l] = lanes[l] * c;
  for (int64_t j = 0; j < valid; ++j) {
    p[j] = Exp2NonPositive(p[j] - new_max);
    lanes[j % 16] = lanes[j % 16] + p[j];
  }
  for (int64_t d = 0; d < padded; d += 16) Store(Mul(Load(acc + d), Set(c)), acc + d);
  *max = new_max;
}

// Scores j to j + 15 of a row. Masked lanes (none if kFull) repeat the first score, which is always
// valid: they change neither a maximum nor whether all scores are finite.
template <bool kFull>
VC_INLINE Vec16 ValidScores(const float* p, int64_t valid, int64_t j) {
  const Vec16 s = Load(p + j);
  if constexpr (kFull) return s;
  return Select(FirstLanes(valid - j), s, Set(p[0]));
}

// The new maximum of a row, or NaN for a row that SoftmaxAny must take.
template <bool kFull>
VC_INLINE float MaxOfRow(const float* p, int64_t valid, float old_max) {
  const Vec16 s0 = ValidScores<kFull>(p, valid, 0), s1 = ValidScores<kFull>(p, valid, 16);
  const Vec16 s2 = ValidScores<kFull>(p, valid, 32), s3 = ValidScores<kFull>(p, valid, 48);
  // NaN and infinities survive in a sum; a sum of huge finite scores may overflow, which only costs
  // time.
  const Vec16 sum = Add(Add(s0, s1), Add(s2, s3));
  const Vec16 difference = Sub(sum, sum);
  if (Any(Unordered(difference, difference)) || old_max != old_max) return __builtin_nanf("");
  return MaxLane(MaxOrSecond(MaxOrSecond(MaxOrSecond(s0, s1), MaxOrSecond(s2, s3)), Set(old_max))) +
         0.0f;
}

// Scores to probabilities, added to the sum lanes.
template <bool kFull>
VC_INLINE void ExponentialsOfRow(const Exp2NonPositiveNoNan& exp2, float* p, int64_t valid,
                                 float max, float* lanes) {
  Vec16 sum = Load(lanes);
  for (int64_t j = 0; j < 64; j += 16) {
    Vec16 e = exp2(Sub(ValidScores<kFull>(p, valid, j), Set(max)));
    if constexpr (!kFull) e = Select(FirstLanes(valid - j), e, Zero());  // + 0 changes no sum
    Store(e, p + j);
    sum = Add(sum, e);
  }
  Store(sum, lanes);
}

// Softmax of the rows of a tile, from r on: first all maxima, then all exponentials, so that
// neither loop waits for a long chain. kFull: all rows see all 64 keys.
template <bool kFull>
VC_NOINLINE void SoftmaxRows(const BlockRows& b, int64_t r, int64_t rows) {
  float new_max[kMaxTileRows];
  for (int64_t i = 0; i < rows; ++i) {
    new_max[i] = MaxOfRow<kFull>(b.p + (r + i) * 64, b.valid[r + i], b.state.max[r + i]);
  }
  const Exp2NonPositiveNoNan exp2;
  for (int64_t i = 0; i < rows; ++i) {
    float* p = b.p + (r + i) * 64;
    float* max = b.state.max + r + i;
    float* lanes = b.state.sum + (r + i) * 16;
    float* acc = b.state.acc + (r + i) * b.padded;
    const int64_t valid = b.valid[r + i];
    if (new_max[i] != new_max[i]) {
      SoftmaxAny(p, valid, max, lanes, acc, b.padded);
      continue;
    }
    if (new_max[i] != *max) {  // else the factor is exactly 1
      const Vec16 c = Set(Exp2NonPositive(*max - new_max[i]));
      Store(Mul(Load(lanes), c), lanes);
      for (int64_t d = 0; d < b.padded; d += 16) Store(Mul(Load(acc + d), c), acc + d);
      *max = new_max[i];
    }
    ExponentialsOfRow<kFull>(exp2, p, valid, new_max[i], lanes);
  }
}

VC_NOINLINE void Probabilities(const BlockRows& b, F16Source k) {
  const int64_t first = b.first_row;
  const int64_t num_groups = (b.valid[b.num_rows - 1] + 15) / 16;
  QkAllRows(b.num_rows - first, {b.head_dim, kLog2E, 64}, b.q + first * b.head_dim, k, num_groups,
            b.p + first * 64, b.copy, [&](int64_t r, int64_t rows) {
              r += first;
              b.valid[r] == 64 ? SoftmaxRows<true>(b, r, rows) : SoftmaxRows<false>(b, r, rows);
            });
}

// REQUIRES: the rows that are asked about see some key of the block.
VC_NOINLINE void KeepProbs(const BlockRows& b, const AttnProbs& probs, int64_t block) {
  uint16_t* kept = probs.p + block * probs.ld * 64;
  const float* p = b.p + probs.row_begin * 64;
  for (int64_t r = 0; r < probs.num_rows; ++r, p += 64, kept += 64) {
    const int64_t valid = b.valid[probs.row_begin + r];
    for (int64_t j = 0; j < 64; j += 16) {
      const Vec16 x = Load(p + j);
      StoreF16Saturated(valid == 64 ? x : Select(FirstLanes(valid - j), x, Zero()), kept + j);
    }
    probs.max[block * probs.ld + r] = b.state.max[probs.row_begin + r];
  }
}

void SumVotes(const uint16_t* p, const float* block_max, int64_t num_rows, const float* row_max,
              const float* inverse_sum, float* votes) {
  Vec16 sum[4] = {Zero(), Zero(), Zero(), Zero()};
  for (int64_t r = 0; r < num_rows; ++r, p += 64) {
    const float w = Exp2NonPositive(block_max[r] - row_max[r]) * inverse_sum[r];
    if (!(w > 0.0f && w < kInf)) continue;
    for (int g = 0; g < 4; ++g) sum[g] = Fma(Load(p + g * 16), Set(w), sum[g]);
  }
  for (int g = 0; g < 4; ++g) Store(sum[g], votes + g * 16);
}

// Values of a block in which some row sees fewer keys than another: keys beyond a row's bound are
// never touched by it.
void ValuesAtEdge(const BlockRows& b, F16Source v) {
  const PvArgs args{64 * 16, 64, b.padded};
  const int64_t num_groups = b.padded / 16;
  for (int64_t r = b.first_row; r < b.num_rows;) {
    const int rows = TileRows(b.num_rows - r);
    const int64_t common = b.valid[r];
    PvRows(rows, args, b.p + r * 64, v, num_groups, 0, common, b.state.acc + r * b.padded);
    for (int64_t i = r; i < r + rows; ++i) {
      if (b.valid[i] == common) continue;
      PvRows(1, args, b.p + i * 64, v, num_groups, common, b.valid[i], b.state.acc + i * b.padded);
    }
    r += rows;
  }
}

VC_NOINLINE void Values(const BlockRows& b, F16Source v) {
  const int64_t r = b.first_row;
  const int64_t end = b.valid[r];
  if (end != b.valid[b.num_rows - 1]) return ValuesAtEdge(b, v);
  const PvArgs args{64 * 16, 64, b.padded};
  PvAllRows(b.num_rows - r, args, b.p + r * 64, v, b.padded / 16, end, b.state.acc + r * b.padded,
            b.copy);
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

  int64_t seen_of_row[kMaxAttnRows];  // keys each row sees in all
  for (int64_t r = 0; r < b.num_rows; ++r) {
    seen_of_row[r] = rows.first_pos + r / rows.heads_per_kv + 1;
  }
  const int64_t begin = segment * kSegmentTokens;
  for (int64_t first = begin; first < begin + kSegmentTokens; first += 64) {
    b.first_row = b.num_rows;
    for (int64_t r = b.num_rows - 1; r >= 0; --r) {
      const int64_t seen = seen_of_row[r] - first;
      b.valid[r] = seen < 0 ? 0 : (seen < 64 ? seen : 64);
      if (seen > 0) b.first_row = r;
    }
    if (b.first_row == b.num_rows) break;
    // While keys are read, the block's values are fetched; while values are, the next block's keys.
    const uint16_t* k = kv.Head(first / 64, kv_head);
    const uint16_t* v = k + kv.shape.k_block_values();
    const bool last = first + 64 >= kv.num_tokens;
    Probabilities(b, {k, v});
    const int64_t block = (first - begin) / 64;
    if (rows.probs.p != nullptr && block < rows.probs.num_blocks) KeepProbs(b, rows.probs, block);
    Values(b, {v, last ? v : kv.Head(first / 64 + 1, kv_head)});
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
  const int64_t head_dim = kv.shape.head_dim;
  for (int64_t j = key_begin; j < key_end; j += 16) {
    const uint16_t* k = kv.Head(j / 64, kv_head) + j % 64 * head_dim;
    const F16Source source{k, k};
    for (int64_t r = 0; r < rows.num_rows;) {
      const int tile = TileRows(rows.num_rows - r);
      const float* q = rows.q + r * head_dim;
      if (key_end - j >= 16) {
        QkRows(tile, {head_dim, 1.0f, ld}, q, source, 1, scores + r * ld + j);
      } else {  // the last keys: nothing may be written behind them
        float s[kMaxTileRows * 16];
        QkRows(tile, {head_dim, 1.0f, 16}, q, source, 1, s);
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
  table->sum_votes = SumVotes;
  table->key_scores = KeyScores;
}

}  // namespace vericache::VC_KERNEL_NS
