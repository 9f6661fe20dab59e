// Zeroed memory on huge pages, where the system allows them.
//
// For weights, K/V and what is compared with them. K/V of one head are read in pieces of 8 KB that
// lie far apart: with 4 KB pages the address translation costs a third of the speed of a decoding
// step at 32K tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace vericache {

inline constexpr size_t kHugePage = size_t{2} << 20;

// `bytes` bytes of zeros on a 2 MiB boundary, untouched: memory is taken when it is written, 2 MiB
// at a time. Null if there is none.
std::shared_ptr<uint8_t[]> AllocateHuge(size_t bytes);

}  // namespace vericache
