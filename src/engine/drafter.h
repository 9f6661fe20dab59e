// Proposes the next tokens of many sequences, step by step, on their draft KV.
//
// Lossy and never trusted: its K/V rows are provisional and its tokens are DraftTokens, which only
// the verifier turns into emitted ones.
#pragma once

#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/sequence.h"
#include "model/forward.h"

namespace vericache {

// One sequence's part in a pass of the drafter.
struct DraftRows {
  Sequence* sequence = nullptr;
  // Tokens somebody proposes behind what is drafted already, each in [0, vocab_size): they are
  // checked by the draft KV, a row each, beside the row that drafts the next token.
  absl::Span<const TokenId> proposals;
  // Out:
  int num_drafted = 0;  // tokens added: the proposals that held, then the draft KV's own
  // Of each token: the drafter's probability of it (softmax of the raw logits), where asked for.
  std::vector<float> confidence;
};

// What can follow the newest drafted token.
enum class DraftedToken { kGoesOn, kEnds, kBad };
// kBad: a bad row proposes nothing: its token is taken back. REQUIRES: something is drafted.
DraftedToken JudgeDrafted(Sequence* sequence, int64_t vocab_size);

class Drafter {
 public:
  Drafter(const Model* model, Forward* forward) : model_(model), forward_(forward) {}

  // Fills sequence->drafted with up to num_tokens[i] tokens for each sequence. A draft ends early
  // at a token that ends the generation or at a bad row.
  // REQUIRES: sequences have a draft KV without provisional rows.
  void Draft(absl::Span<Sequence* const> sequences, absl::Span<const int> num_tokens);

  // One step for each sequence: the token after its last known one (emitted or drafted).
  void Step(absl::Span<Sequence* const> sequences);

  // The same step in a pass shared with other work, with proposals: Plan() appends a group of
  // 1 + proposals rows for each to `batch`, the caller runs the pass, Settle() takes the rows from
  // hidden row `first_hidden` on. What the draft KV's own choice does not confirm ends the step and
  // leaves no row in the draft KV; tokens are those of one row a step.
  // Returns the rows planned. REQUIRES: *rows outlives Settle().
  // COST of confidence: one exp a token for each id that is looked at (engine/draft_vocab.h).
  int64_t Plan(absl::Span<DraftRows> rows, std::vector<RowGroup>* batch);
  void Settle(const HiddenRows& hidden, int64_t first_hidden, bool with_confidence);

 private:
  // Of a pass: a sequence's rows, and how far they have been walked.
  struct Task {
    DraftRows* rows = nullptr;
    std::vector<TokenId> tokens;  // the newest known one, then the proposals
    int64_t first_row = 0;        // among all planned ones
    int64_t next = 0;             // row to walk
    bool ended = false;
  };
  void StepPass(absl::Span<Sequence* const> sequences);
  void ComputeLogits();
  float ConfidenceOf(const float* logits, TokenId id);
  void TakeRow(Task* task, const float* logits, bool with_confidence);

  const Model* model_;
  Forward* forward_;
  // Scratch, kept because a steady step allocates nothing.
  std::vector<float> logits_;
  HiddenRows hidden_;
  std::vector<Task> tasks_;  // the first num_tasks_ are of this pass
  size_t num_tasks_ = 0;
  std::vector<DraftRows> step_rows_;
  std::vector<RowGroup> batch_;
  std::vector<std::pair<Task*, int64_t>> spans_;  // task, its rows of this turn of logits
  std::vector<const float*> logit_rows_;          // of this turn
  std::vector<uint64_t> tiles_;   // of the output matrix that somebody of this turn looks at
  std::vector<OutRange> ranges_;  // the same
  std::vector<float> exps_;
  std::vector<TokenId> history_;   // of the sequence whose token is chosen
  std::vector<Sequence*> active_;  // those that draft on
};

}  // namespace vericache
