#include "kv/gather.h"

#include <cstring>

#include "base/check.h"
#include "base/types.h"
#include "kv/block_layout.h"

namespace vericache {

void GatherKeys(const FullKvView& view, int kv_head, absl::Span<const int32_t> positions,
                int64_t stride, uint16_t* dst) {
  const size_t n = positions.size();
  VC_DCHECK(n <= kKvLanes);
  const int d = view.shape.head_dim;
  const uint16_t* src[kKvLanes];
  for (size_t i = 0; i < n; ++i) {
    const int64_t slot = positions[i] % kBlockTokens;
    src[i] = view.Head(positions[i] / kBlockTokens, kv_head) + KeyAt(view.shape, slot);
  }
  if (n == kKvLanes && positions[0] % kKvLanes == 0 &&
      positions[n - 1] == positions[0] + kKvLanes - 1) {  // a whole group of the full KV
    for (int c = 0; c < d; ++c)
      std::memcpy(dst + c * stride, src[0] + c * kKvLanes, kKvLanes * sizeof(uint16_t));
    return;
  }
  // Two channels share a cache line of the source.
  int c = 0;
  for (; c + 2 <= d; c += 2) {
    uint16_t* out = dst + c * stride;
    for (size_t i = 0; i < n; ++i) {
      const uint16_t* key = src[i] + c * kKvLanes;
      out[i] = key[0];
      out[i + stride] = key[kKvLanes];
    }
  }
  if (c < d)
    for (size_t i = 0; i < n; ++i) dst[c * stride + i] = src[i][c * kKvLanes];
}

void GatherValues(const FullKvView& view, int kv_head, absl::Span<const int32_t> positions,
                  int64_t channel_stride, int64_t key_stride, uint16_t* dst) {
  const int64_t num_pieces = view.shape.padded_head_dim() / 16;
  const size_t values = view.shape.k_block_values();
  for (const int32_t pos : positions) {
    const uint16_t* src = view.Head(pos / kBlockTokens, kv_head) + values + pos % kBlockTokens * 16;
    for (int64_t i = 0; i < num_pieces; ++i)
      std::memcpy(dst + i * channel_stride, src + i * kBlockTokens * 16, 16 * sizeof(uint16_t));
    dst += key_stride;
  }
}

}  // namespace vericache
