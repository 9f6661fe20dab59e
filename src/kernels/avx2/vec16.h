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

VC_INLINE Vec16 Abs(Vec16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
// Rounded half to even; REQUIRES: within +-127.
VC_INLINE void StoreInt8(Vec16 v, int8_t* p) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

// Sixteen int32 sums, and sixteen times four unsigned bytes to multiply.
struct Sum16 {
  __m256i lo, hi;
};
struct Bytes64 {
  __m256i lo, hi;
};
VC_INLINE Sum16 ZeroSum() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
VC_INLINE Vec16 ToFloat(Sum16 s) { return {_mm256_cvtepi32_ps(s.lo), _mm256_cvtepi32_ps(s.hi)}; }
VC_INLINE Bytes64 LoadBytes64(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
VC_INLINE void StoreBytes64(Bytes64 b, uint8_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), b.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), b.hi);
}
VC_INLINE Bytes64 Or(Bytes64 a, Bytes64 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
// Every byte & mask.
VC_INLINE Bytes64 Mask(Bytes64 b, uint8_t mask) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
  return {_mm256_and_si256(b.lo, m), _mm256_and_si256(b.hi, m)};
}
// Shifts pairs of bytes, so bits cross from one to the other: mask what came in.
VC_INLINE Bytes64 ShiftRight(Bytes64 b, int n) {
  return {_mm256_srli_epi16(b.lo, n), _mm256_srli_epi16(b.hi, n)};
}
VC_INLINE Bytes64 ShiftLeft(Bytes64 b, int n) {
  return {_mm256_slli_epi16(b.lo, n), _mm256_slli_epi16(b.hi, n)};
}
// Byte i of every four from rows[i], rounded half to even; REQUIRES: within 0 to 255.
VC_INLINE Bytes64 PackBytes(const Vec16 rows[4]) {
  Bytes64 b = {_mm256_cvtps_epi32(rows[0].lo), _mm256_cvtps_epi32(rows[0].hi)};
  for (int i = 1; i < 4; ++i) {
    b = Or(b, {_mm256_slli_epi32(_mm256_cvtps_epi32(rows[i].lo), 8 * i),
               _mm256_slli_epi32(_mm256_cvtps_epi32(rows[i].hi), 8 * i)});
  }
  return b;
}
VC_INLINE Bytes64 LowNibbles(Bytes64 b) { return Mask(b, 15); }
VC_INLINE Bytes64 HighNibbles(Bytes64 b) { return Mask(ShiftRight(b, 4), 15); }
VC_INLINE __m256i FourTimes(const int8_t* four) {
  int32_t bits;
  __builtin_memcpy(&bits, four, sizeof(bits));
  return _mm256_set1_epi32(bits);
}
// Sums of nibbles times int8 in int16 lanes: eight steps of at most 2 * 15 * 127 fit.
struct Pairs32 {
  __m256i lo, hi;
};
VC_INLINE Pairs32 ZeroPairs() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
VC_INLINE Pairs32 AddNibbles(Bytes64 codes, const int8_t* four, Pairs32 s) {
  const __m256i x = FourTimes(four);
  return {_mm256_add_epi16(s.lo, _mm256_maddubs_epi16(codes.lo, x)),
          _mm256_add_epi16(s.hi, _mm256_maddubs_epi16(codes.hi, x))};
}
VC_INLINE Sum16 AddPairs(Pairs32 pairs, Sum16 s) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(s.lo, _mm256_madd_epi16(pairs.lo, ones)),
          _mm256_add_epi32(s.hi, _mm256_madd_epi16(pairs.hi, ones))};
}
// s += whole bytes times the four values. Their pairs would not fit 16 bits: by nibbles.
VC_INLINE Sum16 AddWholeBytes(Bytes64 codes, const int8_t* four, Sum16 s) {
  const __m256i x = FourTimes(four), sixteen = _mm256_set1_epi16(16);
  const Bytes64 high = HighNibbles(codes);
  s = AddPairs(AddNibbles(LowNibbles(codes), four, ZeroPairs()), s);
  return {_mm256_add_epi32(s.lo, _mm256_madd_epi16(_mm256_maddubs_epi16(high.lo, x), sixteen)),
          _mm256_add_epi32(s.hi, _mm256_madd_epi16(_mm256_maddubs_epi16(high.hi, x), sixteen))};
}
// The same for bytes up to 127: their pairs fit.
VC_INLINE Sum16 AddSmallBytes(Bytes64 codes, const int8_t* four, Sum16 s) {
  return AddPairs(AddNibbles(codes, four, ZeroPairs()), s);
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
