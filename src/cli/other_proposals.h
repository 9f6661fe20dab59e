// Proposals without a draft KV, for comparison: n-gram lookup, and a smaller model.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "vericache/compressors.h"

namespace vericache::cli {

// Longest beginning that is looked up.
inline constexpr int kNgramMax = 3;

// The rounds of prompt lookup along a known answer: what followed the latest earlier place of the
// last 3 tokens (or 2, or 1) is proposed, at most draft_len tokens.
// SOURCE: prompt lookup decoding, as in transformers and vLLM ("ngram").
DraftReplayReport NgramRounds(absl::Span<const int32_t> prompt, absl::Span<const int32_t> answer,
                              int draft_len);

// The rounds of a model whose choice for answer[i] is right where hits[i] is: its K/V follow the
// verified tokens, so a hit does not depend on the rounds.
DraftReplayReport RoundsOfHits(const std::vector<bool>& hits, int draft_len);

}  // namespace vericache::cli
