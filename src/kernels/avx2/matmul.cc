// Entry of the AVX2 weight kernels, and the plain float types.
#include "kernels/avx2/weights.h"
#include "kernels/table_parts.h"

namespace vericache::avx2 {
namespace {

template <TensorType kType>
inline __m256 LoadWeights(const uint8_t* p) {
  if constexpr (kType == TensorType::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  if constexpr (kType == TensorType::kF16) return LoadHalf8(p);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Load128(p)), 16));
}

// One FMA chain an output over all k.
template <TensorType kType, int kRows>
void FloatRows(const uint8_t* tile, int64_t cols, const float* x, float* y, int64_t ldy,
               const TileMask& mask) {
  constexpr int64_t kBytes = kType == TensorType::kF32 ? 4 : 2;
  __m256 acc[kRows][2];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) acc[m][0] = acc[m][1] = _mm256_setzero_ps();
  for (int64_t k = 0; k < cols; ++k, tile += 16 * kBytes) {
    const __m256 w0 = LoadWeights<kType>(tile);
    const __m256 w1 = LoadWeights<kType>(tile + 8 * kBytes);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m256 v = _mm256_broadcast_ss(x + m * cols + k);
      acc[m][0] = _mm256_fmadd_ps(w0, v, acc[m][0]);
      acc[m][1] = _mm256_fmadd_ps(w1, v, acc[m][1]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    StoreOutputs(mask, y + m * ldy, 0, acc[m][0]);
    StoreOutputs(mask, y + m * ldy, 1, acc[m][1]);
  }
}

template <TensorType kType>
void FloatMatmul(const MatmulArgs& args) {
  constexpr int64_t kBytes = kType == TensorType::kF32 ? 4 : 2;
  const int64_t cols = args.w.cols;
  for (int64_t o = args.out_begin; o < args.out_end; o += kTileRows) {
    const uint8_t* tile = args.w.data + o * cols * kBytes;
    const TileMask mask = MaskFor(args.w.rows - o);
    float* y = args.y + o;
    const float* x = args.x.f32;
    int64_t r = 0;
    for (; r + 6 <= args.num_rows; r += 6) {
      FloatRows<kType, 6>(tile, cols, x + r * cols, y + r * args.ldy, args.ldy, mask);
    }
    for (; r + 2 <= args.num_rows; r += 2) {
      FloatRows<kType, 2>(tile, cols, x + r * cols, y + r * args.ldy, args.ldy, mask);
    }
    for (; r < args.num_rows; ++r) {
      FloatRows<kType, 1>(tile, cols, x + r * cols, y + r * args.ldy, args.ldy, mask);
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
      return MatmulQ8_0(args);
    case TensorType::kQ5_0:
      return MatmulQ5_0(args);
    case TensorType::kQ4_1:
      return MatmulQ4_1(args);
    case TensorType::kQ4_K:
      return MatmulQ4_K(args);
    case TensorType::kQ6_K:
      return MatmulQ6_K(args);
  }
}

}  // namespace

void FillMatmul(KernelTable* table) {
  table->packed_bytes = PackedBytes;
  table->pack = Pack;
  table->quantize_per32 = QuantizePer32;
  table->quantize_per256 = QuantizePer256;
  table->matmul = Matmul;
}

}  // namespace vericache::avx2
