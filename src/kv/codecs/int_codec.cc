#include "kv/codecs/int_codec.h"

#include <algorithm>
#include <cmath>

#include "base/float16.h"

namespace vericache {
namespace {

// Codes for 32 values with stride `stride`. The stored f16 scale and minimum are used to encode, so
// the decoder sees the values the encoder meant.
void Encode32(const float* x, int64_t stride, int max_code, uint8_t* codes, uint16_t* scale_out,
              uint16_t* min_out) {
  float low = x[0], high = x[0];
  for (int i = 1; i < 32; ++i) {
    low = std::min(low, x[i * stride]);
    high = std::max(high, x[i * stride]);
  }
  *min_out = F32ToF16Saturated(low);
  const float min = F16ToF32(*min_out);
  *scale_out = F32ToF16Saturated((high - min) / static_cast<float>(max_code));
  const float scale = F16ToF32(*scale_out);
  for (int i = 0; i < 32; ++i) {
    const float code = scale > 0 ? std::nearbyint((x[i * stride] - min) / scale) : 0.0f;
    // Written so that NaN becomes 0: lossy values may be anything, but must be in range.
    codes[i] = code >= 0 ? static_cast<uint8_t>(std::min(code, static_cast<float>(max_code))) : 0;
  }
}

int MaxCode(DraftFormat format) { return format == DraftFormat::kInt8 ? 255 : 15; }

void StoreCodes(DraftFormat format, const uint8_t* codes, uint8_t* dst) {
  if (format == DraftFormat::kInt8) {
    std::copy_n(codes, 32, dst);
  } else {
    for (int i = 0; i < 16; ++i) dst[i] = static_cast<uint8_t>(codes[i] | (codes[i + 16] << 4));
  }
}

}  // namespace

size_t GroupCodeBytes(DraftFormat format, int head_dim) {
  return static_cast<size_t>(head_dim) * (format == DraftFormat::kInt8 ? 32 : 16);
}

void EncodeKeyGroup(DraftFormat format, const float* k, int head_dim, uint8_t* codes,
                    uint16_t* scale, uint16_t* min) {
  const int bytes = format == DraftFormat::kInt8 ? 32 : 16;
  for (int c = 0; c < head_dim; ++c) {
    uint8_t channel[32];
    Encode32(k + c, head_dim, MaxCode(format), channel, scale + c, min + c);
    StoreCodes(format, channel, codes + c * bytes);
  }
}

void EncodeValueGroup(DraftFormat format, const float* v, int head_dim, uint8_t* codes,
                      uint16_t* scale, uint16_t* min) {
  const int bytes = format == DraftFormat::kInt8 ? 32 : 16, num_groups = head_dim / 32;
  for (int key = 0; key < 32; ++key) {
    for (int g = 0; g < num_groups; ++g) {
      uint8_t group[32];
      Encode32(v + key * head_dim + g * 32, 1, MaxCode(format), group, scale + key * num_groups + g,
               min + key * num_groups + g);
      StoreCodes(format, group, codes + (key * num_groups + g) * bytes);
    }
  }
}

}  // namespace vericache
