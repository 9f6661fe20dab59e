// One row of a GGUF tensor as fp32: token embeddings.
#include "base/check.h"
#include "kernels/gguf_blocks.h"
#include "kernels/kernels.h"

namespace vericache {
namespace {

void RowQ8_0(const uint8_t* src, int64_t n, float* y) {
  for (int64_t b = 0; b < n / 32; ++b) {
    BlockQ8_0 block;
    std::memcpy(&block, src + b * sizeof(block), sizeof(block));
    const float d = HalfToFloat(block.d);
    for (int k = 0; k < 32; ++k) y[b * 32 + k] = d * static_cast<float>(block.q[k]);
  }
}

void RowQ5_0(const uint8_t* src, int64_t n, float* y) {
  for (int64_t b = 0; b < n / 32; ++b) {
    BlockQ5_0 block;
    std::memcpy(&block, src + b * sizeof(block), sizeof(block));
    uint8_t codes[32];
    CodesQ5_0(block, codes);
    const float d = HalfToFloat(block.d);
    for (int k = 0; k < 32; ++k) y[b * 32 + k] = d * static_cast<float>(codes[k] - 16);
  }
}

void RowQ4_1(const uint8_t* src, int64_t n, float* y) {
  for (int64_t b = 0; b < n / 32; ++b) {
    BlockQ4_1 block;
    std::memcpy(&block, src + b * sizeof(block), sizeof(block));
    uint8_t codes[32];
    CodesQ4_1(block, codes);
    const float d = HalfToFloat(block.d);
    const float m = HalfToFloat(block.m);
    for (int k = 0; k < 32; ++k) y[b * 32 + k] = d * static_cast<float>(codes[k]) + m;
  }
}

void RowQ4_K(const uint8_t* src, int64_t n, float* y) {
  for (int64_t b = 0; b < n / 256; ++b) {
    BlockQ4_K block;
    std::memcpy(&block, src + b * sizeof(block), sizeof(block));
    uint8_t codes[256];
    CodesQ4_K(block, codes);
    const float d = HalfToFloat(block.d);
    const float dmin = HalfToFloat(block.dmin);
    for (int j = 0; j < 8; ++j) {
      int scale, min;
      ScaleMinQ4_K(block.scales, j, &scale, &min);
      const float step = d * static_cast<float>(scale);
      const float offset = dmin * static_cast<float>(min);
      for (int k = 0; k < 32; ++k) {
        y[b * 256 + j * 32 + k] = step * static_cast<float>(codes[j * 32 + k]) - offset;
      }
    }
  }
}

void RowQ6_K(const uint8_t* src, int64_t n, float* y) {
  for (int64_t b = 0; b < n / 256; ++b) {
    BlockQ6_K block;
    std::memcpy(&block, src + b * sizeof(block), sizeof(block));
    uint8_t codes[256];
    CodesQ6_K(block, codes);
    const float d = HalfToFloat(block.d);
    for (int k = 0; k < 256; ++k) {
      const float step = d * static_cast<float>(block.scales[k / 16]);
      y[b * 256 + k] = step * static_cast<float>(codes[k] - 32);
    }
  }
}

void RowHalf(TensorType type, const uint8_t* src, int64_t n, float* y) {
  for (int64_t k = 0; k < n; ++k) {
    uint16_t bits;
    std::memcpy(&bits, src + 2 * k, sizeof(bits));
    y[k] = type == TensorType::kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
  }
}

}  // namespace

void DequantizeRow(TensorType type, const uint8_t* src, int64_t n, float* y) {
  VC_CHECK(n % InfoOf(type).block_values == 0);
  switch (type) {
    case TensorType::kF32:
      std::memcpy(y, src, sizeof(float) * n);
      return;
    case TensorType::kF16:
    case TensorType::kBF16:
      return RowHalf(type, src, n, y);
    case TensorType::kQ8_0:
      return RowQ8_0(src, n, y);
    case TensorType::kQ5_0:
      return RowQ5_0(src, n, y);
    case TensorType::kQ4_1:
      return RowQ4_1(src, n, y);
    case TensorType::kQ4_K:
      return RowQ4_K(src, n, y);
    case TensorType::kQ6_K:
      return RowQ6_K(src, n, y);
  }
}

}  // namespace vericache
