// Where a row lies in a head's part of a block (kernels/kv_view.h draws the layout), for code that
// touches rows one by one. Kernels have their own loops.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_view.h"

namespace vericache {

// Channel 0 of a key; its next channels lie kKvLanes apart. slot: position in the block.
inline size_t KeyAt(const KvShape& shape, int64_t slot) {
  return (slot / kKvLanes) * shape.head_dim * kKvLanes + slot % kKvLanes;
}
inline size_t ValueAt(const KvShape& shape, int64_t slot, int channel) {
  return shape.k_block_values() + ((channel / 16) * kBlockTokens + slot) * 16 + channel % 16;
}

}  // namespace vericache
