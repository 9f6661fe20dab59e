// The judge of the weight kernels: plain loops over GGUF blocks, line by line docs/exactness.md.
#include "kernels/gguf_blocks.h"
#include "kernels/scalar/scalar_math.h"
#include "kernels/table_parts.h"

namespace vericache::VC_KERNEL_NS {
namespace {

int64_t RowBytes(TensorType type, int64_t cols) {
  switch (type) {
    case TensorType::kF32:
      return cols * 4;
    case TensorType::kF16:
    case TensorType::kBF16:
      return cols * 2;
    case TensorType::kQ8_0:
      return cols / 32 * static_cast<int64_t>(sizeof(BlockQ8_0));
    case TensorType::kQ5_0:
      return cols / 32 * static_cast<int64_t>(sizeof(BlockQ5_0));
    case TensorType::kQ4_1:
      return cols / 32 * static_cast<int64_t>(sizeof(BlockQ4_1));
    case TensorType::kQ4_K:
      return cols / 256 * static_cast<int64_t>(sizeof(BlockQ4_K));
    case TensorType::kQ6_K:
      return cols / 256 * static_cast<int64_t>(sizeof(BlockQ6_K));
  }
  return 0;
}

int64_t PaddedRows(int64_t rows) { return (rows + kOutTile - 1) / kOutTile * kOutTile; }

// The layout is GGUF's own.
size_t PackedBytes(TensorType type, int64_t rows, int64_t cols) {
  return static_cast<size_t>(PaddedRows(rows) * RowBytes(type, cols));
}

void Pack(TensorType type, int64_t rows, int64_t cols, const uint8_t* src, uint8_t* dst,
          int64_t row_begin, int64_t row_end) {
  const int64_t row_bytes = RowBytes(type, cols);
  std::memcpy(dst + row_begin * row_bytes, src + row_begin * row_bytes,
              static_cast<size_t>((row_end - row_begin) * row_bytes));
  if (row_end == rows) {
    std::memset(dst + rows * row_bytes, 0,
                static_cast<size_t>((PaddedRows(rows) - rows) * row_bytes));
  }
}

void QuantizeRow(const float* x, int64_t n, int block, int sum_block, int8_t* q, float* scale,
                 int16_t* sums) {
  for (int64_t b = 0; b < n / block; ++b) {
    scale[b] = QuantizeBlock(x + b * block, block, q + b * block);
  }
  for (int64_t s = 0; s < n / sum_block; ++s) {
    int sum = 0;
    for (int i = 0; i < sum_block; ++i) sum += q[s * sum_block + i];
    sums[s] = static_cast<int16_t>(sum);
  }
}

void QuantizePer32(const float* x, int64_t n, int8_t* q, float* scale, int16_t* sums) {
  QuantizeRow(x, n, 32, 32, q, scale, sums);
}
void QuantizePer256(const float* x, int64_t n, int8_t* q, float* scale, int16_t* sums) {
  QuantizeRow(x, n, 256, 16, q, scale, sums);
}

// One activation row, as the dot products below want it.
struct ActRow {
  const float* f32;
  const int8_t* q;
  const float* scale;
  const int16_t* sums;
};

float DotF32(const uint8_t* w, int64_t cols, const ActRow& x) {
  float acc = 0.0f;
  for (int64_t k = 0; k < cols; ++k) {
    float weight;
    std::memcpy(&weight, w + 4 * k, sizeof(weight));
    acc = __builtin_fmaf(weight, x.f32[k], acc);
  }
  return acc;
}

float DotHalf(TensorType type, const uint8_t* w, int64_t cols, const ActRow& x) {
  float acc = 0.0f;
  for (int64_t k = 0; k < cols; ++k) {
    uint16_t bits;
    std::memcpy(&bits, w + 2 * k, sizeof(bits));
    const float weight = type == TensorType::kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
    acc = __builtin_fmaf(weight, x.f32[k], acc);
  }
  return acc;
}

float DotQ8_0(const uint8_t* w, int64_t cols, const ActRow& x) {
  float acc = 0.0f;
  for (int64_t b = 0; b < cols / 32; ++b) {
    BlockQ8_0 block;
    std::memcpy(&block, w + b * sizeof(block), sizeof(block));
    int32_t s = 0;
    for (int k = 0; k < 32; ++k) s += block.q[k] * x.q[b * 32 + k];
    acc = __builtin_fmaf(static_cast<float>(s), HalfToFloat(block.d) * x.scale[b], acc);
  }
  return acc;
}

float DotQ5_0(const uint8_t* w, int64_t cols, const ActRow& x) {
  float acc = 0.0f;
  for (int64_t b = 0; b < cols / 32; ++b) {
    BlockQ5_0 block;
    std::memcpy(&block, w + b * sizeof(block), sizeof(block));
    uint8_t codes[32];
    CodesQ5_0(block, codes);
    int32_t s = 0;
    for (int k = 0; k < 32; ++k) s += (codes[k] - 16) * x.q[b * 32 + k];
    acc = __builtin_fmaf(static_cast<float>(s), HalfToFloat(block.d) * x.scale[b], acc);
  }
  return acc;
}

float DotQ4_1(const uint8_t* w, int64_t cols, const ActRow& x) {
  float acc = 0.0f;
  for (int64_t b = 0; b < cols / 32; ++b) {
    BlockQ4_1 block;
    std::memcpy(&block, w + b * sizeof(block), sizeof(block));
    uint8_t codes[32];
    CodesQ4_1(block, codes);
    int32_t s = 0;
    for (int k = 0; k < 32; ++k) s += codes[k] * x.q[b * 32 + k];
    const float sum = static_cast<float>(x.sums[b]);
    acc = __builtin_fmaf(static_cast<float>(s), HalfToFloat(block.d) * x.scale[b], acc);
    acc = __builtin_fmaf(sum, HalfToFloat(block.m) * x.scale[b], acc);
  }
  return acc;
}

float DotQ4_K(const uint8_t* w, int64_t cols, const ActRow& x) {
  float acc = 0.0f;
  for (int64_t b = 0; b < cols / 256; ++b) {
    BlockQ4_K block;
    std::memcpy(&block, w + b * sizeof(block), sizeof(block));
    uint8_t codes[256];
    CodesQ4_K(block, codes);
    const int8_t* q = x.q + b * 256;
    const int16_t* sums = x.sums + b * 16;
    int32_t s = 0;
    int32_t m = 0;
    for (int j = 0; j < 8; ++j) {
      int scale, min;
      ScaleMinQ4_K(block.scales, j, &scale, &min);
      int32_t dot = 0;
      for (int k = 0; k < 32; ++k) dot += codes[j * 32 + k] * q[j * 32 + k];
      s += scale * dot;
      m += min * (sums[2 * j] + sums[2 * j + 1]);
    }
    acc = __builtin_fmaf(static_cast<float>(s), HalfToFloat(block.d) * x.scale[b], acc);
    acc = __builtin_fmaf(-static_cast<float>(m), HalfToFloat(block.dmin) * x.scale[b], acc);
  }
  return acc;
}

float DotQ6_K(const uint8_t* w, int64_t cols, const ActRow& x) {
  float acc = 0.0f;
  for (int64_t b = 0; b < cols / 256; ++b) {
    BlockQ6_K block;
    std::memcpy(&block, w + b * sizeof(block), sizeof(block));
    uint8_t codes[256];
    CodesQ6_K(block, codes);
    const int8_t* q = x.q + b * 256;
    int32_t s = 0;
    for (int j = 0; j < 16; ++j) {
      int32_t dot = 0;
      for (int k = 0; k < 16; ++k) dot += (codes[j * 16 + k] - 32) * q[j * 16 + k];
      s += block.scales[j] * dot;
    }
    acc = __builtin_fmaf(static_cast<float>(s), HalfToFloat(block.d) * x.scale[b], acc);
  }
  return acc;
}

float Dot(TensorType type, const uint8_t* w, int64_t cols, const ActRow& x) {
  switch (type) {
    case TensorType::kF32:
      return DotF32(w, cols, x);
    case TensorType::kF16:
    case TensorType::kBF16:
      return DotHalf(type, w, cols, x);
    case TensorType::kQ8_0:
      return DotQ8_0(w, cols, x);
    case TensorType::kQ5_0:
      return DotQ5_0(w, cols, x);
    case TensorType::kQ4_1:
      return DotQ4_1(w, cols, x);
    case TensorType::kQ4_K:
      return DotQ4_K(w, cols, x);
    case TensorType::kQ6_K:
      return DotQ6_K(w, cols, x);
  }
  return 0.0f;
}

ActRow RowOf(const Activations& x, int64_t row) {
  if (x.format == ActFormat::kF32) return {x.f32 + row * x.cols, nullptr, nullptr, nullptr};
  const int64_t block = x.format == ActFormat::kInt8Per32 ? 32 : 256;
  const int64_t sum_block = x.format == ActFormat::kInt8Per32 ? 32 : 16;
  return {nullptr, x.q + row * x.cols, x.scale + row * (x.cols / block),
          x.sums + row * (x.cols / sum_block)};
}

void Matmul(const PackedMatrix& w, const Activations& x, int64_t num_rows, int64_t out_begin,
            int64_t out_end, float* y, int64_t ldy) {
  const int64_t row_bytes = RowBytes(w.type, w.cols);
  for (int64_t r = 0; r < num_rows; ++r) {
    const ActRow row = RowOf(x, r);
    for (int64_t o = out_begin; o < out_end; ++o) {
      y[r * ldy + o] = Dot(w.type, w.data + o * row_bytes, w.cols, row);
    }
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

}  // namespace vericache::VC_KERNEL_NS
