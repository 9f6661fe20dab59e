// Which tokens a verification emits: pure, no model, no K/V.
//
// Rows are walked one at a time in order, and the first event wins: a mismatch with the draft, an
// end-of-generation token, or the token limit. So a stop inside an accepted run ends the answer
// there, exactly as plain decoding would (cases 4, 5).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/types.h"

namespace vericache {

// A proposal of the drafter. Only the verifier turns one into an emitted TokenId.
struct DraftToken {
  TokenId id;
};

enum class FinishReason { kNone, kStop, kLength, kError };

class AcceptWalk {
 public:
  AcceptWalk() = default;  // call Start() first
  AcceptWalk(absl::Span<const DraftToken> draft, int64_t max_emit) { Start(draft, max_emit); }

  // Begins anew; keeps the memory. max_emit: tokens the request may still emit, >= 1. `draft`
  // outlives the walk.
  void Start(absl::Span<const DraftToken> draft, int64_t max_emit);

  // Takes the full-KV choice of the next row. True if the row after it is needed as well.
  bool Push(TokenId chosen, bool ends_generation);

  int num_accepted() const { return num_accepted_; }  // drafted tokens that matched
  const std::vector<TokenId>& emitted() const { return emitted_; }
  FinishReason finish() const { return finish_; }
  int64_t next_row() const { return static_cast<int64_t>(emitted_.size()); }

 private:
  absl::Span<const DraftToken> draft_;
  int64_t max_emit_ = 0;
  int num_accepted_ = 0;
  std::vector<TokenId> emitted_;  // accepted tokens, then correction or bonus
  FinishReason finish_ = FinishReason::kNone;
};

}  // namespace vericache
