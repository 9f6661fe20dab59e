// Proposals without a draft KV, for comparison: n-gram lookup, and a smaller model.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "vericache/compressors.h"

namespace vericache::cli {

// The rounds of prompt lookup along a known answer (NgramHits), at most draft_len tokens each.
DraftReplayReport NgramRounds(absl::Span<const int32_t> prompt, absl::Span<const int32_t> answer,
                              int draft_len);

// The rounds of a model whose choice for answer[i] is right where hits[i] is: its K/V follow the
// verified tokens, so a hit does not depend on the rounds.
DraftReplayReport RoundsOfHits(const std::vector<bool>& hits, int draft_len);

}  // namespace vericache::cli
