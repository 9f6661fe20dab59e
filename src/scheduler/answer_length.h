// How long answers will be whose length nobody gave: the limit of a request is an upper bound only.
//
// As if each token ended an answer with one chance, learned from answers that ended by themselves
// and from those that did not. Then what is still to come does not depend on what has come.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace vericache {

class AnswerLength {
 public:
  // An answer of `tokens`. ended: by itself, not by its limit or by who asked.
  void Observe(int64_t tokens, bool ended) {
    constexpr double kDecay = 0.95;
    tokens_ = kDecay * tokens_ + static_cast<double>(std::max<int64_t>(0, tokens));
    ends_ = kDecay * ends_ + (ended ? 1 : 0);
  }
  // Tokens that one will have, of `most` at most. REQUIRES: most >= 1. ENSURES: in [1, most].
  double Expected(int64_t most) const {
    const double end =
        std::clamp((kPriorEnds + ends_) / (kPriorEnds * kPriorTokens + tokens_), 1e-6, 1.0);
    const double n = static_cast<double>(most);
    return std::clamp((1 - std::pow(1 - end, n)) / end, 1.0, n);
  }

 private:
  static constexpr double kPriorTokens = 256, kPriorEnds = 0.5;
  double tokens_ = 0, ends_ = 0;
};

}  // namespace vericache
