#include "engine/prefill.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/prompt_job.h"
#include "engine/query_window.h"
#include "engine/scorers.h"
#include "kv/selectors/selector.h"

namespace vericache {

absl::Status NonFiniteLogits(int64_t pos) {
  return absl::DataLossError(
      StrCat("non-finite logits at position ", pos,
             ": the model file is damaged or its numbers overflow; nothing more was emitted"));
}

absl::Status Prefill::ForEachChunk(Sequence* sequence, const PrefillOptions& options,
                                   int64_t logits_begin, ForwardObserver* observer,
                                   HiddenRows* hidden,
                                   absl::FunctionRef<bool(int64_t first_pos)> on_chunk) {
  const int64_t total = static_cast<int64_t>(sequence->tokens.size());
  const int64_t chunk = std::clamp<int64_t>(options.chunk_rows, 1, kMaxPassRows);
  while (sequence->full.num_tokens() < total) {
    const int64_t begin = sequence->full.num_tokens();
    const int64_t rows = std::min(chunk, total - begin);
    VC_RETURN_IF_ERROR(sequence->full.Reserve(rows));
    RowGroup group;
    group.tokens = absl::MakeConstSpan(sequence->tokens).subspan(begin, rows);
    group.first_pos = begin;
    group.kv = &sequence->full;
    group.logits_begin = std::clamp<int64_t>(logits_begin - begin, 0, rows);
    group.observer = observer;
    forward_->Run({&group, 1}, hidden);
    VC_RETURN_IF_ERROR(CommitChunk(sequence, rows));
    if (!on_chunk(begin + group.logits_begin)) return absl::OkStatus();
    if (options.progress && !options.progress(begin + rows, total))
      return absl::CancelledError("stopped during prefill");
  }
  return absl::OkStatus();
}

absl::Status Prefill::ComputeRows(Sequence* sequence, const PrefillOptions& options,
                                  ForwardObserver* observer, HiddenRows* last) {
  const int64_t last_pos = static_cast<int64_t>(sequence->tokens.size()) - 1;
  return ForEachChunk(sequence, options, last_pos, observer, last, [](int64_t) { return true; });
}

SelectInput MakeSelectInput(const Sequence& sequence, const QueryRows* queries,
                            const KernelTable* kernels, ThreadPool* pool) {
  SelectInput input;
  input.queries = queries;
  input.scores = sequence.scores.get();
  input.floor = sequence.floor.get();
  input.file = sequence.kept_file.get();
  input.kernels = kernels;
  input.pool = pool;
  return input;
}

absl::Status Reselect(Sequence* sequence, const FullKv& full, const QueryRows& queries,
                      const KernelTable* kernels, ThreadPool* pool) {
  SelectInput input = MakeSelectInput(*sequence, &queries, kernels, pool);
  KeptSet kept;
  return ForEachLayers(full, [&](const LayerViews& layers) {
    input.layers = &layers;
    // Only queries ask for the K/V themselves; whatever else ranks keys has ranked them all.
    if (kept.positions.empty() || sequence->spec.uses_queries())
      kept = SelectPositions(sequence->spec, input);
    sequence->draft->Rebuild(layers, kept, pool);
  });
}

// A session's draft is extended by the exact new rows where what would choose anew is missing: a
// short turn's queries would vote worse than the long prompt's did.
bool Prefill::ExtendsDraft(const Sequence& s, const QueryRows& queries) const {
  if (!s.draft.has_value()) return false;
  if (s.spec.uses_queries()) return queries.num_rows < QueryRowsWanted(s.spec);
  return s.spec.selector == SelectorKind::kKept ||
         (s.spec.score_kind() != ScoreKind::kNone && s.scores == nullptr);
}

absl::Status Prefill::BuildDraft(Sequence* sequence) {
  // Of rows that hold: a draft that came with the prompt may have been rejected.
  const QueryRows queries = sequence->queries.has_value()
                                ? sequence->queries->Take(sequence->full.num_tokens())
                                : QueryRows();
  if (ExtendsDraft(*sequence, queries))
    return sequence->draft->CommitRows(sequence->full, sequence->draft->num_tokens(),
                                       sequence->full.num_tokens(), pool_);
  sequence->draft.emplace(NewDraftKv(model_->config.kv_shape(), sequence->spec, model_->kernels));
  VC_RETURN_IF_ERROR(Reselect(sequence, sequence->full, queries, model_->kernels, pool_));
  sequence->draft->ReserveRows(sequence->draft_length.max());
  return absl::OkStatus();
}

absl::Status Prefill::Observe(Sequence* sequence, const PrefillOptions& options,
                              ForwardObserver* observer) {
  HiddenRows last;
  return ComputeRows(sequence, options, observer, &last);
}

absl::Status Prefill::TakeScores(Sequence* sequence, const PrefillOptions& options,
                                 PromptScorer* scorer) {
  VC_ASSIGN_OR_RETURN(std::shared_ptr<const KeyScores> scores,
                      scorer->Finish(*sequence, options, this));
  SetScores(sequence, std::move(scores));
  return absl::OkStatus();
}

absl::Status Prefill::ScorePrompt(Sequence* sequence, const PrefillOptions& options) {
  if (HasScores(*sequence)) return absl::OkStatus();
  PromptScorer scorer(sequence->spec, model_, sequence->num_prompt, pool_);
  if (scorer.observer() != nullptr) {
    Sequence again(sequence->full.Fork(0), sequence->sampler);
    again.full.set_hot_blocks(0);  // a second set of hot blocks is in no budget
    again.tokens.assign(sequence->tokens.begin(), sequence->tokens.begin() + sequence->num_prompt);
    VC_RETURN_IF_ERROR(Observe(&again, options, scorer.observer()));
  }
  return TakeScores(sequence, options, &scorer);
}

absl::Status Prefill::CommitChunk(Sequence* sequence, int64_t num_rows, ToDraft to_draft) {
  FullKv& full = sequence->full;
  VC_RETURN_IF_ERROR(full.pass_status());
  full.Commit(num_rows);
  if (to_draft == ToDraft::kYes) {  // while they are in RAM
    DraftKv& draft = *sequence->draft;
    VC_RETURN_IF_ERROR(
        draft.CommitRows(full, full.num_tokens() - num_rows, full.num_tokens(), pool_));
    draft.ReserveRows(sequence->draft_length.max());
  }
  return full.Spill();
}

absl::Status Prefill::Run(Sequence* sequence, const PrefillOptions& options) {
  PromptJob job(sequence, model_, forward_, this, pool_, options);
  const int64_t chunk = std::clamp<int64_t>(options.chunk_rows, 1, kMaxPassRows);
  HiddenRows hidden;
  while (job.rows_left() > 0) {
    VC_ASSIGN_OR_RETURN(const RowGroup group, job.Plan(chunk));
    forward_->Run({&group, 1}, &hidden);
    VC_RETURN_IF_ERROR(job.Settle(
        {hidden.x.data(), static_cast<size_t>(hidden.num_rows) * model_->config.hidden_size}));
  }
  return absl::OkStatus();
}

absl::Status Prefill::Score(Sequence* sequence, const PrefillOptions& options, int64_t logits_begin,
                            absl::FunctionRef<bool(int64_t, const float*)> on_row,
                            ForwardObserver* observer) {
  std::vector<float> logits(kLogitsRows * model_->config.vocab_size);
  HiddenRows hidden;
  return ForEachChunk(sequence, options, logits_begin, observer, &hidden, [&](int64_t first_pos) {
    for (int64_t row = 0; row < hidden.num_rows; row += kLogitsRows) {
      const int64_t n = std::min(kLogitsRows, hidden.num_rows - row);
      forward_->Logits(hidden, row, n, logits.data());
      for (int64_t i = 0; i < n; ++i)
        if (!on_row(first_pos + row + i, logits.data() + i * model_->config.vocab_size))
          return false;
    }
    return true;
  });
}

}  // namespace vericache
