// Picks rows of one KV head out of a full KV, in the orders that draft KVs store.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/kv_view.h"

namespace vericache {

// dst[channel * stride + i] = channel of key positions[i]; at most 16 keys. All head_dim channels.
void GatherKeys(const FullKvView& view, int kv_head, absl::Span<const int32_t> positions,
                int64_t stride, uint16_t* dst);

// The 16 channels from 16 i on of value positions[j] go to dst + i * channel_stride + j *
// key_stride, for all i up to padded_head_dim / 16.
void GatherValues(const FullKvView& view, int kv_head, absl::Span<const int32_t> positions,
                  int64_t channel_stride, int64_t key_stride, uint16_t* dst);

}  // namespace vericache
