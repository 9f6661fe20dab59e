// Counter-based random numbers: the value at a counter depends on the key and the counter alone.
//
// SOURCE: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox4x32-10.
#pragma once

#include <array>
#include <cstdint>

namespace vericache {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace vericache
