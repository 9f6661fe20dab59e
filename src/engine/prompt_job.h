// The prompt of one sequence on its way through passes, a chunk at a time, until its first token.
// A sequence that lost its K/V in the middle of its answer is brought back in the same way, without
// a new token.
// A sequence may bring drafted tokens (Sequence::drafted): its draft KV was here before its full
// KV. They are checked in the pass of the last chunk, as one verification.
//
//   PromptJob job(&sequence, ...);
//   while (job.rows_left() > 0) {
//     group = job.Plan(rows);  ... a pass with it ...;  job.Settle(hidden row, if it has one);
//   }
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/acceptance.h"
#include "engine/pass_reselect.h"
#include "engine/prefill.h"
#include "engine/scorers.h"
#include "engine/sequence.h"
#include "model/forward.h"

namespace vericache {

class PromptJob {
 public:
  // REQUIRES: as Prefill::Run, or tokens have been emitted and the K/V of some are missing.
  // *sequence and *prefill outlive the job.
  PromptJob(Sequence* sequence, const Model* model, Forward* forward, Prefill* prefill,
            ThreadPool* pool, PrefillOptions options);

  int64_t rows_left() const { return target_ - sequence_->full.num_tokens(); }
  // The next `num_rows` rows, at most rows_left(), or fewer where that leaves a last chunk whose
  // own attention can choose the draft KV. The last chunk has one row with logits, and one for each
  // drafted token on top, at most most_drafted. ERRORS: kResourceExhausted: no room for their K/V.
  absl::StatusOr<RowGroup> Plan(int64_t num_rows, int64_t most_drafted = 0);
  // Rows of the prompt in the chunk that was planned last.
  int64_t planned_rows() const { return planned_; }
  // After the pass. hidden: [rows with logits][hidden_size] of the chunk, the prompt's last row
  // last but for those of drafted tokens; empty if there are none. Behind the last chunk this makes
  // the scores that the spec needs (kvzip runs passes of its own), emits the first token and builds
  // the draft KV. ERRORS: those of Prefill::Run. What was computed before stays valid.
  absl::Status Settle(absl::Span<const float> hidden);

 private:
  // Whether the pass of the last `num_rows` rows may choose the draft KV as it goes.
  bool MayChooseInPass(int64_t num_rows) const;
  int64_t RowsOfChunk(int64_t num_rows) const;
  void StartChoice();
  bool wants_all_rows() const { return !resumes_ && sequence_->on_prompt_row != nullptr; }
  absl::Status ShowRows(absl::Span<const float> hidden, int64_t first_pos);
  // Drafted tokens that the last chunk takes along; forgets the others.
  int64_t TakeDrafted(int64_t most);
  // The first token, and what holds of the draft behind it. Returns the rows of it to keep.
  int64_t EmitFirst(const float* hidden);
  bool EmitRow(const float* logits, AcceptWalk* walk);
  absl::Status SettleDraft(absl::Span<const float> rows);
  absl::Status FinishPrompt(absl::Span<const float> hidden);

  Sequence* sequence_;
  const Model* model_;
  Forward* forward_;
  Prefill* prefill_;
  ThreadPool* pool_;
  PrefillOptions options_;
  const bool resumes_;
  const int64_t target_;  // rows to have in the end
  int64_t planned_ = 0;
  int num_accepted_ = 0;             // of the draft that came with the prompt
  std::vector<TokenId> with_draft_;  // tokens of the last chunk, where it checks a draft
  bool wants_scores_ = false;
  std::optional<PromptScorer> scorer_;
  std::optional<PassReselector> reselector_;  // of the last chunk
  ObserverList observers_;
};

}  // namespace vericache
