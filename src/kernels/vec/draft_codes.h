// Coded keys and values of a draft KV, multiplied as integers (order: scalar/draft_attention.cc).
//
// What differs between query heads is brought into int8 once a group of 32 keys: the products of
// queries (or probabilities) and scales. The codes then meet all heads in sums of four products.
#pragma once

#include "kernels/scalar/scalar_math.h"
#include "kernels/vec/attention_tiles.h"
#include "kernels/vec/vec16.h"

namespace vericache::VC_KERNEL_NS {
namespace {

struct Draft {
  const DraftHeadView* kv;
  const float* q;  // [num_heads][head_dim]
  int64_t num_heads;
  int64_t head_dim;
  int64_t padded;
  int64_t ldp;       // keys rounded up to 16
  float* p;          // [num_heads][ldp]
  float* acc;        // [num_heads][padded]
  float* min_lanes;  // [num_heads][head_dim / 32][16]
  int8_t* codes;     // [num_heads][head_dim], products of one group
  float* scales;     // [head_dim] scales, minima, then products, of one group
  float* copy;       // two groups of f16 in fp32
};

// Heads whose sums stay in registers together.
constexpr int kCodeRows = kManyRegisters ? 12 : 2;

// Calls f.operator()<R>(first) for runs of R <= kCodeRows heads.
template <typename F>
VC_INLINE void ForHeads(int64_t num_heads, F f) {
  for (int64_t first = 0; first < num_heads; first += kCodeRows) {
    const int64_t left = num_heads - first;
    WithRows<kCodeRows>(static_cast<int>(left < kCodeRows ? left : kCodeRows),
                        [&]<int R>() { f.template operator()<R>(first); });
  }
}

// x to int8 with one scale, which is returned. n: a multiple of 16.
VC_INLINE float QuantizeProducts(const float* x, int64_t n, int8_t* q) {
  Vec16 largest = Zero(), bad = Zero();
  for (int64_t i = 0; i < n; i += 16) {
    const Vec16 v = Load(x + i);
    bad = Add(bad, Sub(v, v));  // NaN where a value is NaN or infinite
    largest = MaxOrSecond(largest, Abs(v));
  }
  const bool finite = !Any(Unordered(bad, bad));
  const float amax = finite ? MaxLane(largest) : 0.0f;
  if (amax < 0x1p-100f) {
    for (int64_t i = 0; i < n; ++i) q[i] = 0;
    return finite ? 0.0f : __builtin_nanf("");
  }
  const Vec16 inverse = Set(127.0f / amax);
  for (int64_t i = 0; i < n; i += 16) StoreInt8(Mul(Load(x + i), inverse), q + i);
  return amax / 127.0f;
}

// Scales and minima of one group in fp32.
VC_INLINE void WidenScales(const uint16_t* scale, const uint16_t* min, const Draft& a) {
  for (int64_t i = 0; i < a.head_dim; i += 16) {
    Store(Load(scale + i), a.scales + i);
    Store(Load(min + i), a.scales + a.head_dim + i);
  }
}

template <DraftFormat kFormat>
constexpr int64_t kFourBytes = kFormat == DraftFormat::kInt4 ? 64 : 128;  // of 4 x 32 codes

// low, high: sums of R heads over eight steps of four codes each (kv_view.h); q: [R][ldq].
template <int R, DraftFormat kFormat>
VC_INLINE void SumEight(const uint8_t* data, const int8_t* q, int64_t ldq, Sum16 low[R],
                        Sum16 high[R]) {
  if constexpr (kFormat == DraftFormat::kInt4) {
    Pairs32 a[R], b[R];
    for (int r = 0; r < R; ++r) a[r] = b[r] = ZeroPairs();
    for (int i = 0; i < 8; ++i) {
      const Bytes64 both = LoadBytes64(data + i * kFourBytes<kFormat>);
      for (int r = 0; r < R; ++r) {
        a[r] = AddNibbles(LowNibbles(both), q + r * ldq + 4 * i, a[r]);
        b[r] = AddNibbles(HighNibbles(both), q + r * ldq + 4 * i, b[r]);
      }
    }
    for (int r = 0; r < R; ++r) {
      low[r] = AddPairs(a[r], low[r]);
      high[r] = AddPairs(b[r], high[r]);
    }
  } else {
    for (int i = 0; i < 8; ++i) {
      const Bytes64 a = LoadBytes64(data + i * kFourBytes<kFormat>);
      const Bytes64 b = LoadBytes64(data + i * kFourBytes<kFormat> + 64);
      for (int r = 0; r < R; ++r) {
        low[r] = AddWholeBytes(a, q + r * ldq + 4 * i, low[r]);
        high[r] = AddWholeBytes(b, q + r * ldq + 4 * i, high[r]);
      }
    }
  }
}
// The same over n codes, a multiple of 32.
template <int R, DraftFormat kFormat>
VC_INLINE void SumCodes(const uint8_t* data, int64_t n, const int8_t* q, int64_t ldq, Sum16 low[R],
                        Sum16 high[R]) {
  for (int r = 0; r < R; ++r) low[r] = high[r] = ZeroSum();
  for (int64_t i = 0; i < n; i += 32, data += 8 * kFourBytes<kFormat>) {
    for (int64_t line = 0; line < 8 * kFourBytes<kFormat>; line += 64)
      __builtin_prefetch(data + 4096 + line, 0, 2);
    SumEight<R, kFormat>(data, q + i, ldq, low, high);
  }
}

// q times scales as int8 and what the minima contribute, for head h.
VC_INLINE float PrepareQuery(const Draft& a, int64_t h, float* base) {
  const int64_t n = a.head_dim;
  const float* q = a.q + h * n;
  float* products = a.scales + 2 * n;
  Vec16 lanes = Zero();
  for (int64_t d = 0; d < n; d += 16) {
    const Vec16 x = Load(q + d);
    Store(Mul(x, Load(a.scales + d)), products + d);
    lanes = Fma(x, Load(a.scales + n + d), lanes);
  }
  *base = LaneTree(lanes);
  return QuantizeProducts(products, n, a.codes + h * n);
}

template <int R, DraftFormat kFormat>
VC_NOINLINE void ScoreCodes(const Draft& a, const uint8_t* data, int64_t first, const float* scale,
                            const float* base, float* s) {
  Sum16 low[R], high[R];
  SumCodes<R, kFormat>(data, a.head_dim, a.codes + first * a.head_dim, a.head_dim, low, high);
  for (int r = 0; r < R; ++r) {
    const Vec16 x = Set(scale[first + r]), b = Set(base[first + r]), log2e = Set(kLog2E);
    Store(Mul(Fma(ToFloat(low[r]), x, b), log2e), s + (first + r) * a.ldp);
    Store(Mul(Fma(ToFloat(high[r]), x, b), log2e), s + (first + r) * a.ldp + 16);
  }
}

// Scores of all groups of coded keys.
template <DraftFormat kFormat>
void ScoreGroups(const Draft& a) {
  const int64_t n = a.head_dim;
  for (int64_t g = 0; g < a.kv->num_groups; ++g) {
    WidenScales(a.kv->k_scale + g * n, a.kv->k_min + g * n, a);
    float scale[kMaxAttnRows], base[kMaxAttnRows];
    for (int64_t h = 0; h < a.num_heads; ++h) scale[h] = PrepareQuery(a, h, &base[h]);
    const uint8_t* data = a.kv->k_data + g * (n / 4) * kFourBytes<kFormat>;
    ForHeads(a.num_heads, [&]<int R>(int64_t first) {
      ScoreCodes<R, kFormat>(a, data, first, scale, base, a.p + g * kDraftGroup);
    });
  }
}

// p times the scales of one part as int8; the products with the minima go to the lanes.
VC_INLINE float PrepareValues(const Draft& a, int64_t part, const float* p, float* lanes,
                              int8_t* codes) {
  const float* scales = a.scales + part * kDraftGroup;
  const float* mins = scales + a.head_dim;
  float products[kDraftGroup];
  const Vec16 p0 = Load(p), p1 = Load(p + 16);
  Store(Mul(p0, Load(scales)), products);
  Store(Mul(p1, Load(scales + 16)), products + 16);
  Store(Fma(p1, Load(mins + 16), Fma(p0, Load(mins), Load(lanes))), lanes);
  return QuantizeProducts(products, kDraftGroup, codes);
}

template <int R, DraftFormat kFormat>
VC_NOINLINE void AddCodes(const Draft& a, const uint8_t* data, int64_t first, const float* scale,
                          float* acc) {
  Sum16 low[R], high[R];
  SumCodes<R, kFormat>(data, kDraftGroup, a.codes + first * kDraftGroup, kDraftGroup, low, high);
  for (int r = 0; r < R; ++r) {
    float* y = acc + (first + r) * a.padded;
    const Vec16 x = Set(scale[first + r]);
    Store(Fma(ToFloat(low[r]), x, Load(y)), y);
    Store(Fma(ToFloat(high[r]), x, Load(y + 16)), y + 16);
  }
}

// Adds all groups of coded values but for their minima, which gather in min_lanes.
template <DraftFormat kFormat>
void AddGroups(const Draft& a) {
  const int64_t n = a.head_dim, parts = n / 32;
  for (int64_t i = 0; i < a.num_heads * parts * 16; ++i) a.min_lanes[i] = 0.0f;
  for (int64_t g = 0; g < a.kv->num_groups; ++g) {
    WidenScales(a.kv->v_scale + g * n, a.kv->v_min + g * n, a);
    const uint8_t* data = a.kv->v_data + g * (n / 4) * kFourBytes<kFormat>;
    for (int64_t part = 0; part < parts; ++part) {
      float scale[kMaxAttnRows];
      for (int64_t h = 0; h < a.num_heads; ++h) {
        scale[h] = PrepareValues(a, part, a.p + h * a.ldp + g * kDraftGroup,
                                 a.min_lanes + (h * parts + part) * 16, a.codes + h * kDraftGroup);
      }
      ForHeads(a.num_heads, [&]<int R>(int64_t first) {
        AddCodes<R, kFormat>(a, data + part * 8 * kFourBytes<kFormat>, first, scale,
                             a.acc + part * 32);
      });
    }
  }
}

void AddMinima(const Draft& a) {
  const int64_t parts = a.head_dim / 32;
  for (int64_t i = 0; i < a.num_heads * parts; ++i) {
    const Vec16 mins = Set(LaneTree(Load(a.min_lanes + i * 16)));
    float* y = a.acc + i / parts * a.padded + i % parts * 32;
    Store(Add(Load(y), mins), y);
    Store(Add(Load(y + 16), mins), y + 16);
  }
}

}  // namespace
}  // namespace vericache::VC_KERNEL_NS
