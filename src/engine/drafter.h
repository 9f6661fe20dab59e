// Proposes the next tokens of many sequences, step by step, on their draft KV.
//
// Lossy and never trusted: its K/V rows are provisional and its tokens are DraftTokens, which only
// the verifier turns into emitted ones.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "engine/sequence.h"
#include "model/forward.h"

namespace vericache {

class Drafter {
 public:
  Drafter(const Model* model, Forward* forward) : model_(model), forward_(forward) {}

  // Fills sequence->drafted with up to num_tokens[i] tokens for each sequence. A draft ends early
  // at a token that ends the generation or at a bad row.
  // REQUIRES: sequences have a draft KV without provisional rows.
  void Draft(absl::Span<Sequence* const> sequences, absl::Span<const int> num_tokens);

  // One step for each sequence: the token after its last known one (emitted or drafted).
  void Step(absl::Span<Sequence* const> sequences);

 private:
  void StepPass(absl::Span<Sequence* const> sequences);

  const Model* model_;
  Forward* forward_;
  // Scratch, kept because a steady step allocates nothing.
  std::vector<float> logits_;
  HiddenRows hidden_;
  std::vector<TokenId> last_;      // per sequence of a pass: its newest token
  std::vector<RowGroup> batch_;    // per sequence of a pass
  std::vector<TokenId> history_;   // of the sequence whose token is chosen
  std::vector<Sequence*> active_;  // those that draft on
};

}  // namespace vericache
