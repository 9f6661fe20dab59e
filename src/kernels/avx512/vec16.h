// Sixteen fp32 lanes, as the contract counts them, in one AVX-512 register.
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
constexpr bool kManyRegisters = true;

struct Vec16 {
  __m512 v;
};
struct Mask16 {
  __mmask16 bits;
};

VC_INLINE Vec16 Zero() { return {_mm512_setzero_ps()}; }
VC_INLINE Vec16 Set(float x) { return {_mm512_set1_ps(x)}; }
VC_INLINE Vec16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
VC_INLINE void Store(Vec16 v, float* p) { _mm512_storeu_ps(p, v.v); }
VC_INLINE Vec16 Load(const uint16_t* p) {  // f16
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

VC_INLINE Vec16 Add(Vec16 a, Vec16 b) { return {_mm512_add_ps(a.v, b.v)}; }
VC_INLINE Vec16 Sub(Vec16 a, Vec16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
VC_INLINE Vec16 Mul(Vec16 a, Vec16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
VC_INLINE Vec16 Div(Vec16 a, Vec16 b) { return {_mm512_div_ps(a.v, b.v)}; }
VC_INLINE Vec16 Negate(Vec16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
VC_INLINE Vec16 Fma(Vec16 a, Vec16 b, Vec16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a > b ? a : b, so b where either is NaN.
VC_INLINE Vec16 MaxOrSecond(Vec16 a, Vec16 b) { return {_mm512_max_ps(a.v, b.v)}; }
// a < b ? a : b, so b where either is NaN.
VC_INLINE Vec16 MinOrSecond(Vec16 a, Vec16 b) { return {_mm512_min_ps(a.v, b.v)}; }

VC_INLINE Mask16 Less(Vec16 a, Vec16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
VC_INLINE Mask16 Unordered(Vec16 a, Vec16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q)};
}
VC_INLINE Mask16 Or(Mask16 a, Mask16 b) { return {static_cast<__mmask16>(a.bits | b.bits)}; }
VC_INLINE bool Any(Mask16 m) { return m.bits != 0; }
// Lanes below n, for any n.
VC_INLINE Mask16 FirstLanes(int64_t n) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm512_cmpgt_epi32_mask(_mm512_set1_epi32(static_cast<int32_t>(n)), lane)};
}
VC_INLINE Vec16 Select(Mask16 m, Vec16 yes, Vec16 no) {
  return {_mm512_mask_blend_ps(m.bits, no.v, yes.v)};
}
VC_INLINE Vec16 ZeroWhere(Mask16 m, Vec16 v) {
  return {_mm512_maskz_mov_ps(static_cast<__mmask16>(~m.bits), v.v)};
}

// Rounds to f16 after clamping to +-65504; NaN stays NaN (it is the second operand).
VC_INLINE void StoreF16Saturated(Vec16 v, uint16_t* p) {
  v = MaxOrSecond(Set(-65504.0f), MinOrSecond(Set(65504.0f), v));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT));
}

VC_INLINE Vec16 Abs(Vec16 a) { return {_mm512_abs_ps(a.v)}; }
// Rounded half to even; REQUIRES: within +-127.
VC_INLINE void StoreInt8(Vec16 v, int8_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v.v)));
}

// Sixteen int32 sums, and sixteen times four unsigned bytes to multiply.
struct Sum16 {
  __m512i v;
};
struct Bytes64 {
  __m512i v;
};
VC_INLINE Sum16 ZeroSum() { return {_mm512_setzero_si512()}; }
VC_INLINE Vec16 ToFloat(Sum16 s) { return {_mm512_cvtepi32_ps(s.v)}; }
VC_INLINE Bytes64 LoadBytes64(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
VC_INLINE void StoreBytes64(Bytes64 b, uint8_t* p) { _mm512_storeu_si512(p, b.v); }
VC_INLINE Bytes64 Or(Bytes64 a, Bytes64 b) { return {_mm512_or_si512(a.v, b.v)}; }
// Every byte & mask.
VC_INLINE Bytes64 Mask(Bytes64 b, uint8_t mask) {
  return {_mm512_and_si512(b.v, _mm512_set1_epi8(static_cast<char>(mask)))};
}
// Shifts pairs of bytes, so bits cross from one to the other: mask what came in.
VC_INLINE Bytes64 ShiftRight(Bytes64 b, int n) {
  return {_mm512_srli_epi16(b.v, static_cast<unsigned>(n))};
}
VC_INLINE Bytes64 ShiftLeft(Bytes64 b, int n) {
  return {_mm512_slli_epi16(b.v, static_cast<unsigned>(n))};
}
// Byte i of every four from rows[i], rounded half to even; REQUIRES: within 0 to 255.
VC_INLINE Bytes64 PackBytes(const Vec16 rows[4]) {
  Bytes64 b = {_mm512_cvtps_epi32(rows[0].v)};
  for (unsigned i = 1; i < 4; ++i)
    b = Or(b, {_mm512_slli_epi32(_mm512_cvtps_epi32(rows[i].v), 8 * i)});
  return b;
}
VC_INLINE Bytes64 LowNibbles(Bytes64 b) { return Mask(b, 15); }
VC_INLINE Bytes64 HighNibbles(Bytes64 b) { return Mask(ShiftRight(b, 4), 15); }
// s += codes times the four values.
VC_INLINE Sum16 AddWholeBytes(Bytes64 codes, const int8_t* four, Sum16 s) {
  int32_t bits;
  __builtin_memcpy(&bits, four, sizeof(bits));
  return {_mm512_dpbusd_epi32(s.v, codes.v, _mm512_set1_epi32(bits))};
}
// AVX2 adds nibbles and small bytes up in 16 bits first; here there is nothing to gain.
VC_INLINE Sum16 AddSmallBytes(Bytes64 codes, const int8_t* four, Sum16 s) {
  return AddWholeBytes(codes, four, s);
}
using Pairs32 = Sum16;
VC_INLINE Pairs32 ZeroPairs() { return ZeroSum(); }
VC_INLINE Pairs32 AddNibbles(Bytes64 codes, const int8_t* four, Pairs32 s) {
  return AddWholeBytes(codes, four, s);
}
VC_INLINE Sum16 AddPairs(Pairs32 pairs, Sum16 s) { return {_mm512_add_epi32(pairs.v, s.v)}; }

// The contract's tree: lane[i] += lane[i + s] for s = 8, 4, 2, 1.
VC_INLINE float LaneTree(Vec16 v) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v.v), _mm512_extractf32x8_ps(v.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// Largest lane; REQUIRES: no lane is NaN.
VC_INLINE float MaxLane(Vec16 v) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v.v), _mm512_extractf32x8_ps(v.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

VC_INLINE Vec16 RoundToInt(Vec16 v) {
  return {_mm512_roundscale_ps(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for integral n in [-126, 127]; garbage elsewhere.
VC_INLINE Vec16 Pow2(Vec16 n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}

// A constant that the compiler must keep in a register.
VC_INLINE Vec16 InRegister(float x) {
  __m512 v = _mm512_set1_ps(x);
  asm("" : "+v"(v));
  return {v};
}

// p with the low bits of k added to its exponent.
VC_INLINE Vec16 AddToExponent(Vec16 p, Vec16 k) {
  const __m512i shift = _mm512_slli_epi32(_mm512_castps_si512(k.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), shift))};
}

}  // namespace
}  // namespace vericache::VC_KERNEL_NS
