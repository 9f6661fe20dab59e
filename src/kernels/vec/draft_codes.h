// Coded keys and values of a draft KV, multiplied as integers (order: scalar/draft_attention.cc).
//
// What differs between query heads is brought into int8 once a group of 32 keys: the products of
// queries (or probabilities) and scales. The codes then meet all heads in sums of four products.
// Sums read two layouts, that of kInt4 and that of kInt8; other widths are brought into one of them
// group by group (draft_unpack.h).
#pragma once

#include "kernels/scalar/scalar_math.h"
#include "kernels/vec/attention_tiles.h"
#include "kernels/vec/draft_unpack.h"
#include "kernels/vec/vec16.h"

namespace vericache::VC_KERNEL_NS {
namespace {

struct Draft {
  const DraftHeadView* kv;
  const float* q;        // [num_heads][head_dim]
  const float* coded_q;  // what codes of keys meet: q, or q rotated
  int64_t num_heads;
  int64_t head_dim;
  int64_t padded;
  int64_t ldp;       // keys rounded up to 16
  float* p;          // [num_heads][ldp]
  float* acc;        // [num_heads][padded]
  float* min_lanes;  // [num_heads][head_dim / 32][16]
  int8_t* codes;     // [num_heads][head_dim], products of one group
  float* scales;     // [head_dim] scales, minima, then products, of one group
  uint8_t* bytes;    // [head_dim][32], one group of unpacked codes
  float* copy;       // two groups of f16 in fp32
};

// Codes to read, and those to fetch meanwhile.
struct CodeSource {
  const uint8_t* data;
  const uint8_t* ahead;
};
// The i-th group that is read; ahead is the group 4 KB or more behind it, if there is one.
VC_INLINE CodeSource GroupSource(const DraftHeadView& kv, const uint8_t* data, int64_t bytes,
                                 int64_t i) {
  const int64_t later = i + (4095 + bytes) / bytes;
  const int64_t ahead = later < kv.num_groups_read() ? later : i;
  return {data + kv.GroupAt(i) * bytes, data + kv.GroupAt(ahead) * bytes};
}

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

// Layouts that sums read: kInt4, kInt8, and kInt7 for bytes in the layout of kInt8 up to 127.
constexpr DraftFormat SummedAs(DraftFormat format) {
  if (BitsOf(format) <= 4) return DraftFormat::kInt4;
  return format == DraftFormat::kInt8 || kManyRegisters ? DraftFormat::kInt8 : DraftFormat::kInt7;
}
// Calls f.operator()<kSum>() for the layout that `format` is summed as.
template <typename F>
VC_INLINE void WithSum(DraftFormat format, F f) {
  switch (SummedAs(format)) {
    case DraftFormat::kInt4:
      return f.template operator()<DraftFormat::kInt4>();
    case DraftFormat::kInt7:
      if constexpr (!kManyRegisters) return f.template operator()<DraftFormat::kInt7>();
      [[fallthrough]];
    default:
      return f.template operator()<DraftFormat::kInt8>();
  }
}
template <DraftFormat kSum>
constexpr int64_t kBlockBytes = kSum == DraftFormat::kInt4 ? 512 : 1024;

// One group in layout kSum: where it is, or unpacked.
template <DraftFormat kSum>
VC_INLINE CodeSource Summable(const Draft& a, DraftFormat format, CodeSource codes) {
  if (format == DraftFormat::kInt4 || format == DraftFormat::kInt8) return codes;
  const int64_t block = 128 * BitsOf(format);
  for (int64_t i = 0; i < a.head_dim / 32; ++i) {
    for (int64_t line = 0; line < block; line += 64)
      __builtin_prefetch(codes.ahead + i * block + line, 0, 2);
    UnpackBlock(format, codes.data + i * block, a.bytes + i * kBlockBytes<kSum>);
  }
  return {a.bytes, a.bytes};
}

// low, high: sums of R heads over one block (kv_view.h); q: [R][ldq].
template <int R, DraftFormat kSum>
VC_INLINE void SumBlock(const uint8_t* data, const int8_t* q, int64_t ldq, Sum16 low[R],
                        Sum16 high[R]) {
  if constexpr (kSum == DraftFormat::kInt4) {
    Pairs32 a[R], b[R];
    for (int r = 0; r < R; ++r) a[r] = b[r] = ZeroPairs();
    for (int i = 0; i < 8; ++i) {
      const Bytes64 both = LoadBytes64(data + i * 64);
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
      const Bytes64 a = LoadBytes64(data + i * 128);
      const Bytes64 b = LoadBytes64(data + i * 128 + 64);
      for (int r = 0; r < R; ++r) {
        const int8_t* four = q + r * ldq + 4 * i;
        if constexpr (kSum == DraftFormat::kInt8) {
          low[r] = AddWholeBytes(a, four, low[r]);
          high[r] = AddWholeBytes(b, four, high[r]);
        } else {
          low[r] = AddSmallBytes(a, four, low[r]);
          high[r] = AddSmallBytes(b, four, high[r]);
        }
      }
    }
  }
}
// The same over `num_blocks` blocks.
template <int R, DraftFormat kSum>
VC_INLINE void SumCodes(CodeSource codes, int64_t num_blocks, const int8_t* q, int64_t ldq,
                        Sum16 low[R], Sum16 high[R]) {
  for (int r = 0; r < R; ++r) low[r] = high[r] = ZeroSum();
  for (int64_t i = 0; i < num_blocks; ++i) {
    const int64_t at = i * kBlockBytes<kSum>;
    for (int64_t line = 0; line < kBlockBytes<kSum>; line += 64)
      __builtin_prefetch(codes.ahead + at + line, 0, 2);
    SumBlock<R, kSum>(codes.data + at, q + 32 * i, ldq, low, high);
  }
}

// q times scales as int8 and what the minima contribute, for head h.
VC_INLINE float PrepareQuery(const Draft& a, int64_t h, float* base) {
  const int64_t n = a.head_dim;
  const float* q = a.coded_q + h * n;
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

template <int R, DraftFormat kSum>
VC_NOINLINE void ScoreCodes(const Draft& a, CodeSource codes, int64_t first, const float* scale,
                            const float* base, float* s) {
  Sum16 low[R], high[R];
  SumCodes<R, kSum>(codes, a.head_dim / 32, a.codes + first * a.head_dim, a.head_dim, low, high);
  for (int r = 0; r < R; ++r) {
    const Vec16 x = Set(scale[first + r]), b = Set(base[first + r]), log2e = Set(kLog2E);
    Store(Mul(Fma(ToFloat(low[r]), x, b), log2e), s + (first + r) * a.ldp);
    Store(Mul(Fma(ToFloat(high[r]), x, b), log2e), s + (first + r) * a.ldp + 16);
  }
}

// Scores of all groups of coded keys.
template <DraftFormat kSum>
void ScoreGroups(const Draft& a) {
  const DraftHeadView& kv = *a.kv;
  const int64_t n = a.head_dim, bytes = 4 * n * BitsOf(kv.k_format);
  for (int64_t i = 0; i < kv.num_groups_read(); ++i) {
    const int64_t g = kv.GroupAt(i);
    WidenScales(kv.k_scale + g * n, kv.k_min + g * n, a);
    float scale[kMaxAttnRows], base[kMaxAttnRows];
    for (int64_t h = 0; h < a.num_heads; ++h) scale[h] = PrepareQuery(a, h, &base[h]);
    const CodeSource codes = Summable<kSum>(a, kv.k_format, GroupSource(kv, kv.k_data, bytes, i));
    ForHeads(a.num_heads, [&]<int R>(int64_t first) {
      ScoreCodes<R, kSum>(a, codes, first, scale, base, a.p + i * kDraftGroup);
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

template <int R, DraftFormat kSum>
VC_NOINLINE void AddCodes(const Draft& a, CodeSource codes, int64_t first, const float* scale,
                          float* acc) {
  Sum16 low[R], high[R];
  SumCodes<R, kSum>(codes, 1, a.codes + first * kDraftGroup, kDraftGroup, low, high);
  for (int r = 0; r < R; ++r) {
    float* y = acc + (first + r) * a.padded;
    const Vec16 x = Set(scale[first + r]);
    Store(Fma(ToFloat(low[r]), x, Load(y)), y);
    Store(Fma(ToFloat(high[r]), x, Load(y + 16)), y + 16);
  }
}

// Adds all groups of coded values but for their minima, which gather in min_lanes.
template <DraftFormat kSum>
void AddGroups(const Draft& a) {
  const DraftHeadView& kv = *a.kv;
  const int64_t n = a.head_dim, parts = n / 32, bytes = 4 * n * BitsOf(kv.v_format);
  for (int64_t i = 0; i < a.num_heads * parts * 16; ++i) a.min_lanes[i] = 0.0f;
  for (int64_t i = 0; i < kv.num_groups_read(); ++i) {
    const int64_t g = kv.GroupAt(i);
    WidenScales(kv.v_scale + g * n, kv.v_min + g * n, a);
    const CodeSource codes = Summable<kSum>(a, kv.v_format, GroupSource(kv, kv.v_data, bytes, i));
    for (int64_t part = 0; part < parts; ++part) {
      float scale[kMaxAttnRows];
      for (int64_t h = 0; h < a.num_heads; ++h) {
        scale[h] = PrepareValues(a, part, a.p + h * a.ldp + i * kDraftGroup,
                                 a.min_lanes + (h * parts + part) * 16, a.codes + h * kDraftGroup);
      }
      const int64_t at = part * kBlockBytes<kSum>;
      ForHeads(a.num_heads, [&]<int R>(int64_t first) {
        AddCodes<R, kSum>(a, {codes.data + at, codes.ahead + at}, first, scale, a.acc + part * 32);
      });
    }
  }
}

// Adds the minima and rotates back.
void FinishGroups(const Draft& a) {
  const int64_t parts = a.head_dim / 32;
  for (int64_t i = 0; i < a.num_heads * parts; ++i) {
    const Vec16 mins = Set(LaneTree(Load(a.min_lanes + i * 16)));
    float* y = a.acc + i / parts * a.padded + i % parts * 32;
    Store(Add(Load(y), mins), y);
    Store(Add(Load(y + 16), mins), y + 16);
    if (a.kv->rotated) Hadamard32(y);
  }
}

}  // namespace
}  // namespace vericache::VC_KERNEL_NS
