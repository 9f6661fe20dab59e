// The simulator's only source of chance: the same numbers on every platform.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/split_mix.h"

namespace vericache {

class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() { return NextSplitMix(&state_); }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }  // [0, 1)
  double Between(double lo, double hi) { return lo + (hi - lo) * Uniform(); }
  double LogBetween(double lo, double hi) { return lo * std::exp(Uniform() * std::log(hi / lo)); }
  int64_t Int(int64_t lo, int64_t hi) {  // [lo, hi]
    return lo + static_cast<int64_t>(Next() % static_cast<uint64_t>(hi - lo + 1));
  }
  bool Chance(double probability) { return Uniform() < probability; }
  // Mean 1, spread about `sigma`; a sum of uniforms is near enough to normal.
  double Noise(double sigma) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += Uniform() - 0.5;
    return std::exp(sigma * sum * 1.732);
  }
  // An independent stream, so that adding a draw in one place moves no other.
  SimRandom Fork(uint64_t stream) {
    SimRandom seed(state_ ^ (stream * 0xd1342543de82ef95ull));
    return SimRandom(seed.Next());
  }

 private:
  uint64_t state_;
};

}  // namespace vericache
