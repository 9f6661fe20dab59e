// How far look-up would have carried an answer: its verifications are played again over the tokens
// that are known, without a model.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "base/types.h"

namespace vericache {

struct LookupRun {
  int64_t tokens = 0, rounds = 0;  // emitted, and verifications that it would have taken
};

// Of the tokens behind `num_prompt`, with at most `draft_len` proposed a round by NgramProposer
// over at most the last 32,768 tokens before. REQUIRES: 0 <= num_prompt <= tokens.size().
// COST: some 60 ns a token.
LookupRun ReplayLookup(absl::Span<const TokenId> tokens, int64_t num_prompt, int draft_len);

}  // namespace vericache
