// Attention over draft KV (order: scalar/draft_attention.cc). Each group of 32 keys is turned into
// fp32 once for all query heads: in registers where they suffice, else in the layout of full KV and
// through its tiles.
#include "kernels/scalar/scalar_math.h"
#include "kernels/table_parts.h"
#include "kernels/vec/attention_tiles.h"
#include "kernels/vec/vec16.h"

namespace vericache::VC_KERNEL_NS {
namespace {

struct Draft {
  const DraftHeadView* kv;
  const float* q;
  int64_t num_heads;
  int64_t head_dim;
  int64_t padded;
  int64_t num_keys;
  int64_t ldp;    // keys rounded up to 16
  float* p;       // [num_heads][ldp]
  float* acc;     // [num_heads][padded]
  float* copy;    // one group in fp32
  float* scales;  // its scales, then its minima, in fp32
};

// Scales and minima of one group in fp32, n of each.
void WidenScales(const uint16_t* scale, const uint16_t* min, int64_t n, float* dst) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    Store(Load(scale + i), dst + i);
    Store(Load(min + i), dst + n + i);
  }
  if (i < n) {
    StoreFirst(LoadFirst(scale + i, n - i), dst + i, n - i);
    StoreFirst(LoadFirst(min + i, n - i), dst + n + i, n - i);
  }
}

// Codes i of 32 to fp32: 0 to 15 into `low`, the others into `high`.
template <DraftFormat kFormat>
VC_INLINE void Decode32(const uint8_t* data, int64_t i, float scale, float min, Vec16* low,
                        Vec16* high) {
  constexpr int64_t kBytes = kFormat == DraftFormat::kInt8 ? 32 : 16;
  __builtin_prefetch(data + i * kBytes + 4096, 0, 2);
  if constexpr (kFormat == DraftFormat::kInt8) {
    *low = Fma(Set(scale), LoadBytes(data + i * kBytes), Set(min));
    *high = Fma(Set(scale), LoadBytes(data + i * kBytes + 16), Set(min));
  } else {
    DecodeNibbles(data + i * kBytes, scale, min, low, high);
  }
}
template <DraftFormat kFormat>
VC_INLINE void Dequantize32(const uint8_t* data, int64_t i, float scale, float min, float* low,
                            float* high) {
  Vec16 a, b;
  Decode32<kFormat>(data, i, scale, min, &a, &b);
  Store(a, low);
  Store(b, high);
}

// One group of keys as [2][head_dim][16].
template <DraftFormat kFormat>
void DequantizeKeys(const Draft& a, int64_t group) {
  const int64_t n = a.head_dim;
  const int64_t first = group * n;
  WidenScales(a.kv->k_scale + first, a.kv->k_min + first, n, a.scales);
  for (int64_t d = 0; d < n; ++d) {
    Dequantize32<kFormat>(a.kv->k_data, first + d, a.scales[d], a.scales[n + d], a.copy + d * 16,
                          a.copy + (n + d) * 16);
  }
}

// One group of values as [head_dim / 16][32 keys][16].
template <DraftFormat kFormat>
void DequantizeValues(const Draft& a, int64_t group) {
  const int64_t parts = a.head_dim / 32;  // of a key
  const int64_t n = kDraftGroup * parts;
  const int64_t first = group * n;
  WidenScales(a.kv->v_scale + first, a.kv->v_min + first, n, a.scales);
  for (int64_t c = 0; c < parts; ++c) {
    float* low = a.copy + 2 * c * kDraftGroup * 16;
    float* high = low + kDraftGroup * 16;
    for (int64_t j = 0; j < kDraftGroup; ++j) {
      const int64_t i = j * parts + c;
      Dequantize32<kFormat>(a.kv->v_data, first + i, a.scales[i], a.scales[n + i], low + j * 16,
                            high + j * 16);
    }
  }
}

// With registers for all heads and two vectors of keys or channels, codes are decoded where they
// are used, beside the multiplications, and no copy is made.
VC_INLINE bool DecodesInPlace(const Draft& a) {
  return kManyRegisters && a.num_heads <= kMaxTileRows;
}

// Scores of R heads over one group of keys.
template <int R, DraftFormat kFormat>
VC_NOINLINE void ScoreCodes(const Draft& a, int64_t group) {
  const int64_t n = a.head_dim;
  const float* scale = a.scales;
  Vec16 acc[R][2];
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = Zero();
  for (int64_t d = 0; d < n; ++d) {
    Vec16 low, high;
    Decode32<kFormat>(a.kv->k_data, group * n + d, scale[d], scale[n + d], &low, &high);
    for (int r = 0; r < R; ++r) {
      const Vec16 x = Set(a.q[r * n + d]);
      acc[r][0] = Fma(x, low, acc[r][0]);
      acc[r][1] = Fma(x, high, acc[r][1]);
    }
  }
  float* s = a.p + group * kDraftGroup;
  for (int r = 0; r < R; ++r) {
    Store(Mul(acc[r][0], Set(kLog2E)), s + r * a.ldp);
    Store(Mul(acc[r][1], Set(kLog2E)), s + r * a.ldp + 16);
  }
}

