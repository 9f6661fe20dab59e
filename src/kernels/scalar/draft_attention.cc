// Attention over draft KV, the judge.
//
// The draft side may round as it likes, but a run must replay on any ISA, so the order is fixed
// here. One position is attended to as in docs/exactness.md with all keys that are read as a single
// block, groups first, then the tail: one max over all keys, sum lane = key index mod 16. Keys and
// values in f16 are multiplied by FMA chains, over channels and over keys. Codes are multiplied as
// integers, group by group of 32 keys:
//   score = sum_d q[d] min[d] + sum_d (q[d] scale[d]) code[d]: the products q[d] scale[d] become
//   int8 with one scale (as activations do, docs/exactness.md), the first sum runs in 16 lanes;
//   value: the products p[j] scale[j] of a part of 32 channels become int8 likewise; the products
//   p[j] min[j] add up in 16 lanes over all groups and join once all groups are added.
// Rotated codes (kv_view.h) meet a rotated query, the same one in all groups. What coded values
// gave, their minima included, is rotated back before the tail is added. Hadamard32 is its own
// inverse, and both are its order.
#include "base/float16.h"
#include "kernels/scalar/scalar_math.h"
#include "kernels/table_parts.h"

namespace vericache::VC_KERNEL_NS {
namespace {

constexpr int kMaxHeadDim = 1024;

// The code of a row and lane of one block (kv_view.h).
int CodeAt(DraftFormat format, const uint8_t* block, int row, int lane) {
  const int step = row / 4, bits = BitsOf(format);
  if (bits == 8) return block[step * 128 + lane / 16 * 64 + lane % 16 * 4 + row % 4];
  int code = 0, low_bit = 0;
  for (int w = 4; w > 0; w /= 2) {  // planes
    if ((bits & w) == 0) continue;
    const int byte = block[step / (4 / w) * 64 + lane % 16 * 4 + row % 4];
    const int nibble = lane < 16 ? byte & 15 : byte >> 4;
    code |= ((nibble >> (w * (step % (4 / w)))) & ((1 << w) - 1)) << low_bit;
    low_bit += w;
    block += 128 * w;
  }
  return code;
}

// The block of a group's codes that has channel d.
const uint8_t* BlockAt(DraftFormat format, const uint8_t* data, int64_t group, int head_dim,
                       int d) {
  return data + (group * (head_dim / 32) + d / 32) * 128 * BitsOf(format);
}

// Channel d of the j-th key that is read, where it is stored in f16.
float KeyAt(const DraftHeadView& kv, int64_t j, int d) {
  const int64_t t = j - kv.num_groups_read() * kDraftGroup;
  if (t >= 0) return F16ToF32(kv.tail_k[(t / 16 * kv.head_dim + d) * 16 + t % 16]);
  const uint16_t* data = reinterpret_cast<const uint16_t*>(kv.k_data);
  const int64_t half = kv.GroupAt(j / kDraftGroup) * 2 + j % kDraftGroup / 16;
  return F16ToF32(data[(half * kv.head_dim + d) * 16 + j % 16]);
}

// Channel d of the value of the j-th key that is read, where it is stored in f16.
float ValueAt(const DraftHeadView& kv, int64_t j, int d) {
  const int64_t channel_groups = (kv.head_dim + 15) / 16;
  const int64_t t = j - kv.num_groups_read() * kDraftGroup;
  if (t >= 0) {
    return F16ToF32(kv.tail_v[((t / 16 * channel_groups + d / 16) * 16 + t % 16) * 16 + d % 16]);
  }
  const uint16_t* data = reinterpret_cast<const uint16_t*>(kv.v_data);
  const int64_t group = kv.GroupAt(j / kDraftGroup);
  return F16ToF32(data[((group * channel_groups + d / 16) * 32 + j % 32) * 16 + d % 16]);
}

// Scores of one group of 32 coded keys.
void ScoreCodes(const DraftHeadView& kv, int64_t group, const float* q, float* p) {
  const int n = kv.head_dim;
  float products[kMaxHeadDim];
  int8_t codes[kMaxHeadDim];
  float lane[16] = {};
  for (int d = 0; d < n; ++d) {
    products[d] = q[d] * F16ToF32(kv.k_scale[group * n + d]);
    lane[d % 16] = __builtin_fmaf(q[d], F16ToF32(kv.k_min[group * n + d]), lane[d % 16]);
  }
  const float scale = QuantizeBlock(products, n, codes);
  const float base = LaneTree(lane);
  for (int key = 0; key < kDraftGroup; ++key) {
    int32_t sum = 0;
    for (int d = 0; d < n; ++d) {
      const uint8_t* block = BlockAt(kv.k_format, kv.k_data, group, n, d);
      sum += codes[d] * CodeAt(kv.k_format, block, d % 32, key);
    }
    p[key] = __builtin_fmaf(static_cast<float>(sum), scale, base) * kLog2E;
  }
}

// Adds one group of 32 coded values. acc: [head_dim]; min_lanes: [head_dim / 32][16].
void AddCodes(const DraftHeadView& kv, int64_t group, const float* p, float* acc,
              float (*min_lanes)[16]) {
  const int n = kv.head_dim;
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
    const uint8_t* block = BlockAt(kv.v_format, kv.v_data, group, n, part * 32);
    for (int c = 0; c < 32; ++c) {
      int32_t sum = 0;
      for (int j = 0; j < kDraftGroup; ++j) sum += codes[j] * CodeAt(kv.v_format, block, j, c);
      float* a = &acc[part * 32 + c];
      *a = __builtin_fmaf(static_cast<float>(sum), scale, *a);
    }
  }
}

// All groups of coded values, their minima included, rotated back. acc: [head_dim].
void AddAllCodes(const DraftHeadView& kv, const float* p, float* acc) {
  float min_lanes[kMaxHeadDim / 32][16] = {};
  for (int64_t i = 0; i < kv.num_groups_read(); ++i) {
    AddCodes(kv, kv.GroupAt(i), p + i * kDraftGroup, acc, min_lanes);
  }
  for (int part = 0; part < kv.head_dim / 32; ++part) {
    const float mins = LaneTree(min_lanes[part]);
    for (int c = part * 32; c < part * 32 + 32; ++c) acc[c] = acc[c] + mins;
    if (kv.rotated) Hadamard32(acc + part * 32);
  }
}

// The query that codes of keys meet. rotated: [head_dim], used if need be.
const float* CodedQuery(const DraftHeadView& kv, const float* q, float* rotated) {
  if (!kv.rotated || kv.k_format == DraftFormat::kF16) return q;
  for (int d = 0; d < kv.head_dim; ++d) rotated[d] = q[d];
  for (int d = 0; d < kv.head_dim; d += 32) Hadamard32(rotated + d);
  return rotated;
}

void AttendHead(const DraftHeadView& kv, const float* q, float* p, float* out) {
  const int64_t num_keys = kv.num_keys_read(), coded = kv.num_groups_read() * kDraftGroup;
  const bool k_codes = kv.k_format != DraftFormat::kF16, v_codes = kv.v_format != DraftFormat::kF16;
  if (k_codes) {
    float rotated[kMaxHeadDim];
    const float* coded_q = CodedQuery(kv, q, rotated);
    for (int64_t i = 0; i < kv.num_groups_read(); ++i) {
      ScoreCodes(kv, kv.GroupAt(i), coded_q, p + i * kDraftGroup);
    }
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
  for (int d = 0; d < kv.head_dim; ++d) out[d] = 0.0f;
  if (v_codes) AddAllCodes(kv, p, out);
  for (int d = 0; d < kv.head_dim; ++d) {
    for (int64_t j = v_codes ? coded : 0; j < num_keys; ++j) {
      out[d] = __builtin_fmaf(p[j], ValueAt(kv, j, d), out[d]);
    }
  }
  for (int d = 0; d < kv.head_dim; ++d) out[d] = out[d] * inv;
}

void AttendDraft(const DraftHeadView& kv, const float* q, int num_heads, float* out, int64_t ldo,
                 float* scratch) {
  for (int h = 0; h < num_heads; ++h) AttendHead(kv, q + h * kv.head_dim, scratch, out + h * ldo);
}

// The bound of one head for one group: the terms add up in 16 lanes, lane = channel mod 16.
float BoundOf(const DraftHeadView& kv, int64_t group, const float* q) {
  const bool codes = kv.k_format != DraftFormat::kF16;
  const float last = static_cast<float>(codes ? (1 << BitsOf(kv.k_format)) - 1 : 1);
  float lane[16] = {};
  for (int d = 0; d < kv.head_dim; ++d) {
    const float low = F16ToF32(kv.k_min[group * kv.head_dim + d]);
    const float high = __builtin_fmaf(F16ToF32(kv.k_scale[group * kv.head_dim + d]), last, low);
    const float a = q[d] * low, b = q[d] * high;
    lane[d % 16] = lane[d % 16] + (a > b ? a : b);
  }
  return LaneTree(lane);
}

void GroupBounds(const DraftHeadView& kv, const float* q, int num_heads, float* rank,
                 float* scratch) {
  for (int64_t g = 0; g < kv.num_groups; ++g) rank[g] = -kInf;
  for (int h = 0; h < num_heads; ++h) {
    const float* coded_q = CodedQuery(kv, q + h * kv.head_dim, scratch);
    for (int64_t g = 0; g < kv.num_groups; ++g) {
      const float bound = BoundOf(kv, g, coded_q);
      if (bound > rank[g]) rank[g] = bound;
    }
  }
}

}  // namespace

void FillDraftAttention(KernelTable* table) {
  table->attend_draft = AttendDraft;
  table->group_bounds = GroupBounds;
}

}  // namespace vericache::VC_KERNEL_NS
