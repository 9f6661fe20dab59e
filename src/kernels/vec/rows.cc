// Row kernels over 16 lanes. A tail of fewer than 16 values runs through the same operations in a
// partial vector, so that a value's bits do not depend on where it stands.
#include "kernels/table_parts.h"
#include "kernels/vec/vec16.h"

namespace vericache::VC_KERNEL_NS {
namespace {

// Calls f(i, count) for i = 0, 16, ...; count is 16 but for the last call.
template <typename F>
VC_INLINE void ForVectors(int64_t n, F f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, int64_t{16});
  if (i < n) f(i, n - i);
}
VC_INLINE Vec16 LoadUpTo(const float* p, int64_t count) {
  return count == 16 ? Load(p) : LoadFirst(p, count);
}
VC_INLINE void StoreUpTo(Vec16 v, float* p, int64_t count) {
  count == 16 ? Store(v, p) : StoreFirst(v, p, count);
}

void RmsNorm(const float* x, const float* w, int64_t n, float eps, float* y) {
  Vec16 lanes = Zero();
  ForVectors(n, [&](int64_t i, int64_t count) {
    const Vec16 v = LoadUpTo(x + i, count);  // fma(0, 0, lane) leaves a lane (>= +0) as it is
    lanes = Fma(v, v, lanes);
  });
  const float mean = LaneTree(lanes) / static_cast<float>(n);
  const Vec16 s = Set(1.0f / __builtin_sqrtf(mean + eps));
  ForVectors(n, [&](int64_t i, int64_t count) {
    StoreUpTo(Mul(Mul(LoadUpTo(x + i, count), s), LoadUpTo(w + i, count)), y + i, count);
  });
}

void AddRow(const float* x, int64_t n, float* y) {
  ForVectors(n, [&](int64_t i, int64_t count) {
    StoreUpTo(Add(LoadUpTo(y + i, count), LoadUpTo(x + i, count)), y + i, count);
  });
}

void SwiGlu(const float* gate, const float* up, int64_t n, float* y) {
  ForVectors(n, [&](int64_t i, int64_t count) {
    const Vec16 g = LoadUpTo(gate + i, count);
    const Vec16 sigmoid = Div(g, Add(Set(1.0f), Exp(Negate(g))));
    StoreUpTo(Mul(sigmoid, LoadUpTo(up + i, count)), y + i, count);
  });
}

void ScaleRow(const float* x, float s, int64_t n, float* y) {
  ForVectors(n, [&](int64_t i, int64_t count) {
    StoreUpTo(Mul(LoadUpTo(x + i, count), Set(s)), y + i, count);
  });
}

VC_INLINE void Rotate(Vec16* x0, Vec16* x1, Vec16 c, Vec16 s) {
  const Vec16 a = *x0;
  const Vec16 b = *x1;
  *x0 = Fma(a, c, Negate(Mul(b, s)));
  *x1 = Fma(b, c, Mul(a, s));
}

void RopeAdjacent(float* x, const float* cos, const float* sin, int64_t rotary_dim) {
  ForVectors(rotary_dim / 2, [&](int64_t i, int64_t count) {
    float even[16] = {};
    float odd[16] = {};
    for (int64_t j = 0; j < count; ++j) {
      even[j] = x[2 * (i + j)];
      odd[j] = x[2 * (i + j) + 1];
    }
    Vec16 x0 = Load(even);
    Vec16 x1 = Load(odd);
    Rotate(&x0, &x1, LoadUpTo(cos + i, count), LoadUpTo(sin + i, count));
    Store(x0, even);
    Store(x1, odd);
    for (int64_t j = 0; j < count; ++j) {
      x[2 * (i + j)] = even[j];
      x[2 * (i + j) + 1] = odd[j];
    }
  });
}

void RopeNeox(float* x, const float* cos, const float* sin, int64_t rotary_dim) {
  float* second = x + rotary_dim / 2;
  ForVectors(rotary_dim / 2, [&](int64_t i, int64_t count) {
    Vec16 x0 = LoadUpTo(x + i, count);
    Vec16 x1 = LoadUpTo(second + i, count);
    Rotate(&x0, &x1, LoadUpTo(cos + i, count), LoadUpTo(sin + i, count));
    StoreUpTo(x0, x + i, count);
    StoreUpTo(x1, second + i, count);
  });
}

void ToF16(const float* x, int64_t n, uint16_t* y) {
  ForVectors(n, [&](int64_t i, int64_t count) {
    if (count == 16) return StoreF16Saturated(Load(x + i), y + i);
    uint16_t last[16];
    StoreF16Saturated(LoadFirst(x + i, count), last);
    for (int64_t j = 0; j < count; ++j) y[i + j] = last[j];
  });
}

void FromF16(const uint16_t* x, int64_t n, float* y) {
  ForVectors(n, [&](int64_t i, int64_t count) {
    StoreUpTo(count == 16 ? Load(x + i) : LoadFirst(x + i, count), y + i, count);
  });
}

// Any order and any NaN: the slow way, for rows that are bad anyway.
ArgmaxResult ArgmaxOfFinite(const float* x, int64_t n) {
  int32_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    const bool finite = x[i] - x[i] == 0.0f;
    if (finite && (best < 0 || x[i] > x[best])) best = static_cast<int32_t>(i);
  }
  return {best, false};
}

