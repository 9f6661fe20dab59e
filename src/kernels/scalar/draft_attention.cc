// Attention over draft KV, the judge.
//
// The draft side may round as it likes, but a run must replay on any ISA, so the order is fixed
// here: a code is dequantised to fma(scale, code, min) in fp32, and then one position is attended
// to as in docs/exactness.md with all keys as a single block: scores by an FMA chain over channels,
// one max over all keys, sum lane = key index mod 16, PV by an FMA chain over keys in order.
#include "base/float16.h"
#include "kernels/scalar/scalar_math.h"
#include "kernels/table_parts.h"

namespace vericache::VC_KERNEL_NS {
namespace {

float Dequantize(uint16_t scale, int code, uint16_t min) {
  return __builtin_fmaf(F16ToF32(scale), static_cast<float>(code), F16ToF32(min));
}

// Channel d of kept key j.
float KeyAt(const DraftHeadView& kv, int64_t j, int d) {
  const int64_t group = j / kDraftGroup;
  const int i = static_cast<int>(j % kDraftGroup);
  if (group >= kv.num_groups) {
    const int64_t t = j - kv.num_groups * kDraftGroup;
    return F16ToF32(kv.tail_k[(t / 16 * kv.head_dim + d) * 16 + t % 16]);
  }
  if (kv.k_format == DraftFormat::kF16) {
    const uint16_t* data = reinterpret_cast<const uint16_t*>(kv.k_data);
    return F16ToF32(data[((group * 2 + i / 16) * kv.head_dim + d) * 16 + i % 16]);
  }
  const int64_t channel = group * kv.head_dim + d;
  int code;
  if (kv.k_format == DraftFormat::kInt8) {
    code = kv.k_data[channel * 32 + i];
  } else {
    const uint8_t byte = kv.k_data[channel * 16 + i % 16];
    code = i < 16 ? byte & 15 : byte >> 4;
  }
  return Dequantize(kv.k_scale[channel], code, kv.k_min[channel]);
}

// Channel d of the value of kept key j.
float ValueAt(const DraftHeadView& kv, int64_t j, int d) {
  const int64_t group = j / kDraftGroup;
  const int i = static_cast<int>(j % kDraftGroup);
  const int64_t channel_groups = (kv.head_dim + 15) / 16;
  if (group >= kv.num_groups) {
    const int64_t t = j - kv.num_groups * kDraftGroup;
    return F16ToF32(kv.tail_v[((t / 16 * channel_groups + d / 16) * 16 + t % 16) * 16 + d % 16]);
  }
  if (kv.v_format == DraftFormat::kF16) {
    const uint16_t* data = reinterpret_cast<const uint16_t*>(kv.v_data);
    return F16ToF32(data[((group * channel_groups + d / 16) * 32 + i) * 16 + d % 16]);
  }
  const int64_t part = j * (kv.head_dim / 32) + d / 32;  // 32 channels of one key share a scale
  int code;
  if (kv.v_format == DraftFormat::kInt8) {
    code = kv.v_data[part * 32 + d % 32];
  } else {
    const uint8_t byte = kv.v_data[part * 16 + d % 16];
    code = d % 32 < 16 ? byte & 15 : byte >> 4;
  }
  return Dequantize(kv.v_scale[part], code, kv.v_min[part]);
}

void AttendDraft(const DraftHeadView& kv, const float* q, int num_heads, float* out, int64_t ldo,
                 float* scratch) {
  const int64_t num_keys = kv.num_keys();
  for (int h = 0; h < num_heads; ++h) {
    float* p = scratch;
    float max = -kInf;
    for (int64_t j = 0; j < num_keys; ++j) {
      float a = 0.0f;
      for (int d = 0; d < kv.head_dim; ++d) {
        a = __builtin_fmaf(q[h * kv.head_dim + d], KeyAt(kv, j, d), a);
      }
      p[j] = a * kLog2E;
      max = Max(max, p[j]);
    }
    max = max + 0.0f;
    float lane[16] = {};
    for (int64_t j = 0; j < num_keys; ++j) {
      p[j] = Exp2NonPositive(p[j] - max);
      lane[j % 16] = lane[j % 16] + p[j];
    }
    const float inv = 1.0f / LaneTree(lane);
    for (int d = 0; d < kv.head_dim; ++d) {
      float a = 0.0f;
      for (int64_t j = 0; j < num_keys; ++j) a = __builtin_fmaf(p[j], ValueAt(kv, j, d), a);
      out[h * ldo + d] = a * inv;
    }
  }
}

}  // namespace

void FillDraftAttention(KernelTable* table) { table->attend_draft = AttendDraft; }

}  // namespace vericache::VC_KERNEL_NS
