#include "engine/prefill.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/text.h"
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
    sequence->full.Commit(rows);
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

void Reselect(Sequence* sequence, const FullKv& full, const QueryRows& queries,
              const KernelTable* kernels, ThreadPool* pool) {
  SelectInput input;
  input.full = &full;
  input.queries = &queries;
  input.scores = sequence->scores.get();
  input.floor = sequence->floor.get();
  input.file = sequence->kept_file.get();
  input.kernels = kernels;
  input.pool = pool;
  sequence->draft->Rebuild(full, SelectPositions(sequence->spec, input), pool);
}

// A session's draft is extended by the exact new rows where what would choose anew is missing: a
// short turn's queries would vote worse than the long prompt's did.
bool Prefill::ExtendsDraft(const Sequence& s, const QueryRows& queries) const {
  if (!s.draft.has_value()) return false;
  if (s.spec.uses_queries()) return queries.num_rows < QueryRowsWanted(s.spec);
  return s.spec.selector == SelectorKind::kKept ||
         (s.spec.score_kind() != ScoreKind::kNone && s.scores == nullptr);
}

void Prefill::BuildDraft(Sequence* sequence, const QueryRows& queries) {
  if (ExtendsDraft(*sequence, queries)) {
    sequence->draft->CommitRows(sequence->full, sequence->draft->num_tokens(),
                                sequence->full.num_tokens(), pool_);
    return;
  }
  sequence->draft.emplace(NewDraftKv(model_->config.kv_shape(), sequence->spec, model_->kernels));
  Reselect(sequence, sequence->full, queries, model_->kernels, pool_);
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
    Sequence again(FullKv(model_->config.kv_shape(), model_->kernels), sequence->sampler);
    again.tokens.assign(sequence->tokens.begin(), sequence->tokens.begin() + sequence->num_prompt);
    VC_RETURN_IF_ERROR(Observe(&again, options, scorer.observer()));
  }
  return TakeScores(sequence, options, &scorer);
}

// The prompt's missing rows. The observers that a cold prompt's scores need see the same pass.
absl::Status Prefill::ComputePrompt(Sequence* s, const PrefillOptions& options, HiddenRows* last) {
  ObserverList observers;
  if (s->queries.has_value()) observers.Add(&*s->queries);
  const bool wants_scores =
      !HasScores(*s) && (!s->draft.has_value() || s->spec.selector == SelectorKind::kVerify);
  std::optional<PromptScorer> scorer;
  if (wants_scores && s->full.num_tokens() == 0) {
    scorer.emplace(s->spec, model_, s->num_prompt, pool_);
    if (scorer->observer() != nullptr) observers.Add(scorer->observer());
  }
  VC_RETURN_IF_ERROR(ComputeRows(s, options, observers.empty() ? nullptr : &observers, last));
  if (!wants_scores) return absl::OkStatus();
  return scorer.has_value() ? TakeScores(s, options, &*scorer) : ScorePrompt(s, options);
}

void Prefill::EmitFirst(Sequence* sequence, const HiddenRows& last) {
  std::vector<float> logits(model_->config.vocab_size);
  forward_->Logits(last, 0, 1, logits.data());
  const int64_t pos = static_cast<int64_t>(sequence->tokens.size());
  const RowChoice choice =
      sequence->sampler.Choose(logits.data(), pos, sequence->tokens, sequence->num_prompt);
  if (choice.bad) {
    sequence->Fail(NonFiniteLogits(pos));
    return;
  }
  AcceptWalk walk({}, sequence->max_tokens);
  walk.Push(choice.id, sequence->ends_generation(choice.id));
  sequence->chain.Push(logits.data(), model_->config.vocab_size);
  sequence->tokens.push_back(choice.id);
  sequence->finish = walk.finish();
}

absl::Status Prefill::Run(Sequence* sequence, const PrefillOptions& options) {
  VC_CHECK(sequence->full.num_tokens() < static_cast<int64_t>(sequence->tokens.size()));
  VC_CHECK(sequence->num_prompt == static_cast<int64_t>(sequence->tokens.size()));
  const int window = QueryRowsWanted(sequence->spec);
  if (window > 0) {
    sequence->queries.emplace(model_->config, window,
                              sequence->spec.reselects() ? sequence->draft_length.max() : 0);
  }
  HiddenRows last;
  VC_RETURN_IF_ERROR(ComputePrompt(sequence, options, &last));
  if (sequence->max_tokens <= 0) {
    sequence->finish = FinishReason::kLength;
  } else {
    EmitFirst(sequence, last);
  }
  // A session's draft must go on standing for all of its rows, even if the answer ends here.
  if (sequence->spec.enabled && (!sequence->done() || sequence->draft.has_value()))
    BuildDraft(sequence, sequence->queries.has_value() ? sequence->queries->Take() : QueryRows());
  if (!sequence->spec.reselects()) sequence->queries.reset();
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
