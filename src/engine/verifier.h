// The only way from drafted to emitted tokens: one forward pass over the full KV.
//
// EXACTNESS: the emitted tokens are those of full-KV decoding without drafts, whatever the draft.
// Row i of a batch does not depend on the other rows (kernels/kernels.h); rows after a mismatch
// are thrown away with their K/V. Argument: docs/exactness.md; tests: tests/exactness/.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/pass_reselect.h"
#include "engine/scorers.h"
#include "engine/sequence.h"
#include "model/forward.h"

namespace vericache {

// The token that a row of the full KV's logits chooses at position `pos`: its hash enters the
// chain, observers are told, the walk takes it. history: as the sampler wants it. True if the row
// after it is needed as well. A bad row fails the sequence.
bool TakeVerifiedRow(const float* logits, int64_t vocab_size, int64_t pos,
                     absl::Span<const TokenId> history, Sequence* sequence, AcceptWalk* walk);

class Verifier {
 public:
  Verifier(const Model* model, Forward* forward, ThreadPool* pool)
      : model_(model), forward_(forward), pool_(pool) {}

  // Checks sequence->drafted of each sequence as its continuation, appends what holds (and one
  // correction or bonus token) to sequence->tokens, and keeps the K/V of it in full and draft KV.
  // An empty draft is one plain decode step. Clears sequence->drafted.
  // ERRORS: kResourceExhausted (no memory for K/V), or a tier that did not deliver: nothing has
  //         changed for that sequence, which fails alone. A bad row that would be emitted fails its
  //         sequence.
  // SOURCE: arXiv 2605.17613; greedy case of arXiv 2211.17192 with one model on both sides.
  void Verify(absl::Span<Sequence* const> sequences);

  // Before a draft: chooses the draft KV anew where rounds that did not use it (plain ones, or
  // tokens proposed by something else) have put that off for too long. With spilled K/V, where it
  // would read all of them and might fail, verifications choose in time.
  void RefreshChoice(Sequence* sequence);

  // The same in a pass shared with other work: Plan() appends one row group a sequence to `batch`
  // (none for one that fails at once), the caller runs the pass, Settle() takes its rows from
  // hidden row `first_hidden` on.
  // Returns the rows planned. REQUIRES: they fit in one pass.
  int64_t Plan(absl::Span<Sequence* const> sequences, std::vector<RowGroup>* batch);
  void Settle(const HiddenRows& hidden, int64_t first_hidden);

 private:
  struct Task {
    Sequence* sequence = nullptr;
    std::vector<TokenId> tokens;  // the pending token, then the drafted ones
    int64_t first_row = 0;        // of its rows among all planned ones
    AcceptWalk walk;
    bool wants_row = false;
    bool keeps_choice = false;  // the draft KV gets the new rows and is not chosen anew
    std::optional<PassReselector> reselector;  // chooses anew in the pass
    ObserverList observers;
  };
  void VerifyPass(absl::Span<Sequence* const> sequences);
  void Accept(const HiddenRows& hidden, int64_t first_hidden);
  bool TakeRow(Task* task, const float* logits);
  void Observe(Task* task, RowGroup* group);
  void Commit(Task* task);
  absl::Status CommitDraft(const Task& task, int64_t pos_begin, int64_t pos_end);

  const Model* model_;
  Forward* forward_;
  ThreadPool* pool_;
  // Scratch, kept because a steady step allocates nothing.
  std::vector<float> logits_;
  HiddenRows hidden_;
  std::vector<Task> tasks_;  // the first num_tasks_, then old ones with memory to reuse
  size_t num_tasks_ = 0;
  std::vector<RowGroup> batch_;
  std::vector<std::pair<Task*, int64_t>> spans_;  // task, its rows of this turn of logits
  std::vector<const float*> rows_;                // of this turn
  std::vector<TokenId> history_;
};

}  // namespace vericache
