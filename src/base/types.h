// Small types and constants shared by every layer.
#pragma once

#include <cstdint>

namespace vericache {

using TokenId = int32_t;

// Positions of one sequence that are paged, spilled and matched together (design: "block").
inline constexpr int64_t kBlockTokens = 64;
// Longest draft a round may verify.
inline constexpr int kMaxDraftLen = 256;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

}  // namespace vericache
