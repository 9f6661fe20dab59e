// Attention over draft KV (order: scalar/draft_attention.cc). Keys and values in f16 go through the
// tiles of full attention; codes are multiplied as integers (draft_codes.h).
#include "kernels/table_parts.h"
#include "kernels/vec/draft_codes.h"

namespace vericache::VC_KERNEL_NS {
namespace {

// The next f16 groups, to be fetched while these are read; behind the end nothing is loaded.
VC_INLINE F16Source Halves(const uint16_t* data) { return {data, data + 4096}; }

// Scores over `num_groups` groups of 16 keys in f16.
void ScoreHalves(const Draft& a, const uint16_t* k, int64_t key, int64_t num_groups) {
  QkAllRows(a.num_heads, {a.head_dim, kLog2E, a.ldp}, a.q, Halves(k), num_groups, a.p + key, a.copy,
            [](int64_t, int64_t) {});
}

void Scores(const Draft& a) {
  const DraftHeadView& kv = *a.kv;
  switch (kv.k_format) {
    case DraftFormat::kF16:
      ScoreHalves(a, reinterpret_cast<const uint16_t*>(kv.k_data), 0, 2 * kv.num_groups);
      break;
    case DraftFormat::kInt8:
      ScoreGroups<DraftFormat::kInt8>(a);
      break;
    case DraftFormat::kInt4:
      ScoreGroups<DraftFormat::kInt4>(a);
      break;
  }
  ScoreHalves(a, kv.tail_k, kv.num_groups * kDraftGroup, (kv.num_tail + 15) / 16);
}

// Turns the scores of one head into probabilities, returns 1 / sum.
float SoftmaxHead(float* p, int64_t num_keys) {
  const Vec16 masked = Set(-kInf);
  Vec16 max16 = masked;
  Mask16 nan = Unordered(masked, masked);
  for (int64_t j = 0; j < num_keys; j += 16) {
    Vec16 u = Load(p + j);
    if (num_keys - j < 16) u = Select(FirstLanes(num_keys - j), u, masked);
    Store(u, p + j);
    nan = Or(nan, Unordered(u, u));
    max16 = MaxOrSecond(max16, u);
  }
  const float max = Any(nan) ? __builtin_nanf("") : MaxLane(max16) + 0.0f;
  Vec16 sum = Zero();
  if (!(max > -kInf && max < kInf)) {  // bad row: plain loops take any value
    float lanes[16] = {};
    for (int64_t j = 0; j < num_keys; ++j) {
      p[j] = Exp2NonPositive(p[j] - max);
      lanes[j % 16] = lanes[j % 16] + p[j];
    }
    return 1.0f / LaneTree(lanes);
  }
  const Exp2NonPositiveNoNan exp2;
  for (int64_t j = 0; j < num_keys; j += 16) {
    const Vec16 e = exp2(Sub(Load(p + j), Set(max)));
    Store(e, p + j);
    sum = Add(sum, e);
  }
  return 1.0f / LaneTree(sum);
}

// Adds `valid` values from a group of `stored` keys in f16.
void AddHalves(const Draft& a, const uint16_t* v, int64_t key, int64_t stored, int64_t valid) {
  PvAllRows(a.num_heads, {stored * 16, a.ldp, a.padded}, a.p + key, Halves(v), a.padded / 16, valid,
            a.acc, a.copy);
}

void Values(const Draft& a) {
  const DraftHeadView& kv = *a.kv;
  if (kv.v_format == DraftFormat::kF16) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(kv.v_data);
    for (int64_t g = 0; g < kv.num_groups; ++g) {
      AddHalves(a, halves + g * a.padded * kDraftGroup, g * kDraftGroup, kDraftGroup, kDraftGroup);
    }
  } else {
    kv.v_format == DraftFormat::kInt8 ? AddGroups<DraftFormat::kInt8>(a)
                                      : AddGroups<DraftFormat::kInt4>(a);
  }
  for (int64_t t = 0; t < kv.num_tail; t += 16) {
    const int64_t valid = kv.num_tail - t < 16 ? kv.num_tail - t : 16;
    AddHalves(a, kv.tail_v + t * a.padded, kv.num_groups * kDraftGroup + t, 16, valid);
  }
  if (kv.v_format != DraftFormat::kF16) AddMinima(a);
}

void AttendDraft(const DraftHeadView& kv, const float* q, int num_heads, float* out, int64_t ldo,
                 float* scratch) {
  Draft a;
  a.kv = &kv;
  a.q = q;
  a.num_heads = num_heads;
  a.head_dim = kv.head_dim;
  a.padded = (a.head_dim + 15) / 16 * 16;
  a.ldp = (kv.num_keys() + 15) / 16 * 16;
  a.p = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t{63});
  a.acc = a.p + num_heads * a.ldp;
  a.min_lanes = a.acc + num_heads * a.padded;
  a.codes = reinterpret_cast<int8_t*>(a.min_lanes + num_heads * a.padded / 2);
  a.scales = a.min_lanes + num_heads * a.padded / 2 + num_heads * a.padded / 4;
  a.copy = a.scales + 3 * a.padded;
  Scores(a);
  for (int64_t i = 0; i < num_heads * a.padded; ++i) a.acc[i] = 0.0f;
  float inv_of_head[kMaxAttnRows];
  for (int64_t h = 0; h < num_heads; ++h) {
    inv_of_head[h] = SoftmaxHead(a.p + h * a.ldp, kv.num_keys());
  }
  Values(a);
  for (int64_t h = 0; h < num_heads; ++h) {
    const Vec16 inv = Set(inv_of_head[h]);
    const float* acc = a.acc + h * a.padded;
    float* y = out + h * ldo;
    int64_t d = 0;
    for (; d + 16 <= a.head_dim; d += 16) Store(Mul(Load(acc + d), inv), y + d);
    if (d < a.head_dim) StoreFirst(Mul(Load(acc + d), inv), y + d, a.head_dim - d);
  }
}

}  // namespace

void FillDraftAttention(KernelTable* table) { table->attend_draft = AttendDraft; }

}  // namespace vericache::VC_KERNEL_NS
