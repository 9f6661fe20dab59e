// SplitMix64 (Steele, Lea, Flood 2014): pseudo-random bits that are the same on every machine,
// which <random>'s distributions are not. Not for sampling: that is engine/philox.h.
#pragma once

#include <cstdint>

namespace vericache {

// Any two states give unrelated draws.
inline uint64_t NextSplitMix(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace vericache
