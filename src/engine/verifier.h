// The only way from drafted to emitted tokens: one forward pass over the full KV.
//
// EXACTNESS: the emitted tokens are those of full-KV decoding without drafts, whatever the draft.
// Row i of a batch does not depend on the other rows (kernels/kernels.h); rows after a mismatch
// are thrown away with their K/V. Argument: docs/exactness.md; tests: tests/exactness/.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/sequence.h"
#include "model/forward.h"

namespace vericache {

class Verifier {
 public:
  Verifier(const Model* model, Forward* forward, ThreadPool* pool)
      : model_(model), forward_(forward), pool_(pool) {}

  // Checks sequence->drafted of each sequence as its continuation, appends what holds (and one
  // correction or bonus token) to sequence->tokens, and keeps the K/V of it in full and draft KV.
  // An empty draft is one plain decode step. Clears sequence->drafted.
  // ERRORS: kResourceExhausted (no memory for K/V): nothing has changed for that sequence, which
  //         fails alone. A bad row that would be emitted fails its sequence.
  // SOURCE: arXiv 2605.17613; greedy case of arXiv 2211.17192 with one model on both sides.
  void Verify(absl::Span<Sequence* const> sequences);

 private:
  struct Plan {
    Sequence* sequence = nullptr;
    std::vector<TokenId> tokens;  // the pending token, then the drafted ones
    int64_t first_hidden = 0;     // index of row 0 in HiddenRows
    AcceptWalk walk;
    bool wants_row = false;
  };
  void VerifyPass(absl::Span<Sequence* const> sequences);
  absl::Span<Plan> MakePlans(absl::Span<Sequence* const> sequences);
  void Accept(absl::Span<Plan> plans);
  bool TakeRow(Plan* plan, const float* logits);
  void Commit(Plan* plan);
  void CommitDraft(Sequence* sequence, int64_t pos_begin, int64_t pos_end);

  const Model* model_;
  Forward* forward_;
  ThreadPool* pool_;
  // Scratch, kept because a steady step allocates nothing.
  std::vector<float> logits_;
  HiddenRows hidden_;
  std::vector<Plan> plans_;  // those of the current pass, then old ones with memory to reuse
  std::vector<RowGroup> batch_;
  std::vector<std::pair<Plan*, int64_t>> spans_;  // plan, its rows of this turn of logits
  std::vector<const float*> rows_;                // of this turn
  std::vector<TokenId> history_;
};

}  // namespace vericache
