// The floating-point mode of the numeric contract: round to nearest, denormals on.
//
// A library built with -ffast-math switches flush-to-zero on for the whole process as it loads, so
// every thread that computes sets the mode on entry and puts the old one back on exit.
#pragma once

#include <cstdint>

namespace vericache {

class ScopedFpEnv {
 public:
  ScopedFpEnv();
  ~ScopedFpEnv();
  ScopedFpEnv(const ScopedFpEnv&) = delete;
  ScopedFpEnv& operator=(const ScopedFpEnv&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace vericache
