// Sixteen fp32 lanes, as the contract counts them, on AVX2.
//
// Kernels are written over this type alone, so that another ISA needs only another copy of this
// file. Every operation rounds as its scalar twin does, lane by lane; FMA happens in Fma() only.
// Everything lives in an anonymous namespace (see scalar/scalar_math.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace vericache::VC_KERNEL_NS {
namespace {

#define VC_INLINE inline __attribute__((always_inline))
#define VC_NOINLINE __attribute__((noinline))

struct Vec16 {
  __m256 lo, hi;
};
// All bits set in the lanes that are true.
struct Mask16 {
  __m256 lo, hi;
};

VC_INLINE Vec16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
VC_INLINE Vec16 Set(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
VC_INLINE Vec16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
VC_INLINE void Store(Vec16 v, float* p) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
VC_INLINE Vec16 Load(const uint16_t* p) {  // f16
  const __m128i* half = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
}

VC_INLINE Vec16 Add(Vec16 a, Vec16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
VC_INLINE Vec16 Sub(Vec16 a, Vec16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
VC_INLINE Vec16 Mul(Vec16 a, Vec16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
VC_INLINE Vec16 Div(Vec16 a, Vec16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
VC_INLINE Vec16 Negate(Vec16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
VC_INLINE Vec16 Fma(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// a > b ? a : b, so b where either is NaN.
VC_INLINE Vec16 MaxOrSecond(Vec16 a, Vec16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
// a < b ? a : b, so b where either is NaN.
VC_INLINE Vec16 MinOrSecond(Vec16 a, Vec16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

VC_INLINE Mask16 Less(Vec16 a, Vec16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
VC_INLINE Mask16 Unordered(Vec16 a, Vec16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, b.hi, _CMP_UNORD_Q)};
}
VC_INLINE Mask16 Or(Mask16 a, Mask16 b) {
  return {_mm256_or_ps(a.lo, b.lo), _mm256_or_ps(a.hi, b.hi)};
}
VC_INLINE bool Any(Mask16 m) { return _mm256_movemask_ps(_mm256_or_ps(m.lo, m.hi)) != 0; }
// Lanes below n, for any n.
VC_INLINE Mask16 FirstLanes(int64_t n) {
  const __m256i count = _mm256_set1_epi32(static_cast<int32_t>(n));
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {
      _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)),
      _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8))))};
}
VC_INLINE Vec16 Select(Mask16 m, Vec16 yes, Vec16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
VC_INLINE Vec16 ZeroWhere(Mask16 m, Vec16 v) {
  return {_mm256_andnot_ps(m.lo, v.lo), _mm256_andnot_ps(m.hi, v.hi)};
}

// Partial vectors: lanes from n on read as zero and are not written.
template <typename T>
VC_INLINE Vec16 LoadFirst(const T* p, int64_t n) {
  T full[16] = {};
  for (int64_t i = 0; i < n; ++i) full[i] = p[i];
  return Load(full);
}
VC_INLINE void StoreFirst(Vec16 v, float* p, int64_t n) {
  float full[16];
  Store(v, full);
  for (int64_t i = 0; i < n; ++i) p[i] = full[i];
}

// Rounds to f16 after clamping to +-65504; NaN stays NaN (it is the second operand).
VC_INLINE void StoreF16Saturated(Vec16 v, uint16_t* p) {
  v = MaxOrSecond(Set(-65504.0f), MinOrSecond(Set(65504.0f), v));
  __m128i* half = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(half, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(half + 1, _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}

// Unsigned bytes and nibbles to fp32, exactly.
VC_INLINE __m256i WidenBytes(const uint8_t* p) {  // 8 bytes
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
VC_INLINE Vec16 LoadBytes(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(WidenBytes(p)), _mm256_cvtepi32_ps(WidenBytes(p + 8))};
}
VC_INLINE void LoadNibbles(const uint8_t* p, Vec16* low, Vec16* high) {
  const __m256i mask = _mm256_set1_epi32(15);
  const __m256i a = WidenBytes(p);
  const __m256i b = WidenBytes(p + 8);
  *low = {_mm256_cvtepi32_ps(_mm256_and_si256(a, mask)),
          _mm256_cvtepi32_ps(_mm256_and_si256(b, mask))};
  *high = {_mm256_cvtepi32_ps(_mm256_srli_epi32(a, 4)),
           _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 4))};
}

// The contract's tree: lane[i] += lane[i + s] for s = 8, 4, 2, 1.
VC_INLINE float LaneTree(Vec16 v) {
  const __m256 eight = _mm256_add_ps(v.lo, v.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// Largest lane; REQUIRES: no lane is NaN.
VC_INLINE float MaxLane(Vec16 v) {
  const __m256 eight = _mm256_max_ps(v.lo, v.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

VC_INLINE Vec16 RoundToInt(Vec16 v) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(v.lo, kMode), _mm256_round_ps(v.hi, kMode)};
}
// 2^n for integral n in [-126, 127]; garbage elsewhere.
VC_INLINE Vec16 Pow2(Vec16 n) {
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i lo = _mm256_add_epi32(_mm256_cvtps_epi32(n.lo), bias);
  const __m256i hi = _mm256_add_epi32(_mm256_cvtps_epi32(n.hi), bias);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(hi, 23))};
}

// The contract's exp. NaN passes through the arithmetic.
VC_INLINE Vec16 Exp(Vec16 x) {
  const Vec16 n = RoundToInt(Mul(x, Set(1.44269504f)));
  Vec16 f = Fma(n, Set(-0.693359375f), x);
  f = Fma(n, Set(2.12194440e-4f), f);
  Vec16 p = Set(1.9875691500e-4f);
  p = Fma(p, f, Set(1.3981999507e-3f));
  p = Fma(p, f, Set(8.3334519073e-3f));
  p = Fma(p, f, Set(4.1665795894e-2f));
  p = Fma(p, f, Set(1.6666665459e-1f));
  p = Fma(p, f, Set(5.0000001201e-1f));
  Vec16 y = Mul(Fma(p, Mul(f, f), Add(f, Set(1.0f))), Pow2(n));
  y = ZeroWhere(Less(x, Set(-87.0f)), y);
  return Select(Less(Set(88.0f), x), Set(__builtin_inff()), y);
}

// A constant that the compiler must keep in a register: left to itself, gcc folds a load of it into
// every operation, and loads, not FMAs, then bound the softmax.
VC_INLINE Vec16 InRegister(float x) {
  __m256 v = _mm256_set1_ps(x);
  asm("" : "+x"(v));
  return {v, v};
}

// The contract's exp2 for t <= 0. REQUIRES: no lane is NaN (then an integer addition may scale).
struct Exp2NonPositiveNoNan {
  // Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits.
  Vec16 magic = InRegister(0x1.8p23f);
  Vec16 c5 = InRegister(0x1.5bba14p-10f);
  Vec16 c4 = InRegister(0x1.3cea88p-7f);
  Vec16 c3 = InRegister(0x1.c6b752p-5f);
  Vec16 c2 = InRegister(0x1.ebf9bcp-3f);
  Vec16 c1 = InRegister(0x1.62e42ap-1f);
  Vec16 c0 = InRegister(1.0f);

  VC_INLINE Vec16 operator()(Vec16 t) const {
    const Vec16 k = Add(t, magic);
    const Vec16 f = Sub(t, Sub(k, magic));
    Vec16 p = Fma(c5, f, c4);
    p = Fma(p, f, c3);
    p = Fma(p, f, c2);
    p = Fma(p, f, c1);
    p = Fma(p, f, c0);
    const __m256i lo = _mm256_slli_epi32(_mm256_castps_si256(k.lo), 23);
    const __m256i hi = _mm256_slli_epi32(_mm256_castps_si256(k.hi), 23);
    const Vec16 y = {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.lo), lo)),
                     _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.hi), hi))};
    return ZeroWhere(Less(t, Set(-125.0f)), y);
  }
};

}  // namespace
}  // namespace vericache::VC_KERNEL_NS
