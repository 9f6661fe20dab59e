// Attention over draft KV, the judge.
//
// The draft side may round as it likes, but a run must replay on any ISA, so the order is fixed
// here. One position is attended to as in docs/exactness.md with all keys as a single block: one
// max over all keys, sum lane = key index mod 16. Keys and values in f16 are multiplied by FMA
// chains, over channels and over keys. Codes are multiplied as integers, group by group of 32 keys:
//   score = sum_d q[d] min[d] + sum_d (q[d] scale[d]) code[d]: the products q[d] scale[d] become
//   int8 with one scale (as activations do, docs/exactness.md), the first sum runs in 16 lanes;
//   value: the products p[j] scale[j] of a part of 32 channels become int8 likewise; the products
//   p[j] min[j] add up in 16 lanes over all groups and join the result at the end.
#include "base/float16.h"
#include "kernels/scalar/scalar_math.h"
#include "kernels/table_parts.h"

namespace vericache::VC_KERNEL_NS {
namespace {

// Where a code lies within its group: the byte, and for kInt4 whether it is the high nibble.
struct CodePlace {
  int64_t byte;
  bool high;
};
CodePlace KeyCodePlace(DraftFormat format, int key, int d) {
  if (format == DraftFormat::kInt8)
    return {((d / 4 * 2 + key / 16) * 16 + key % 16) * 4 + d % 4, false};
  return {(d / 4 * 16 + key % 16) * 4 + d % 4, key >= 16};
}
CodePlace ValueCodePlace(DraftFormat format, int key, int c) {
  const int four = c / 32 * 8 + key / 4;  // of keys, within the part
  if (format == DraftFormat::kInt8)
    return {((four * 2 + c % 32 / 16) * 16 + c % 16) * 4 + key % 4, false};
  return {(four * 16 + c % 16) * 4 + key % 4, c % 32 >= 16};
}

int CodeAt(const uint8_t* codes, CodePlace place, DraftFormat format) {
  const int byte = codes[place.byte];
  if (format == DraftFormat::kInt8) return byte;
  return place.high ? byte >> 4 : byte & 15;
}

int64_t GroupBytes(DraftFormat format, int head_dim) {
  return static_cast<int64_t>(head_dim) * (format == DraftFormat::kInt8 ? 32 : 16);
}

// Channel d of kept key j, where it is stored in f16.
float KeyAt(const DraftHeadView& kv, int64_t j, int d) {
  const int64_t t = j - kv.num_groups * kDraftGroup;
  if (t >= 0) return F16ToF32(kv.tail_k[(t / 16 * kv.head_dim + d) * 16 + t % 16]);
  const uint16_t* data = reinterpret_cast<const uint16_t*>(kv.k_data);
  return F16ToF32(data[(j / 16 * kv.head_dim + d) * 16 + j % 16]);
}

// Channel d of the value of kept key j, where it is stored in f16.
float ValueAt(const DraftHeadView& kv, int64_t j, int d) {
  const int64_t channel_groups = (kv.head_dim + 15) / 16;
  const int64_t t = j - kv.num_groups * kDraftGroup;
  if (t >= 0) {
    return F16ToF32(kv.tail_v[((t / 16 * channel_groups + d / 16) * 16 + t % 16) * 16 + d % 16]);
  }
  const uint16_t* data = reinterpret_cast<const uint16_t*>(kv.v_data);
  return F16ToF32(data[((j / 32 * channel_groups + d / 16) * 32 + j % 32) * 16 + d % 16]);
}

// Scores of one group of 32 coded keys.
void ScoreCodes(const DraftHeadView& kv, int64_t group, const float* q, float* p) {
  const int n = kv.head_dim;
  float products[1024];
  int8_t codes[1024];
  float lane[16] = {};
  for (int d = 0; d < n; ++d) {
    products[d] = q[d] * F16ToF32(kv.k_scale[group * n + d]);
    lane[d % 16] = __builtin_fmaf(q[d], F16ToF32(kv.k_min[group * n + d]), lane[d % 16]);
  }
  const float scale = QuantizeBlock(products, n, codes);
  const float base = LaneTree(lane);
  const uint8_t* data = kv.k_data + group * GroupBytes(kv.k_format, n);
  for (int key = 0; key < kDraftGroup; ++key) {
    int32_t sum = 0;
    for (int d = 0; d < n; ++d) {
      sum += codes[d] * CodeAt(data, KeyCodePlace(kv.k_format, key, d), kv.k_format);
    }
    p[key] = __builtin_fmaf(static_cast<float>(sum), scale, base) * kLog2E;
  }
}

// Adds one group of 32 coded values. acc: [head_dim]; min_lanes: [head_dim / 32][16].
void AddCodes(const DraftHeadView& kv, int64_t group, const float* p, float* acc,
              float (*min_lanes)[16]) {
  const int n = kv.head_dim;
  const uint8_t* data = kv.v_data + group * GroupBytes(kv.v_format, n);
  for (int part = 0; part < n / 32; ++part) {
    const uint16_t* scales = kv.v_scale + group * n + part * 32;
    const uint16_t* mins = kv.v_min + group * n + part * 32;
    float products[kDraftGroup];
    int8_t codes[kDraftGroup];
    for (int j = 0; j < kDraftGroup; ++j) {
      products[j] = p[j] * F16ToF32(scales[j]);
      float* lane = &min_lanes[part][j % 16];
      *lane = __builtin_fmaf(p[j], F16ToF32(mins[j]), *lane);
    }
    const float scale = QuantizeBlock(products, kDraftGroup, codes);
    for (int c = part * 32; c < part * 32 + 32; ++c) {
      int32_t sum = 0;
      for (int j = 0; j < kDraftGroup; ++j) {
        sum += codes[j] * CodeAt(data, ValueCodePlace(kv.v_format, j, c), kv.v_format);
      }
      acc[c] = __builtin_fmaf(static_cast<float>(sum), scale, acc[c]);
    }
  }
}

void AttendHead(const DraftHeadView& kv, const float* q, float* p, float* out) {
  const int64_t num_keys = kv.num_keys(), coded = kv.num_groups * kDraftGroup;
  const bool k_codes = kv.k_format != DraftFormat::kF16, v_codes = kv.v_format != DraftFormat::kF16;
  if (k_codes) {
    for (int64_t g = 0; g < kv.num_groups; ++g) ScoreCodes(kv, g, q, p + g * kDraftGroup);
  }
  for (int64_t j = k_codes ? coded : 0; j < num_keys; ++j) {
    float a = 0.0f;
    for (int d = 0; d < kv.head_dim; ++d) a = __builtin_fmaf(q[d], KeyAt(kv, j, d), a);
    p[j] = a * kLog2E;
  }
  float max = -kInf;
  for (int64_t j = 0; j < num_keys; ++j) max = Max(max, p[j]);
  max = max + 0.0f;
  float lane[16] = {};
  for (int64_t j = 0; j < num_keys; ++j) {
    p[j] = Exp2NonPositive(p[j] - max);
    lane[j % 16] = lane[j % 16] + p[j];
  }
  const float inv = 1.0f / LaneTree(lane);
  float min_lanes[32][16] = {};
  for (int d = 0; d < kv.head_dim; ++d) out[d] = 0.0f;
  if (v_codes) {
    for (int64_t g = 0; g < kv.num_groups; ++g) {
      AddCodes(kv, g, p + g * kDraftGroup, out, min_lanes);
    }
  }
  for (int d = 0; d < kv.head_dim; ++d) {
    for (int64_t j = v_codes ? coded : 0; j < num_keys; ++j) {
      out[d] = __builtin_fmaf(p[j], ValueAt(kv, j, d), out[d]);
    }
  }
  if (v_codes) {
    for (int part = 0; part < kv.head_dim / 32; ++part) {
      const float mins = LaneTree(min_lanes[part]);
      for (int c = part * 32; c < part * 32 + 32; ++c) out[c] = out[c] + mins;
    }
  }
  for (int d = 0; d < kv.head_dim; ++d) out[d] = out[d] * inv;
}

void AttendDraft(const DraftHeadView& kv, const float* q, int num_heads, float* out, int64_t ldo,
                 float* scratch) {
  for (int h = 0; h < num_heads; ++h) AttendHead(kv, q + h * kv.head_dim, scratch, out + h * ldo);
}

}  // namespace

void FillDraftAttention(KernelTable* table) { table->attend_draft = AttendDraft; }

}  // namespace vericache::VC_KERNEL_NS
