// Entry of the AVX-512 weight kernels, and the plain float types. Packing and quantising are the
// AVX2 functions: both tables share one layout.
#include "kernels/avx512/matmul.h"

#include "kernels/avx512/blocked.h"
#include "kernels/table_parts.h"

namespace vericache::avx512 {
namespace {

template <TensorType kType>
inline __m512 LoadWeights(const uint8_t* p) {
  if constexpr (kType == TensorType::kF32) return _mm512_loadu_ps(p);
  const __m256i halfs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if constexpr (kType == TensorType::kF16) return _mm512_cvtph_ps(halfs);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halfs), 16));
}

// One FMA chain an output over all k.
template <TensorType kType, int kRows>
void FloatRows(const uint8_t* tile, int64_t cols, const float* x, float* y, int64_t ldy,
               __mmask16 lanes) {
  constexpr int64_t kBytes = kType == TensorType::kF32 ? 4 : 2;
  __m512 acc[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) acc[m] = _mm512_setzero_ps();
  for (int64_t k = 0; k < cols; ++k, tile += 16 * kBytes) {
    const __m512 w = LoadWeights<kType>(tile);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      acc[m] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[m * cols + k]), acc[m]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) _mm512_mask_storeu_ps(y + m * ldy, lanes, acc[m]);
}

template <TensorType kType>
void FloatMatmul(const MatmulArgs& args) {
  constexpr int64_t kBytes = kType == TensorType::kF32 ? 4 : 2;
  const int64_t cols = args.w.cols;
  for (int64_t o = args.out_begin; o < args.out_end; o += kTileRows) {
    const uint8_t* tile = args.w.data + o * cols * kBytes;
    const __mmask16 lanes = LanesFrom(args.w.rows - o);
    float* y = args.y + o;
    const float* x = args.x.f32;
    for (int64_t r = 0, left = args.num_rows; left > 0;) {
      // Passes of nearly equal size: a chain's latency hides behind the others'.
      const int64_t passes = (left + kMaxRows - 1) / kMaxRows;
      const int n = static_cast<int>((left + passes - 1) / passes);
      WithRows<kMaxRows>(n, [&]<int R>() {
        FloatRows<kType, R>(tile, cols, x + r * cols, y + r * args.ldy, args.ldy, lanes);
      });
      r += n;
      left -= n;
    }
  }
}

void Matmul(const PackedMatrix& w, const Activations& x, int64_t num_rows, int64_t out_begin,
            int64_t out_end, float* y, int64_t ldy) {
  const MatmulArgs args = {w, x, num_rows, out_begin, out_end, y, ldy};
  switch (w.type) {
    case TensorType::kF32:
      return FloatMatmul<TensorType::kF32>(args);
    case TensorType::kF16:
      return FloatMatmul<TensorType::kF16>(args);
    case TensorType::kBF16:
      return FloatMatmul<TensorType::kBF16>(args);
    case TensorType::kQ8_0:
      return avx512::MatmulQ8_0(args);
    case TensorType::kQ5_0:
      return avx512::MatmulQ5_0(args);
    case TensorType::kQ4_1:
      return avx512::MatmulQ4_1(args);
    case TensorType::kQ4_K:
      return avx512::MatmulQ4_K(args);
    case TensorType::kQ6_K:
      return avx512::MatmulQ6_K(args);
  }
}

}  // namespace

void FillMatmul(KernelTable* table) {
  table->packed_bytes = avx2::PackedBytes;
  table->pack = avx2::Pack;
  table->quantize_per32 = avx2::QuantizePer32;
  table->quantize_per256 = avx2::QuantizePer256;
  table->matmul = Matmul;
}

}  // namespace vericache::avx512
