// From a row of logits to a token: the same function for plain decoding, drafting and verification.
//
// Sampling is exact too: the token at position p is the argmax of the filtered, scaled logits plus
// Gumbel noise keyed by (seed, choice, p, token id). It depends on nothing else, so full-KV
// decoding with the same seed gives the same text, and a drafter with the same noise is mostly
// right.
// Order: padded ids masked, logit_bias, repetition, presence and frequency penalties, temperature,
// top_k, top_p, min_p, noise. Filters order by (logit descending, id ascending).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/types.h"
#include "kernels/kernels.h"

namespace vericache {

struct SamplingParams {
  float temperature = 0;  // below kGreedyTemperature: argmax
  int64_t top_k = 0;      // 0, or beyond the vocabulary: off
  float top_p = 1;        // (0, 1]; 1: off
  float min_p = 0;        // [0, 1]; 0: off
  uint64_t seed = 0;
  uint32_t choice = 0;  // index of a choice of one request (n > 1)
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;
};
// Dividing logits by less could overflow; such a temperature means greedy anyway.
inline constexpr float kGreedyTemperature = 1e-5f;

// ERRORS: kInvalidArgument naming the field and its range (cases 49, 50).
absl::Status CheckSampling(const SamplingParams& params, int64_t vocab_size);

struct RowChoice {
  TokenId id = -1;
  bool bad = false;  // the row holds a NaN or an infinity
};

// THREADS: one caller at a time (owns scratch).
class Sampler {
 public:
  // `num_ids`: ids with a text; the output matrix may have more rows (padding), never chosen.
  Sampler(const SamplingParams& params, int64_t vocab_size, int64_t num_ids,
          const KernelTable* kernels);

  // logits: [vocab_size]. history: all tokens before `pos`, of which the first `num_prompt` are the
  // prompt. pos: position of the token chosen here.
  RowChoice Choose(const float* logits, int64_t pos, absl::Span<const TokenId> history,
                   int64_t num_prompt);

  const SamplingParams& params() const { return params_; }
  // False: Choose() does not read `history`, which may then be empty.
  bool NeedsHistory() const { return HasPenalties(); }

 private:
  bool HasPenalties() const;
  void Adjust(const float* logits, absl::Span<const TokenId> history, int64_t num_prompt);
  void ApplyPenalties(absl::Span<const TokenId> history, int64_t num_prompt);
  void ApplyTopK(std::vector<TokenId>* ids) const;
  void ApplyTopP(std::vector<TokenId>* ids);
  void ApplyMinP(std::vector<TokenId>* ids);
  TokenId DrawWithNoise(int64_t pos, const std::vector<TokenId>& ids) const;
  void RelativeExp(const std::vector<TokenId>& ids);

  SamplingParams params_;
  int64_t vocab_size_;
  int64_t num_ids_;
  const KernelTable* kernels_;
  std::vector<float> z_;    // [num_ids] adjusted logits, finite
  std::vector<float> exp_;  // per surviving id: exp(z - max z)
  std::vector<TokenId> ids_, kept_;
  std::vector<int32_t> heap_;         // indices into ids_
  std::vector<TokenId> history_ids_;  // distinct ids of the history
  std::vector<int32_t> counts_;       // [num_ids] of history_ids_: 1 + times generated; else 0
};

// -log(-log(u)) with u in (0, 1), 24 random bits keyed by its arguments.
double GumbelNoise(uint64_t seed, uint32_t choice, int64_t pos, TokenId id);

}  // namespace vericache
