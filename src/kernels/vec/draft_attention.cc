// Attention over draft KV (order: scalar/draft_attention.cc). Keys and values in f16 go through the
// tiles of full attention; codes are multiplied as integers (draft_codes.h).
#include "kernels/table_parts.h"
#include "kernels/vec/draft_codes.h"

namespace vericache::VC_KERNEL_NS {
namespace {

// The next f16 groups, to be fetched while these are read; behind the end nothing is loaded.
VC_INLINE F16Source Halves(const uint16_t* data) { return {data, data + 4096}; }
// The i-th f16 group that is read.
VC_INLINE F16Source HalfGroup(const DraftHeadView& kv, const uint8_t* data, int64_t bytes,
                              int64_t i) {
  const CodeSource group = GroupSource(kv, data, bytes, i);
  return {reinterpret_cast<const uint16_t*>(group.data),
          reinterpret_cast<const uint16_t*>(group.ahead)};
}

// Scores over `num_halves` groups of 16 keys in f16.
void ScoreHalves(const Draft& a, F16Source k, int64_t key, int64_t num_halves) {
  QkAllRows(a.num_heads, {a.head_dim, kLog2E, a.ldp}, a.q, k, num_halves, a.p + key, a.copy,
            [](int64_t, int64_t) {});
}

void Scores(const Draft& a) {
  const DraftHeadView& kv = *a.kv;
  const int64_t num_groups = kv.num_groups_read();
  if (kv.k_format != DraftFormat::kF16) {
    WithSum(kv.k_format, [&]<DraftFormat kSum>() { ScoreGroups<kSum>(a); });
  } else if (kv.groups == nullptr) {
    ScoreHalves(a, Halves(reinterpret_cast<const uint16_t*>(kv.k_data)), 0, 2 * num_groups);
  } else {
    for (int64_t i = 0; i < num_groups; ++i)
      ScoreHalves(a, HalfGroup(kv, kv.k_data, 64 * a.head_dim, i), i * kDraftGroup, 2);
  }
  ScoreHalves(a, Halves(kv.tail_k), num_groups * kDraftGroup, (kv.num_tail + 15) / 16);
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
void AddHalves(const Draft& a, F16Source v, int64_t key, int64_t stored, int64_t valid) {
  PvAllRows(a.num_heads, {stored * 16, a.ldp, a.padded}, a.p + key, v, a.padded / 16, valid, a.acc,
            a.copy);
}

void Values(const Draft& a) {
  const DraftHeadView& kv = *a.kv;
  const int64_t num_groups = kv.num_groups_read();
  if (kv.v_format != DraftFormat::kF16) {
    WithSum(kv.v_format, [&]<DraftFormat kSum>() { AddGroups<kSum>(a); });
    FinishGroups(a);
  } else {
    for (int64_t i = 0; i < num_groups; ++i) {
      AddHalves(a, HalfGroup(kv, kv.v_data, 64 * a.padded, i), i * kDraftGroup, kDraftGroup,
                kDraftGroup);
    }
  }
  for (int64_t t = 0; t < kv.num_tail; t += 16) {
    const int64_t valid = kv.num_tail - t < 16 ? kv.num_tail - t : 16;
    AddHalves(a, Halves(kv.tail_v + t * a.padded), num_groups * kDraftGroup + t, 16, valid);
  }
}

// The queries that codes of keys meet. rotated: [num_heads][head_dim], used if need be.
const float* CodedQueries(const DraftHeadView& kv, const float* q, int num_heads, float* rotated) {
  if (!kv.rotated || kv.k_format == DraftFormat::kF16) return q;
  const int64_t n = static_cast<int64_t>(num_heads) * kv.head_dim;
  for (int64_t d = 0; d < n; ++d) rotated[d] = q[d];
  for (int64_t d = 0; d < n; d += 32) Hadamard32(rotated + d);
  return rotated;
}

void AttendDraft(const DraftHeadView& kv, const float* q, int num_heads, float* out, int64_t ldo,
                 float* scratch) {
  Draft a;
  a.kv = &kv;
  a.q = q;
  a.num_heads = num_heads;
  a.head_dim = kv.head_dim;
  a.padded = (a.head_dim + 15) / 16 * 16;
  a.ldp = (kv.num_keys_read() + 15) / 16 * 16;
  a.p = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t{63});
  a.acc = a.p + num_heads * a.ldp;
  a.min_lanes = a.acc + num_heads * a.padded;
  a.codes = reinterpret_cast<int8_t*>(a.min_lanes + num_heads * a.padded / 2);
  a.scales = a.min_lanes + num_heads * a.padded / 2 + num_heads * a.padded / 4;
  float* rotated = a.scales + 3 * a.padded;
  a.coded_q = CodedQueries(kv, q, num_heads, rotated);
  a.bytes = reinterpret_cast<uint8_t*>(rotated + num_heads * a.padded);
  a.copy = rotated + num_heads * a.padded + kDraftGroup / sizeof(float) * a.padded;
  Scores(a);
  for (int64_t i = 0; i < num_heads * a.padded; ++i) a.acc[i] = 0.0f;
  float inv_of_head[kMaxAttnRows];
  for (int64_t h = 0; h < num_heads; ++h) {
    inv_of_head[h] = SoftmaxHead(a.p + h * a.ldp, kv.num_keys_read());
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

// Order: BoundOf() in scalar/draft_attention.cc.
void GroupBounds(const DraftHeadView& kv, const float* q, int num_heads, float* rank,
                 float* scratch) {
  const int64_t n = kv.head_dim;
  const float* coded_q = CodedQueries(kv, q, num_heads, scratch);
  const bool codes = kv.k_format != DraftFormat::kF16;
  const Vec16 last = Set(static_cast<float>(codes ? (1 << BitsOf(kv.k_format)) - 1 : 1));
  for (int64_t g = 0; g < kv.num_groups; ++g) {
    const uint16_t* scale = kv.k_scale + g * n;
    const uint16_t* min = kv.k_min + g * n;
    rank[g] = -kInf;
    for (int h = 0; h < num_heads; ++h) {
      const float* x = coded_q + h * n;
      Vec16 lanes = Zero();
      int64_t d = 0;
      for (; d + 16 <= n; d += 16) {
        const Vec16 low = Load(min + d), high = Fma(Load(scale + d), last, low), v = Load(x + d);
        lanes = Add(lanes, MaxOrSecond(Mul(v, low), Mul(v, high)));
      }
      if (d < n) {
        const Vec16 low = LoadFirst(min + d, n - d), v = LoadFirst(x + d, n - d);
        const Vec16 high = Fma(LoadFirst(scale + d, n - d), last, low);
        lanes = Add(lanes, MaxOrSecond(Mul(v, low), Mul(v, high)));
      }
      const float bound = LaneTree(lanes);
      if (bound > rank[g]) rank[g] = bound;
    }
  }
}

}  // namespace

void FillDraftAttention(KernelTable* table) {
  table->attend_draft = AttendDraft;
  table->group_bounds = GroupBounds;
}

}  // namespace vericache::VC_KERNEL_NS
