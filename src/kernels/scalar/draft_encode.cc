// Codes of draft keys and values, the judge: what is stored, one value at a time.
#include "base/float16.h"
#include "kernels/scalar/scalar_math.h"
#include "kernels/table_parts.h"

namespace vericache::VC_KERNEL_NS {
namespace {

// Puts a code where CodeAt() of draft_attention.cc reads it. REQUIRES: its bits are 0.
void PutCode(DraftFormat format, uint8_t* block, int row, int lane, int code) {
  const int step = row / 4, bits = BitsOf(format);
  if (bits == 8) {
    block[step * 128 + lane / 16 * 64 + lane % 16 * 4 + row % 4] = static_cast<uint8_t>(code);
    return;
  }
  for (int w = 4; w > 0; w /= 2) {  // planes
    if ((bits & w) == 0) continue;
    const int part = code & ((1 << w) - 1);
    uint8_t* byte = &block[step / (4 / w) * 64 + lane % 16 * 4 + row % 4];
    *byte = static_cast<uint8_t>(*byte | part << (w * (step % (4 / w)) + (lane < 16 ? 0 : 4)));
    code >>= w;
    block += 128 * w;
  }
}

void EncodeRow(DraftFormat format, const float* x, int row, uint8_t* block, uint16_t* scale_out,
               uint16_t* min_out) {
  float v[32];
  for (int i = 0; i < 32; ++i) v[i] = x[i] == x[i] ? x[i] : 0.0f;
  float low = v[0], high = v[0];
  for (int i = 1; i < 32; ++i) {
    if (v[i] < low) low = v[i];
    if (v[i] > high) high = v[i];
  }
  const float last = static_cast<float>((1 << BitsOf(format)) - 1);
  *min_out = F32ToF16Saturated(low + 0.0f);  // no -0
  const float min = F16ToF32(*min_out), step = (high - min) / last;
  *scale_out = F32ToF16Saturated(step > 0.0f ? step : 0.0f);
  const float scale = F16ToF32(*scale_out);
  for (int i = 0; i < 32; ++i) {
    float code = (v[i] - min) / scale;
    if (!(scale > 0.0f) || !(code > 0.0f)) code = 0.0f;
    if (code > last) code = last;
    PutCode(format, block, row, i, RoundToNearest(code));
  }
}

void EncodeBlock(DraftFormat format, const float* x, int64_t stride, uint8_t* block,
                 uint16_t* scale, uint16_t* min) {
  for (int i = 0; i < 128 * BitsOf(format); ++i) block[i] = 0;
  for (int row = 0; row < 32; ++row) {
    EncodeRow(format, x + row * stride, row, block, scale + row, min + row);
  }
}

}  // namespace

void FillDraftEncode(KernelTable* table) { table->encode_block = EncodeBlock; }

}  // namespace vericache::VC_KERNEL_NS
