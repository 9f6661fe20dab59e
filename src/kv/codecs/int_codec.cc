#include "kv/codecs/int_codec.h"

#include <algorithm>
#include <cstring>

#include "base/float16.h"

namespace vericache {
namespace {

// Four lanes of the base instruction set: draft KVs may be made anew every round, and this is most
// of the work.
typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
constexpr int kVectors = 8;  // of 32 values

float Smallest(Floats v) { return std::min(std::min(v[0], v[1]), std::min(v[2], v[3])); }
float Largest(Floats v) { return std::max(std::max(v[0], v[1]), std::max(v[2], v[3])); }

// Codes for 32 values. The stored f16 scale and minimum are used to encode, so the decoder sees the
// values the encoder meant. REQUIRES: rounding to nearest even (ScopedFpEnv).
void Encode32(const float* x, int max_code, uint8_t* codes, uint16_t* scale_out,
              uint16_t* min_out) {
  Floats v[kVectors];
  std::memcpy(v, x, sizeof(v));
  Floats low = v[0], high = v[0];
  for (int i = 1; i < kVectors; ++i) {
    low = v[i] < low ? v[i] : low;
    high = v[i] > high ? v[i] : high;
  }
  *min_out = F32ToF16Saturated(Smallest(low));
  const float min = F16ToF32(*min_out), last = static_cast<float>(max_code);
  *scale_out = F32ToF16Saturated((Largest(high) - min) / last);
  const float scale = F16ToF32(*scale_out);
  if (!(scale > 0)) return static_cast<void>(std::memset(codes, 0, 32));
  const Floats zero = {}, magic = zero + 0x1.8p23f;  // adding it rounds to an integer
  for (int i = 0; i < kVectors; ++i) {
    Floats code = (v[i] - min) / scale;
    // Written so that NaN becomes 0: lossy values may be anything, but must be in range.
    code = code >= zero ? code : zero;
    code = code <= last ? code : zero + last;
    const Ints whole = __builtin_convertvector(code + magic - magic, Ints);
    for (int lane = 0; lane < 4; ++lane) codes[4 * i + lane] = static_cast<uint8_t>(whole[lane]);
  }
}

int MaxCode(DraftFormat format) { return format == DraftFormat::kInt8 ? 255 : 15; }

// 32 codes that lie four bytes apart in two halves, or in the nibbles of one (kv_view.h).
void StoreCodes(DraftFormat format, const uint8_t* codes, uint8_t* dst) {
  for (int i = 0; i < 16; ++i) {
    if (format == DraftFormat::kInt8) {
      dst[4 * i] = codes[i];
      dst[64 + 4 * i] = codes[i + 16];
    } else {
      dst[4 * i] = static_cast<uint8_t>(codes[i] | (codes[i + 16] << 4));
    }
  }
}

// Bytes of 4 x 32 codes.
int64_t FourBytes(DraftFormat format) { return format == DraftFormat::kInt8 ? 128 : 64; }

}  // namespace

size_t GroupCodeBytes(DraftFormat format, int head_dim) {
  return static_cast<size_t>(head_dim) * (format == DraftFormat::kInt8 ? 32 : 16);
}

void EncodeKeyGroup(DraftFormat format, const float* k, int head_dim, uint8_t* codes,
                    uint16_t* scale, uint16_t* min) {
  for (int d = 0; d < head_dim; ++d) {
    float channel[32];
    for (int key = 0; key < 32; ++key) channel[key] = k[key * head_dim + d];
    uint8_t c[32];
    Encode32(channel, MaxCode(format), c, scale + d, min + d);
    StoreCodes(format, c, codes + d / 4 * FourBytes(format) + d % 4);
  }
}

void EncodeValueGroup(DraftFormat format, const float* v, int head_dim, uint8_t* codes,
                      uint16_t* scale, uint16_t* min) {
  for (int key = 0; key < 32; ++key) {
    for (int part = 0; part < head_dim / 32; ++part) {
      uint8_t c[32];
      Encode32(v + key * head_dim + part * 32, MaxCode(format), c, scale + part * 32 + key,
               min + part * 32 + key);
      StoreCodes(format, c, codes + (part * 8 + key / 4) * FourBytes(format) + key % 4);
    }
  }
}

}  // namespace vericache
