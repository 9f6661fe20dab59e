#include "engine/prompt_job.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/acceptance.h"
#include "engine/verifier.h"
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
  if (const int window = QueryRowsWanted(s.spec); window > 0) {
    s.queries.emplace(model_->config, model_->kernels, window);
    s.queries->MayReject(std::ssize(s.drafted));
  }
  if (s.queries.has_value()) observers_.Add(&*s.queries);
  wants_scores_ =
      !HasScores(s) && (!s.draft.has_value() || s.spec.selector == SelectorKind::kVerify);
  if (!wants_scores_ || s.full.num_tokens() > 0) return;
  scorer_.emplace(s.spec, model_, s.num_prompt, pool);
  if (scorer_->observer() != nullptr) observers_.Add(scorer_->observer());
}

// Observers that score keys would see rows that may be rejected; and where prompts are scored, each
// row is shown once.
int64_t PromptJob::TakeDrafted(int64_t most) {
  Sequence& s = *sequence_;
  const int64_t left = std::max<int64_t>(0, s.max_tokens - 1);
  if (resumes_ || scorer_.has_value() || wants_all_rows()) most = 0;
  most = std::clamp<int64_t>(most, 0, left);
  if (std::ssize(s.drafted) > most) s.drafted.resize(most);
  return std::ssize(s.drafted);
}

absl::StatusOr<RowGroup> PromptJob::Plan(int64_t num_rows, int64_t most_drafted) {
  Sequence& s = *sequence_;
  const int64_t begin = s.full.num_tokens();
  planned_ = RowsOfChunk(std::min(num_rows, rows_left()));
  const bool last = planned_ == rows_left();
  const int64_t num_drafted = last ? TakeDrafted(most_drafted) : 0;
  VC_RETURN_IF_ERROR(s.full.Reserve(planned_ + num_drafted));
  RowGroup group;
  group.tokens = absl::MakeConstSpan(s.tokens).subspan(begin, planned_);
  if (num_drafted > 0) {
    with_draft_.assign(group.tokens.begin(), group.tokens.end());
    for (const DraftToken token : s.drafted) with_draft_.push_back(token.id);
    group.tokens = with_draft_;
  }
  group.first_pos = begin;
  group.kv = &s.full;
  group.logits_begin = resumes_ ? planned_ : std::clamp<int64_t>(target_ - 1 - begin, 0, planned_);
  if (wants_all_rows()) group.logits_begin = 0;
  if (last && MayChooseInPass(planned_)) StartChoice();
  group.observer = observers_.empty() ? nullptr : &observers_;
  return group;
}

bool PromptJob::MayChooseInPass(int64_t num_rows) const {
  const Sequence& s = *sequence_;
  return s.spec.reselects() && s.spec.score != VerifyScore::kVegas && !wants_scores_ &&
         !s.draft.has_value() && s.drafted.empty() && s.max_tokens > 0 && target_ >= kLeastTokens &&
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
  if (planned_ == rows_left() && !s.drafted.empty()) return SettleDraft(rows);
  const auto to_draft = reselector_.has_value() ? Prefill::ToDraft::kYes : Prefill::ToDraft::kNo;
  if (absl::Status status = prefill_->CommitChunk(&s, planned_, to_draft); !status.ok()) {
    if (reselector_.has_value()) s.draft.reset();  // made from what could not be read
    return status;
  }
  if (wants_all_rows()) VC_RETURN_IF_ERROR(ShowRows(rows, first_pos));
  if (options_.progress && !options_.progress(s.full.num_tokens(), target_))
    return absl::CancelledError("stopped during prefill");
  if (rows_left() > 0) return absl::OkStatus();
  const size_t width = model_->config.hidden_size;
  return FinishPrompt(rows.empty() ? rows : rows.last(width));
}

// As a verification: what holds is emitted, and its K/V are kept with the prompt's.
absl::Status PromptJob::SettleDraft(absl::Span<const float> rows) {
  Sequence& s = *sequence_;
  VC_RETURN_IF_ERROR(s.full.pass_status());
  RoundStats& round = s.rounds.emplace_back();
  round.drafted = static_cast<int>(s.drafted.size());
  round.mode = "arrival";
  round.draft_bytes = s.draft.has_value() ? s.draft->num_bytes() : 0;
  round.full_bytes = s.full.num_bytes();
  const int64_t kept = EmitFirst(rows.data());
  round.emitted = static_cast<int>(s.num_emitted());
  round.accepted = num_accepted_;
  s.drafted.clear();
  VC_RETURN_IF_ERROR(prefill_->CommitChunk(&s, planned_ + kept));
  if (options_.progress && !options_.progress(target_, target_))
    return absl::CancelledError("stopped during prefill");
  return FinishPrompt({});
}

// hidden: of the row that gives the first token; empty: it has been emitted.
absl::Status PromptJob::FinishPrompt(absl::Span<const float> hidden) {
  Sequence& s = *sequence_;
  // kvzip's passes over the prompt overwrite the hidden rows of this one.
  const std::vector<float> last(hidden.begin(), hidden.end());
  if (wants_scores_)
    VC_RETURN_IF_ERROR(scorer_.has_value() ? prefill_->TakeScores(&s, options_, &*scorer_)
                                           : prefill_->ScorePrompt(&s, options_));
  if (s.max_tokens <= 0) {
    s.finish = FinishReason::kLength;
  } else if (!resumes_ && !last.empty()) {
    (void)EmitFirst(last.data());
  }
  // A session's draft must go on standing for all of its rows, even if the answer ends here.
  if (s.spec.enabled && !reselector_.has_value() && (!s.done() || s.draft.has_value()))
    VC_RETURN_IF_ERROR(prefill_->BuildDraft(&s));
  // Under a budget the draft KV may have to be made again.
  if (!s.spec.reselects() && !s.memory.has_value()) s.queries.reset();
  return absl::OkStatus();
}

// hidden: [1 + drafted][hidden_size]. Logits from left to right, as in the verifier: none behind
// the first drafted token that does not hold.
int64_t PromptJob::EmitFirst(const float* hidden) {
  Sequence& s = *sequence_;
  const int64_t vocab = model_->config.vocab_size, width = model_->config.hidden_size;
  const int64_t num_rows = 1 + std::ssize(s.drafted);
  std::vector<float> logits(std::min(num_rows, kLogitsRows) * vocab);
  std::vector<const float*> rows;
  AcceptWalk walk(s.drafted, s.max_tokens);
  bool more = true;
  for (int64_t begin = 0; begin < num_rows && more; begin += kLogitsRows) {
    const int64_t n = std::min(kLogitsRows, num_rows - begin);
    rows.clear();
    for (int64_t i = 0; i < n; ++i) rows.push_back(hidden + (begin + i) * width);
    forward_->LogitsOf(rows, logits.data());
    for (int64_t i = 0; i < n && more; ++i) more = EmitRow(logits.data() + i * vocab, &walk);
  }
  num_accepted_ = walk.num_accepted();
  if (s.finish == FinishReason::kNone) s.finish = walk.finish();
  return std::max<int64_t>(0, std::ssize(walk.emitted()) - 1);
}

bool PromptJob::EmitRow(const float* logits, AcceptWalk* walk) {
  Sequence& s = *sequence_;
  const bool more =
      TakeVerifiedRow(logits, model_->config.vocab_size, std::ssize(s.tokens), s.tokens, &s, walk);
  if (s.finish != FinishReason::kError) s.tokens.push_back(walk->emitted().back());
  return more;
}

}  // namespace vericache
