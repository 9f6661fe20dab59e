// Computes K/V for known tokens until they catch up with the sequence, then the first new token.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/sequence.h"
#include "kv/selectors/selector.h"
#include "model/forward.h"

namespace vericache {

// What a sequence gives its selector; the layers are the caller's to add.
SelectInput MakeSelectInput(const Sequence& sequence, const QueryRows* queries,
                            const KernelTable* kernels, ThreadPool* pool);

// Chooses anew what the draft KV keeps and makes it from `full`, the sequence's own full KV or a
// shorter fork of it. `queries` are the newest exact ones, where the spec wants them.
// COST: with spilled blocks, one read of all of them. ERRORS: those of the tier.
absl::Status Reselect(Sequence* sequence, const FullKv& full, const QueryRows& queries,
                      const KernelTable* kernels, ThreadPool* pool);

struct PrefillOptions {
  int64_t chunk_rows = 512;  // rows of one pass; any value gives the same bits
  // done and total prompt tokens, after each chunk. False stops the prefill (kCancelled).
  std::function<bool(int64_t done, int64_t total)> progress;
};

class PromptScorer;

class Prefill {
 public:
  Prefill(const Model* model, Forward* forward, ThreadPool* pool)
      : model_(model), forward_(forward), pool_(pool) {}

  // Computes the rows of all tokens that `sequence->full` lacks, builds the draft KV if the spec
  // asks for one, and emits the first token (if max_tokens > 0).
  // REQUIRES: tokens.size() > full.num_tokens(); tokens.size() == num_prompt.
  // ERRORS: kResourceExhausted, kCancelled: what was computed so far stays valid, call again; those
  //         of the tier that K/V are spilled to.
  //         A bad row of logits fails the sequence (sequence->error), not the call.
  absl::Status Run(Sequence* sequence, const PrefillOptions& options);

  // Only the K/V, no draft and no token: a shared prefix.
  absl::Status Compute(Sequence* sequence, const PrefillOptions& options) {
    return Observe(sequence, options, nullptr);
  }
  // The same, seen by `observer` (may be null).
  absl::Status Observe(Sequence* sequence, const PrefillOptions& options,
                       ForwardObserver* observer);

  // Makes the scores that the spec needs of the prompt, if it lacks them. The prompt's K/V are
  // there. COST: expected, h2o: a second prefill; kvzip: its repetitions.
  absl::Status ScorePrompt(Sequence* sequence, const PrefillOptions& options);

  // Makes the draft KV anew, by the newest queries where the spec asks for some: after a preemption
  // that took it. ERRORS: those of the tier.
  absl::Status RebuildDraft(Sequence* sequence) {
    sequence->draft.reset();
    return BuildDraft(sequence);
  }

  // Teacher-forced pass over all tokens that `sequence->full` lacks: on_row(pos, logits) for every
  // row at position pos >= logits_begin, in order; logits [vocab_size] choose the token at pos + 1.
  // False ends the pass early. Used by audit, perplexity and replays. `observer` may be null.
  absl::Status Score(Sequence* sequence, const PrefillOptions& options, int64_t logits_begin,
                     absl::FunctionRef<bool(int64_t pos, const float* logits)> on_row,
                     ForwardObserver* observer = nullptr);

 private:
  friend class PromptJob;
  // Keeps the rows of the pass just run, in the draft KV too where that was chosen in this pass,
  // and spills what is beyond the hot blocks. ERRORS: those of the tier.
  enum class ToDraft { kNo, kYes };
  absl::Status CommitChunk(Sequence* sequence, int64_t num_rows, ToDraft to_draft = ToDraft::kNo);
  // Computes and commits the missing rows pass by pass; after each, `hidden` holds its rows at
  // positions >= logits_begin, the first of them at `first_pos`. False from on_chunk ends it.
  absl::Status ForEachChunk(Sequence* sequence, const PrefillOptions& options, int64_t logits_begin,
                            ForwardObserver* observer, HiddenRows* hidden,
                            absl::FunctionRef<bool(int64_t first_pos)> on_chunk);
  absl::Status ComputeRows(Sequence* sequence, const PrefillOptions& options,
                           ForwardObserver* observer, HiddenRows* last);
  absl::Status TakeScores(Sequence* sequence, const PrefillOptions& options, PromptScorer* scorer);
  bool ExtendsDraft(const Sequence& sequence, const QueryRows& queries) const;
  // Makes the draft KV of a sequence whose K/V and scores are complete.
  absl::Status BuildDraft(Sequence* sequence);

  const Model* model_;
  Forward* forward_;
  ThreadPool* pool_;
};

}  // namespace vericache
