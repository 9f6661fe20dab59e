// Sixteen fp32 lanes, as the contract counts them, on AVX2.
//
// Include vec/vec16.h, which adds what is the same for all ISAs. Every operation rounds as its
// scalar twin does, lane by lane; FMA happens in Fma() only. Everything lives in an anonymous
// namespace (see scalar/scalar_math.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace vericache::VC_KERNEL_NS {
namespace {

// 32 vector registers instead of 16: wider tiles.
constexpr bool kManyRegisters = false;

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

// scale * code + min for the nibbles of 16 bytes: the low ones, then the high ones.
VC_INLINE void DecodeNibbles(const uint8_t* p, float scale, float min, Vec16* low, Vec16* high) {
  Vec16 a, b;
  LoadNibbles(p, &a, &b);
  *low = Fma(Set(scale), a, Set(min));
  *high = Fma(Set(scale), b, Set(min));
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

// A constant that the compiler must keep in a register: left to itself, gcc folds a load of it into
// every operation, and loads, not FMAs, then bound the softmax.
VC_INLINE Vec16 InRegister(float x) {
  __m256 v = _mm256_set1_ps(x);
  asm("" : "+x"(v));
  return {v, v};
}

// p with the low bits of k added to its exponent.
VC_INLINE Vec16 AddToExponent(Vec16 p, Vec16 k) {
  const __m256i lo = _mm256_slli_epi32(_mm256_castps_si256(k.lo), 23);
  const __m256i hi = _mm256_slli_epi32(_mm256_castps_si256(k.hi), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.lo), lo)),
          _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.hi), hi))};
}

}  // namespace
}  // namespace vericache::VC_KERNEL_NS
