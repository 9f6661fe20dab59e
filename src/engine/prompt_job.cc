#include "engine/prompt_job.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/acceptance.h"
#include "kv/selectors/selector.h"

namespace vericache {
namespace {

// Rows of a last chunk that chooses the draft KV in its own pass: enough of them to vote, few
// enough to be appended whole behind what they choose (a pass votes on committed positions only).
constexpr int64_t kLeastVoters = PassReselector::kVoters, kMostAppended = 64;
// Prompts of fewer tokens are asked afterwards: a chunk is cut in two for it, and a pass of the
// weights would cost more; and rows appended whole would be much of a small draft KV.
constexpr int64_t kLeastTokens = 4096;

}  // namespace

// The observers that a cold prompt's scores need see the same passes.
PromptJob::PromptJob(Sequence* sequence, const Model* model, Forward* forward, Prefill* prefill,
                     ThreadPool* pool, PrefillOptions options)
    : sequence_(sequence),
      model_(model),
      forward_(forward),
      prefill_(prefill),
      pool_(pool),
      options_(std::move(options)),
      resumes_(sequence->num_emitted() > 0),
      target_(static_cast<int64_t>(sequence->tokens.size()) - (resumes_ ? 1 : 0)) {
  Sequence& s = *sequence_;
  VC_CHECK(s.full.num_tokens() < target_);
  if (const int window = QueryRowsWanted(s.spec); window > 0)
    s.queries.emplace(model_->config, window);
  if (s.queries.has_value()) observers_.Add(&*s.queries);
  wants_scores_ =
      !HasScores(s) && (!s.draft.has_value() || s.spec.selector == SelectorKind::kVerify);
  if (!wants_scores_ || s.full.num_tokens() > 0) return;
  scorer_.emplace(s.spec, model_, s.num_prompt, pool);
  if (scorer_->observer() != nullptr) observers_.Add(scorer_->observer());
}

absl::StatusOr<RowGroup> PromptJob::Plan(int64_t num_rows) {
  Sequence& s = *sequence_;
  const int64_t begin = s.full.num_tokens();
  planned_ = RowsOfChunk(std::min(num_rows, rows_left()));
  VC_RETURN_IF_ERROR(s.full.Reserve(planned_));
  RowGroup group;
  group.tokens = absl::MakeConstSpan(s.tokens).subspan(begin, planned_);
  group.first_pos = begin;
  group.kv = &s.full;
  group.logits_begin = resumes_ ? planned_ : std::clamp<int64_t>(target_ - 1 - begin, 0, planned_);
  if (wants_all_rows()) group.logits_begin = 0;
  if (planned_ == rows_left() && MayChooseInPass(planned_)) StartChoice();
  group.observer = observers_.empty() ? nullptr : &observers_;
  return group;
}

bool PromptJob::MayChooseInPass(int64_t num_rows) const {
  const Sequence& s = *sequence_;
  return s.spec.reselects() && s.spec.score != VerifyScore::kVegas && !wants_scores_ &&
         !s.draft.has_value() && s.max_tokens > 0 && target_ >= kLeastTokens &&
         num_rows >= kLeastVoters;
}

int64_t PromptJob::RowsOfChunk(int64_t num_rows) const {
  const int64_t left = rows_left();
  if (left <= kLeastVoters || !MayChooseInPass(kLeastVoters)) return num_rows;
  if (num_rows == left) return left <= kMostAppended ? left : left - kLeastVoters;
  return std::min(num_rows, left - kLeastVoters);
}

void PromptJob::StartChoice() {
  Sequence& s = *sequence_;
  s.draft.emplace(NewDraftKv(model_->config.kv_shape(), s.spec, model_->kernels));
  reselector_.emplace(&s, s.full.num_tokens(), planned_, model_->kernels, pool_);
  observers_.Add(&*reselector_);
}

absl::Status PromptJob::ShowRows(absl::Span<const float> hidden, int64_t first_pos) {
  Sequence& s = *sequence_;
  const int64_t width = model_->config.hidden_size, vocab = model_->config.vocab_size;
  const int64_t num_rows = std::min(planned_, target_ - 1 - first_pos);
  std::vector<float> logits(kLogitsRows * vocab);
  std::vector<const float*> rows;
  for (int64_t begin = 0; begin < num_rows; begin += kLogitsRows) {
    const int64_t n = std::min(kLogitsRows, num_rows - begin);
    rows.clear();
    for (int64_t i = 0; i < n; ++i) rows.push_back(hidden.data() + (begin + i) * width);
    forward_->LogitsOf(rows, logits.data());
    for (int64_t i = 0; i < n; ++i)
      VC_RETURN_IF_ERROR(s.on_prompt_row(first_pos + begin + i, logits.data() + i * vocab));
  }
  return absl::OkStatus();
}

absl::Status PromptJob::Settle(absl::Span<const float> rows) {
  Sequence& s = *sequence_;
  const int64_t first_pos = s.full.num_tokens();
  const auto to_draft = reselector_.has_value() ? Prefill::ToDraft::kYes : Prefill::ToDraft::kNo;
  if (absl::Status status = prefill_->CommitChunk(&s, planned_, to_draft); !status.ok()) {
    if (reselector_.has_value()) s.draft.reset();  // made from what could not be read
    return status;
  }
  if (wants_all_rows()) VC_RETURN_IF_ERROR(ShowRows(rows, first_pos));
  const float* hidden =
      rows.empty() ? nullptr : rows.data() + rows.size() - model_->config.hidden_size;
  if (options_.progress && !options_.progress(s.full.num_tokens(), target_))
    return absl::CancelledError("stopped during prefill");
  return rows_left() > 0 ? absl::OkStatus() : FinishPrompt(hidden);
}

absl::Status PromptJob::FinishPrompt(const float* hidden) {
  Sequence& s = *sequence_;
  // kvzip's passes over the prompt overwrite the hidden rows of this one.
  std::vector<float> last;
  if (!resumes_) last.assign(hidden, hidden + model_->config.hidden_size);
  if (wants_scores_)
    VC_RETURN_IF_ERROR(scorer_.has_value() ? prefill_->TakeScores(&s, options_, &*scorer_)
                                           : prefill_->ScorePrompt(&s, options_));
  if (s.max_tokens <= 0) {
    s.finish = FinishReason::kLength;
  } else if (!resumes_) {
    EmitFirst(last.data());
  }
  // A session's draft must go on standing for all of its rows, even if the answer ends here.
  if (s.spec.enabled && !reselector_.has_value() && (!s.done() || s.draft.has_value()))
    VC_RETURN_IF_ERROR(prefill_->BuildDraft(&s));
  // Under a budget the draft KV may have to be made again.
  if (!s.spec.reselects() && !s.memory.has_value()) s.queries.reset();
  return absl::OkStatus();
}

void PromptJob::EmitFirst(const float* hidden) {
  Sequence& s = *sequence_;
  std::vector<float> logits(model_->config.vocab_size);
  forward_->LogitsOf({&hidden, 1}, logits.data());
  const int64_t pos = static_cast<int64_t>(s.tokens.size());
  const RowChoice choice = s.sampler.Choose(logits.data(), pos, s.tokens, s.num_prompt);
  if (choice.bad) {
    s.Fail(NonFiniteLogits(pos));
    return;
  }
  AcceptWalk walk({}, s.max_tokens);
  bool ends = s.ends_generation(choice.id);
  if (s.on_verified && s.on_verified(choice.id, logits.data())) ends = true;
  walk.Push(choice.id, ends);
  s.chain.Push(logits.data(), model_->config.vocab_size);
  s.tokens.push_back(choice.id);
  s.finish = walk.finish();
}

}  // namespace vericache