// Each lane keeps its largest value and the first vector that held it; the lanes then compete, ties
// going to the lower id. Lanes compare strictly, so the first of equals stays.
ArgmaxResult Argmax(const float* x, int64_t n) {
  constexpr float kInf = __builtin_inff();
  Vec16 best = Set(-kInf);
  Vec16 best_at = Zero();  // vector index as fp32: exact below 2^24 vectors
  Vec16 bad = Zero();      // 0 until a lane sees inf - inf or NaN - NaN
  Vec16 at = Zero();
  ForVectors(n, [&](int64_t i, int64_t count) {
    Vec16 v = LoadUpTo(x + i, count);
    bad = Add(bad, Sub(v, v));
    if (count < 16) v = Select(FirstLanes(count), v, Set(-kInf));
    const Mask16 larger = Less(best, v);
    best = Select(larger, v, best);
    best_at = Select(larger, at, best_at);
    at = Add(at, Set(1.0f));
  });
  if (Any(Unordered(bad, bad))) return ArgmaxOfFinite(x, n);
  float values[16];
  float vectors[16];
  Store(best, values);
  Store(best_at, vectors);
  int64_t id = -1;
  float value = -kInf;
  for (int lane = 0; lane < 16; ++lane) {
    const int64_t lane_id = static_cast<int64_t>(vectors[lane]) * 16 + lane;
    if (values[lane] > value || (values[lane] == value && id >= 0 && lane_id < id)) {
      value = values[lane];
      id = lane_id;
    }
  }
  return {static_cast<int32_t>(id), true};
}

void ExpRow(const float* x, int64_t n, float* y) {
  ForVectors(
      n, [&](int64_t i, int64_t count) { StoreUpTo(Exp(LoadUpTo(x + i, count)), y + i, count); });
}

void AddSoftmax(float* x, int64_t n, float* y) {
  const Vec16 lowest = Set(-__builtin_inff());
  Vec16 max16 = lowest, bad = Zero();
  ForVectors(n, [&](int64_t i, int64_t count) {
    Vec16 v = LoadUpTo(x + i, count);
    bad = Add(bad, Sub(v, v));  // NaN where a value is not finite
    if (count < 16) v = Select(FirstLanes(count), v, lowest);
    max16 = MaxOrSecond(max16, v);
  });
  if (Any(Unordered(bad, bad))) return;
  const Vec16 max = Set(MaxLane(max16));
  Vec16 sum = Zero();
  ForVectors(n, [&](int64_t i, int64_t count) {
    Vec16 e = Exp(Sub(LoadUpTo(x + i, count), max));
    if (count < 16) e = Select(FirstLanes(count), e, Zero());
    StoreUpTo(e, x + i, count);
    sum = Add(sum, e);
  });
  const Vec16 inv = Set(1.0f / LaneTree(sum));
  ForVectors(n, [&](int64_t i, int64_t count) {
    StoreUpTo(Fma(LoadUpTo(x + i, count), inv, LoadUpTo(y + i, count)), y + i, count);
  });
}

}  // namespace

void FillRows(KernelTable* table) {
  table->rms_norm = RmsNorm;
  table->add = AddRow;
  table->swiglu = SwiGlu;
  table->scale = ScaleRow;
  table->rope_adjacent = RopeAdjacent;
  table->rope_neox = RopeNeox;
  table->f32_to_f16 = ToF16;
  table->f16_to_f32 = FromF16;
  table->argmax = Argmax;
  table->exp = ExpRow;
  table->add_softmax = AddSoftmax;
}

}  // namespace vericache::VC_KERNEL_NS