// Adds one group of values to R heads.
template <int R, DraftFormat kFormat>
VC_NOINLINE void AddCodes(const Draft& a, int64_t group) {
  const int64_t parts = a.head_dim / 32;
  const int64_t n = kDraftGroup * parts;
  const float* p = a.p + group * kDraftGroup;
  for (int64_t c = 0; c < parts; ++c) {
    float* out = a.acc + 32 * c;
    Vec16 acc[R][2];
    for (int r = 0; r < R; ++r) {
      acc[r][0] = Load(out + r * a.padded);
      acc[r][1] = Load(out + r * a.padded + 16);
    }
    for (int64_t j = 0; j < kDraftGroup; ++j) {
      const int64_t i = j * parts + c;
      Vec16 low, high;
      Decode32<kFormat>(a.kv->v_data, group * n + i, a.scales[i], a.scales[n + i], &low, &high);
      for (int r = 0; r < R; ++r) {
        const Vec16 x = Set(p[r * a.ldp + j]);
        acc[r][0] = Fma(x, low, acc[r][0]);
        acc[r][1] = Fma(x, high, acc[r][1]);
      }
    }
    for (int r = 0; r < R; ++r) {
      Store(acc[r][0], out + r * a.padded);
      Store(acc[r][1], out + r * a.padded + 16);
    }
  }
}

// The next f16 groups, to be fetched while these are read; behind the end nothing is loaded.
VC_INLINE F16Source Halves(const uint16_t* data) { return {data, data + 4096}; }

// Scores over dequantised groups.
void ScoreCopied(const Draft& a, int64_t key) {
  for (int64_t h = 0; h < a.num_heads;) {
    const int rows = TileRows(a.num_heads - h);
    QkRows(rows, {a.head_dim, kLog2E, a.ldp}, a.q + h * a.head_dim, F32Source{a.copy}, 2,
           a.p + h * a.ldp + key);
    h += rows;
  }
}
// Scores over `num_groups` groups of 16 keys in f16.
void ScoreHalves(const Draft& a, const uint16_t* k, int64_t key, int64_t num_groups) {
  QkAllRows(a.num_heads, {a.head_dim, kLog2E, a.ldp}, a.q, Halves(k), num_groups, a.p + key, a.copy,
            [](int64_t, int64_t) {});
}

template <DraftFormat kFormat>
void ScoreGroups(const Draft& a) {
  if (!DecodesInPlace(a)) {
    for (int64_t g = 0; g < a.kv->num_groups; ++g) {
      DequantizeKeys<kFormat>(a, g);
      ScoreCopied(a, g * kDraftGroup);
    }
    return;
  }
  if constexpr (kManyRegisters) {
    WithTileRows(static_cast<int>(a.num_heads), [&]<int R>() {
      const int64_t n = a.head_dim;
      for (int64_t g = 0; g < a.kv->num_groups; ++g) {
        WidenScales(a.kv->k_scale + g * n, a.kv->k_min + g * n, n, a.scales);
        ScoreCodes<R, kFormat>(a, g);
      }
    });
  }
}

void Scores(const Draft& a) {
  const DraftHeadView& kv = *a.kv;
  if (kv.k_format == DraftFormat::kF16) {
    ScoreHalves(a, reinterpret_cast<const uint16_t*>(kv.k_data), 0, 2 * kv.num_groups);
  } else {
    kv.k_format == DraftFormat::kInt8 ? ScoreGroups<DraftFormat::kInt8>(a)
                                      : ScoreGroups<DraftFormat::kInt4>(a);
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

// Adds dequantised values.
void AddCopied(const Draft& a, int64_t key) {
  const PvArgs args{kDraftGroup * 16, a.ldp, a.padded};
  for (int64_t h = 0; h < a.num_heads;) {
    const int rows = TileRows(a.num_heads - h);
    PvRows(rows, args, a.p + h * a.ldp + key, F32Source{a.copy}, a.padded / 16, 0, kDraftGroup,
           a.acc + h * a.padded);
    h += rows;
  }
}
// Adds `valid` values from a group of `stored` keys in f16.
void AddHalves(const Draft& a, const uint16_t* v, int64_t key, int64_t stored, int64_t valid) {
  PvAllRows(a.num_heads, {stored * 16, a.ldp, a.padded}, a.p + key, Halves(v), a.padded / 16, valid,
            a.acc, a.copy);
}

template <DraftFormat kFormat>
void AddGroups(const Draft& a) {
  if (!DecodesInPlace(a)) {
    for (int64_t g = 0; g < a.kv->num_groups; ++g) {
      DequantizeValues<kFormat>(a, g);
      AddCopied(a, g * kDraftGroup);
    }
    return;
  }
  if constexpr (kManyRegisters) {
    WithTileRows(static_cast<int>(a.num_heads), [&]<int R>() {
      const int64_t n = a.head_dim / 32 * kDraftGroup;
      for (int64_t g = 0; g < a.kv->num_groups; ++g) {
        WidenScales(a.kv->v_scale + g * n, a.kv->v_min + g * n, n, a.scales);
        AddCodes<R, kFormat>(a, g);
      }
    });
  }
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
}

void AttendDraft(const DraftHeadView& kv, const float* q, int num_heads, float* out, int64_t ldo,
                 float* scratch) {
  Draft a;
  a.kv = &kv;
  a.q = q;
  a.num_heads = num_heads;
  a.head_dim = kv.head_dim;
  a.padded = (a.head_dim + 15) / 16 * 16;
  a.num_keys = kv.num_keys();
  a.ldp = (a.num_keys + 15) / 16 * 16;
  a.p = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t{63});
  a.acc = a.p + num_heads * a.ldp;
  a.scales = a.acc + num_heads * a.padded;
  a.copy = a.scales + 2 * a.padded;
  Scores(a);
  for (int64_t i = 0; i < num_heads * a.padded; ++i) a.acc[i] = 0.0f;
  float inv_of_head[kMaxAttnRows];
  for (int64_t h = 0; h < num_heads; ++h) {
    inv_of_head[h] = SoftmaxHead(a.p + h * a.ldp, a.num_keys);
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
