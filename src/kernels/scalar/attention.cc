// Attention over full KV, the judge: one row, one key, one channel after the other.
#include "base/float16.h"
#include "kernels/scalar/scalar_math.h"
#include "kernels/table_parts.h"

namespace vericache::VC_KERNEL_NS {
namespace {

// Channel d of key j of a block (kv_view.h: 4 groups of 16 keys, each [head_dim][16]).
float KeyAt(const KvShape& shape, const uint16_t* head, int64_t j, int d) {
  return F16ToF32(head[(j / 16 * shape.head_dim + d) * 16 + j % 16]);
}

// Channel d of value j of a block ([padded_head_dim / 16][64][16], behind K).
float ValueAt(const KvShape& shape, const uint16_t* head, int64_t j, int d) {
  return F16ToF32(head[shape.k_block_values() + (d / 16 * 64 + j) * 16 + d % 16]);
}

float Score(const KvShape& shape, const uint16_t* head, int64_t j, const float* q) {
  float a = 0.0f;
  for (int d = 0; d < shape.head_dim; ++d) a = __builtin_fmaf(q[d], KeyAt(shape, head, j, d), a);
  return a;
}

// One row over the first `num_valid` keys of a block. p: [64], left behind for KeepProbs().
void AttendBlock(const KvShape& shape, const uint16_t* head, const float* q, int64_t num_valid,
                 float* max, float* lanes, float* acc, float* p) {
  float new_max = *max;
  for (int64_t j = 0; j < num_valid; ++j) {
    p[j] = Score(shape, head, j, q) * kLog2E;
    new_max = Max(new_max, p[j]);
  }
  new_max = new_max + 0.0f;
  const float c = Exp2NonPositive(*max - new_max);
  for (int64_t j = 0; j < num_valid; ++j) p[j] = Exp2NonPositive(p[j] - new_max);
  for (int l = 0; l < 16; ++l) lanes[l] = lanes[l] * c;
  for (int64_t j = 0; j < num_valid; ++j) lanes[j % 16] = lanes[j % 16] + p[j];
  for (int d = 0; d < shape.padded_head_dim(); ++d) {
    float a = acc[d] * c;
    for (int64_t j = 0; j < num_valid; ++j) a = __builtin_fmaf(p[j], ValueAt(shape, head, j, d), a);
    acc[d] = a;
  }
  *max = new_max;
}

void KeepProbs(const AttnProbs& probs, int64_t row, int64_t block, int64_t num_valid,
               const float* p, float max) {
  const int64_t r = row - probs.row_begin;
  if (probs.p == nullptr || block >= probs.num_blocks || r < 0 || r >= probs.num_rows) return;
  uint16_t* kept = probs.p + (block * probs.ld + r) * 64;
  for (int64_t j = 0; j < 64; ++j) kept[j] = F32ToF16Saturated(j < num_valid ? p[j] : 0.0f);
  probs.max[block * probs.ld + r] = max;
}

void SumVotes(const uint16_t* p, const float* block_max, int64_t num_rows, const float* row_max,
              const float* inverse_sum, float* votes) {
  for (int64_t j = 0; j < 64; ++j) votes[j] = 0.0f;
  for (int64_t r = 0; r < num_rows; ++r) {
    const float w = Exp2NonPositive(block_max[r] - row_max[r]) * inverse_sum[r];
    if (!(w > 0.0f && w < kInf)) continue;
    for (int64_t j = 0; j < 64; ++j)
      votes[j] = __builtin_fmaf(F16ToF32(p[r * 64 + j]), w, votes[j]);
  }
}

void AttendSegment(const FullKvView& kv, int kv_head, const AttnRows& rows, int64_t segment,
                   AttnState state, float* scratch) {
  const int64_t padded = kv.shape.padded_head_dim();
  const int64_t begin = segment * kSegmentTokens;
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    state.max[r] = -kInf;
    for (int l = 0; l < 16; ++l) state.sum[r * 16 + l] = 0.0f;
    for (int64_t d = 0; d < padded; ++d) state.acc[r * padded + d] = 0.0f;
    const int64_t pos = rows.first_pos + r / rows.heads_per_kv;
    float p[64];
    for (int64_t b = begin; b < begin + kSegmentTokens && b <= pos; b += 64) {
      const int64_t num_valid = pos - b + 1 < 64 ? pos - b + 1 : 64;
      AttendBlock(kv.shape, kv.Head(b / 64, kv_head), rows.q + r * kv.shape.head_dim, num_valid,
                  &state.max[r], state.sum + r * 16, state.acc + r * padded, p);
      KeepProbs(rows.probs, r, (b - begin) / 64, num_valid, p, state.max[r]);
    }
  }
}

void AttendCombine(int64_t num_rows, int64_t padded, AttnState next, AttnState total) {
  for (int64_t r = 0; r < num_rows; ++r) {
    if (next.max[r] == -kInf) continue;
    const bool first = total.max[r] == -kInf;
    const float new_max = first ? next.max[r] : Max(total.max[r], next.max[r]);
    const float a = first ? 0.0f : Exp2NonPositive(total.max[r] - new_max);
    const float b = first ? 1.0f : Exp2NonPositive(next.max[r] - new_max);
    for (int64_t l = r * 16; l < r * 16 + 16; ++l) {
      total.sum[l] = first ? next.sum[l] : __builtin_fmaf(next.sum[l], b, total.sum[l] * a);
    }
    for (int64_t d = r * padded; d < (r + 1) * padded; ++d) {
      total.acc[d] = first ? next.acc[d] : __builtin_fmaf(next.acc[d], b, total.acc[d] * a);
    }
    total.max[r] = new_max;
  }
}

void AttendFinish(int64_t num_rows, int64_t head_dim, AttnState total, float* out, int64_t ldo) {
  const int64_t padded = (head_dim + 15) / 16 * 16;
  for (int64_t r = 0; r < num_rows; ++r) {
    float lane[16];
    for (int l = 0; l < 16; ++l) lane[l] = total.sum[r * 16 + l];
    const float inv = 1.0f / LaneTree(lane);
    for (int64_t d = 0; d < head_dim; ++d) out[r * ldo + d] = total.acc[r * padded + d] * inv;
  }
}

void KeyScores(const FullKvView& kv, int kv_head, const AttnRows& rows, int64_t key_begin,
               int64_t key_end, float* scores, int64_t ld) {
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    for (int64_t j = key_begin; j < key_end; ++j) {
      scores[r * ld + j] =
          Score(kv.shape, kv.Head(j / 64, kv_head), j % 64, rows.q + r * kv.shape.head_dim);
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
