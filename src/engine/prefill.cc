#include "engine/prefill.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/query_window.h"
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

void Reselect(Sequence* sequence, const QueryRows& queries, const KernelTable* kernels,
              ThreadPool* pool) {
  SelectInput input;
  input.full = &sequence->full;
  input.queries = &queries;
  input.kernels = kernels;
  input.pool = pool;
  sequence->draft->Rebuild(sequence->full, SelectPositions(sequence->spec, input), pool);
}

void Prefill::BuildDraft(Sequence* sequence, const QueryRows& queries) {
  // A session's draft is extended by the exact new rows where there are too few new queries to
  // choose anew: a short turn would vote worse than the long prompt did.
  if (sequence->draft.has_value() && queries.num_rows < QueryRowsWanted(sequence->spec)) {
    sequence->draft->CommitRows(sequence->full, sequence->draft->num_tokens(),
                                sequence->full.num_tokens(), pool_);
    return;
  }
  sequence->draft.emplace(model_->config.kv_shape(), sequence->spec.codec, model_->kernels);
  Reselect(sequence, queries, model_->kernels, pool_);
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
  VC_RETURN_IF_ERROR(ComputeRows(
      sequence, options, sequence->queries.has_value() ? &*sequence->queries : nullptr, &last));
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
                            absl::FunctionRef<bool(int64_t, const float*)> on_row) {
  std::vector<float> logits(kLogitsRows * model_->config.vocab_size);
  HiddenRows hidden;
  return ForEachChunk(sequence, options, logits_begin, nullptr, &hidden, [&](int64_t first_pos) {
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

absl::Status Prefill::Compute(Sequence* sequence, const PrefillOptions& options) {
  HiddenRows last;
  return ComputeRows(sequence, options, nullptr, &last);
}

}  // namespace vericache
