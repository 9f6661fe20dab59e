// Activations to int8 with one scale per 32 or 256 values (docs/exactness.md, "Weight matrices").
#include "kernels/avx2/weights.h"

namespace vericache::avx2 {
namespace {

// Largest magnitude of n values (n a multiple of 8); false if any is NaN or infinite.
bool LargestMagnitude(const float* x, int n, float* amax) {
  const __m256 magnitude_bits = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m256 infinity = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
  __m256 largest = _mm256_setzero_ps();
  __m256 finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
  for (int i = 0; i < n; i += 8) {
    const __m256 magnitude = _mm256_and_ps(_mm256_loadu_ps(x + i), magnitude_bits);
    // Ordered comparison: false for NaN as well as for infinity.
    finite = _mm256_and_ps(finite, _mm256_cmp_ps(magnitude, infinity, _CMP_LT_OQ));
    largest = _mm256_max_ps(largest, magnitude);
  }
  if (_mm256_movemask_ps(finite) != 255) return false;
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_movehdup_ps(m));
  *amax = _mm_cvtss_f32(m);
  return true;
}

// 32 codes: cvtps rounds half to even; all fit int8, so the saturating packs change nothing.
__m256i Codes32(const float* x, __m256 inverse) {
  __m256i v[4];
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
  }
  const __m256i bytes =
      _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
  // The packs work within 128-bit halves: put the groups of four back in order.
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Sums of the codes' lower and upper 16.
void Sums16(__m256i codes, int32_t* lower, int32_t* upper) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
  const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  const __m256i twos = _mm256_add_epi32(fours, _mm256_srli_si256(fours, 8));
  const __m256i ones = _mm256_add_epi32(twos, _mm256_srli_si256(twos, 4));
  *lower = _mm_cvtsi128_si32(_mm256_castsi256_si128(ones));
  *upper = _mm_cvtsi128_si32(_mm256_extracti128_si256(ones, 1));
}

// Scale of one block of n values; *inverse is 0 where all codes are 0.
float BlockScale(const float* x, int n, float* inverse) {
  float amax;
  *inverse = 0.0f;
  if (!LargestMagnitude(x, n, &amax)) return __builtin_nanf("");
  if (amax < 0x1p-100f) return 0.0f;
  *inverse = 127.0f / amax;
  return amax / 127.0f;
}

// Codes of 32 values; NaN times zero must give code 0, so a zero inverse is not multiplied.
__m256i StoreCodes(const float* x, float inverse, int8_t* q) {
  const __m256i codes =
      inverse == 0.0f ? _mm256_setzero_si256() : Codes32(x, _mm256_set1_ps(inverse));
  Store256(q, codes);
  return codes;
}

}  // namespace

void QuantizePer32(const float* x, int64_t n, int8_t* q, float* scale, int16_t* sums) {
  for (int64_t b = 0; b < n / 32; ++b) {
    float inverse;
    scale[b] = BlockScale(x + 32 * b, 32, &inverse);
    int32_t lower, upper;
    Sums16(StoreCodes(x + 32 * b, inverse, q + 32 * b), &lower, &upper);
    sums[b] = static_cast<int16_t>(lower + upper);
  }
}

void QuantizePer256(const float* x, int64_t n, int8_t* q, float* scale, int16_t* sums) {
  for (int64_t b = 0; b < n / 256; ++b) {
    float inverse;
    scale[b] = BlockScale(x + 256 * b, 256, &inverse);
    for (int64_t s = 8 * b; s < 8 * b + 8; ++s) {
      int32_t lower, upper;
      Sums16(StoreCodes(x + 32 * s, inverse, q + 32 * s), &lower, &upper);
      sums[2 * s] = static_cast<int16_t>(lower);
      sums[2 * s + 1] = static_cast<int16_t>(upper);
    }
  }
}

}  // namespace vericache::avx2
