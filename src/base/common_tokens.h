// How far two sequences of tokens are the same.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "base/types.h"

namespace vericache {

// Tokens that both begin with.
inline int64_t CommonTokens(absl::Span<const TokenId> a, absl::Span<const TokenId> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace vericache
