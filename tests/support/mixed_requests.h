// Prompts and request options of chance, the same on every machine, for tests of the public
// interface on the tiny models of tests/golden/model.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "vericache/options.h"

namespace vericache {

// Numbers of chance, all from one seed.
class Picks {
 public:
  explicit Picks(uint64_t seed) : state_(seed) {}
  int64_t operator()(int64_t n) {  // in [0, n)
    Step();
    return static_cast<int64_t>((state_ >> 33) % n);
  }
  uint64_t Step() { return state_ = state_ * 6364136223846793005u + 1442695040888963407u; }

 private:
  uint64_t state_;
};

// `n` token ids from 3 to 282 that repeat themselves now and then, as text does.
inline std::vector<int32_t> TestPrompt(int64_t n, uint64_t seed) {
  std::vector<int32_t> ids;
  Picks pick(seed);
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t state = pick.Step();
    const int32_t fresh = static_cast<int32_t>((state >> 33) % 280) + 3;
    ids.push_back(i >= 20 && state >> 62 != 0 ? ids[i - 20] : fresh);
  }
  return ids;
}

// A selector and a codec of each kind.
constexpr const char* kMixedSpecs[] = {"off",           "int4",
                                       "sink:0.3",      "verify:0.25+int4",
                                       "snapkv:0.2",    "verify:0.2,score=vegas+int8",
                                       "h2o:0.3+kivi4", "kvzip:0.3,chunk=64,window=8"};

// Sampled, with penalties and a bias.
inline void SampleWithAll(uint64_t seed, Request* r) {
  r->sampling.temperature = 0.9f;
  r->sampling.seed = seed;
  r->sampling.frequency_penalty = 0.3f;
  r->sampling.repetition_penalty = 1.1f;
  r->sampling.logit_bias = {{5, 1.5f}};
}

// One of the draft specs, draft length, end, priority and sampling.
inline void PickOptions(absl::Span<const char* const> specs, uint64_t seed, Picks* pick,
                        Request* r) {
  r->draft = specs[(*pick)(specs.size())];
  r->draft_len = (*pick)(3) == 0 ? 0 : 1 + static_cast<int>((*pick)(20));
  r->ignore_eos = (*pick)(2) == 0;
  r->priority = static_cast<int>((*pick)(3));
  if ((*pick)(2) != 0) return;
  r->sampling.temperature = 0.9f;
  r->sampling.seed = seed;
  r->sampling.frequency_penalty = 0.3f;
}

}  // namespace vericache
