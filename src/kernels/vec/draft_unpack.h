// Blocks of packed codes to blocks that sums can read (layouts: kernels/kv_view.h).
//
// A group is unpacked once for all query heads and stays in the first-level cache until they have
// met it: 2 and 3 bits become nibbles, 5 to 7 bits bytes.
#pragma once

#include "kernels/vec/vec16.h"

namespace vericache::VC_KERNEL_NS {
namespace {

// The bits of one step that lie in the planes of 2 and 1 bits, in the layout of kInt4.
// kBits: 1, 2 or 3, as many bits of a code.
template <int kBits>
VC_INLINE Bytes64 SmallPlanes(const uint8_t* planes, int step) {
  if constexpr (kBits == 1) {
    return Mask(ShiftRight(LoadBytes64(planes + step / 4 * 64), step % 4), 0x11);
  } else {
    const Bytes64 two = Mask(ShiftRight(LoadBytes64(planes + step / 2 * 64), 2 * (step % 2)), 0x33);
    if constexpr (kBits == 2) return two;
    return Or(two, ShiftLeft(SmallPlanes<1>(planes + 256, step), 2));
  }
}

// 2 or 3 bits to nibbles: from 128 kBits bytes to 512.
template <int kBits>
VC_NOINLINE void UnpackNibbles(const uint8_t* block, uint8_t* dst) {
  for (int step = 0; step < 8; ++step)
    StoreBytes64(SmallPlanes<kBits>(block, step), dst + step * 64);
}

// 5, 6 or 7 bits to bytes: from 128 kBits bytes to 1,024.
template <int kBits>
VC_NOINLINE void UnpackBytes(const uint8_t* block, uint8_t* dst) {
  for (int step = 0; step < 8; ++step) {
    const Bytes64 low = LoadBytes64(block + step * 64);
    const Bytes64 high = SmallPlanes<kBits - 4>(block + 512, step);
    StoreBytes64(Or(LowNibbles(low), ShiftLeft(LowNibbles(high), 4)), dst + step * 128);
    StoreBytes64(Or(HighNibbles(low), Mask(high, 0xf0)), dst + step * 128 + 64);
  }
}

inline void UnpackBlock(DraftFormat format, const uint8_t* block, uint8_t* dst) {
  switch (format) {
    case DraftFormat::kInt2:
      return UnpackNibbles<2>(block, dst);
    case DraftFormat::kInt3:
      return UnpackNibbles<3>(block, dst);
    case DraftFormat::kInt5:
      return UnpackBytes<5>(block, dst);
    case DraftFormat::kInt6:
      return UnpackBytes<6>(block, dst);
    case DraftFormat::kInt7:
      return UnpackBytes<7>(block, dst);
    default:
      return;  // nothing else is packed
  }
}

}  // namespace
}  // namespace vericache::VC_KERNEL_NS
