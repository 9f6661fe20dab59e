// Nanoseconds of the steady clock, the one all times of reads are given in.
#pragma once

#include <chrono>
#include <cstdint>

namespace vericache {

inline int64_t SteadyNowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace vericache
