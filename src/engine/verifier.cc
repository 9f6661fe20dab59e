#include "engine/verifier.h"

#include <algorithm>
#include <utility>

#include "engine/prefill.h"

namespace vericache {
namespace {

constexpr size_t kMaxRowsPerTurn = 16 * kLogitsRows;

}  // namespace

void Verifier::Verify(absl::Span<Sequence* const> sequences) {
  // As many sequences a pass as its row limit takes; how they are cut does not show.
  size_t begin = 0;
  while (begin < sequences.size()) {
    size_t end = begin;
    int64_t rows = 0;
    while (end < sequences.size()) {
      const int64_t more = static_cast<int64_t>(sequences[end]->drafted.size()) + 1;
      if (rows > 0 && rows + more > kMaxPassRows) break;
      rows += more;
      ++end;
    }
    VerifyPass(sequences.subspan(begin, end - begin));
    begin = end;
  }
}

// A plan for each sequence whose K/V have room; the others fail alone.
absl::Span<Verifier::Plan> Verifier::MakePlans(absl::Span<Sequence* const> sequences) {
  if (plans_.size() < sequences.size()) plans_.resize(sequences.size());
  size_t num_plans = 0;
  int64_t num_hidden = 0;
  for (Sequence* s : sequences) {
    const int64_t num_rows = static_cast<int64_t>(s->drafted.size()) + 1;
    if (absl::Status status = s->full.Reserve(num_rows); !status.ok()) {
      s->drafted.clear();
      s->Fail(std::move(status));
      continue;
    }
    Plan& plan = plans_[num_plans++];
    plan.sequence = s;
    plan.tokens.assign(1, s->tokens.back());
    for (DraftToken token : s->drafted) plan.tokens.push_back(token.id);
    plan.first_hidden = num_hidden;
    plan.walk.Start(s->drafted, s->max_tokens - s->num_emitted());
    plan.wants_row = true;
    num_hidden += num_rows;
  }
  return absl::MakeSpan(plans_).first(num_plans);
}

void Verifier::VerifyPass(absl::Span<Sequence* const> sequences) {
  const absl::Span<Plan> plans = MakePlans(sequences);
  if (plans.empty()) return;
  batch_.clear();
  for (Plan& plan : plans) {
    RowGroup group;
    group.tokens = plan.tokens;
    group.first_pos = plan.sequence->full.num_tokens();
    group.kv = &plan.sequence->full;
    if (plan.sequence->queries.has_value()) group.observer = &*plan.sequence->queries;
    batch_.push_back(group);
  }
  forward_->Run(batch_, &hidden_);
  Accept(plans);
  for (Plan& plan : plans) Commit(&plan);
}

// Logits are computed from left to right, up to eight rows a sequence at a time, and stop at the
// first mismatch: most of a long rejected draft never meets the output matrix. A turn takes a
// bounded number of rows, so that a large batch does not need rows x vocabulary of memory.
void Verifier::Accept(absl::Span<Plan> plans) {
  const int64_t vocab = model_->config.vocab_size, width = model_->config.hidden_size;
  for (;;) {
    spans_.clear();
    rows_.clear();
    for (Plan& plan : plans) {
      if (!plan.wants_row) continue;
      const int64_t next = plan.walk.next_row();
      const int64_t n =
          std::min<int64_t>(kLogitsRows, static_cast<int64_t>(plan.tokens.size()) - next);
      if (rows_.size() + n > kMaxRowsPerTurn) break;
      for (int64_t i = 0; i < n; ++i)
        rows_.push_back(hidden_.x.data() + (plan.first_hidden + next + i) * width);
      spans_.emplace_back(&plan, n);
    }
    if (spans_.empty()) return;
    logits_.resize(rows_.size() * vocab);
    forward_->LogitsOf(rows_, logits_.data());
    const float* row = logits_.data();
    for (auto& [plan, n] : spans_) {
      for (int64_t i = 0; i < n && plan->wants_row; ++i)
        plan->wants_row = TakeRow(plan, row + i * vocab);
      row += n * vocab;
    }
  }
}

bool Verifier::TakeRow(Plan* plan, const float* logits) {
  Sequence& s = *plan->sequence;
  const int64_t pos = static_cast<int64_t>(s.tokens.size() + plan->walk.emitted().size());
  history_.clear();
  if (s.sampler.NeedsHistory()) {
    history_.reserve(s.tokens.capacity());  // the answer's room, not a bit more each step
    history_.assign(s.tokens.begin(), s.tokens.end());
    history_.insert(history_.end(), plan->walk.emitted().begin(), plan->walk.emitted().end());
  }
  const RowChoice choice = s.sampler.Choose(logits, pos, history_, s.num_prompt);
  if (choice.bad) {
    s.Fail(NonFiniteLogits(pos));
    return false;
  }
  s.chain.Push(logits, model_->config.vocab_size);
  return plan->walk.Push(choice.id, s.ends_generation(choice.id));
}

// The exact rows of emitted tokens enter the draft KV: behind what it has, or in a new choice by
// the queries that just passed by (acceptance.md: the largest single effect on run lengths).
void Verifier::CommitDraft(Sequence* s, int64_t pos_begin, int64_t pos_end) {
  if (!s->queries.has_value() || s->done())
    return s->draft->CommitRows(s->full, pos_begin, pos_end, pool_);
  const int64_t rows = QueryRowsOfRound(s->spec, pos_end - pos_begin);
  Reselect(s, s->full, s->queries->Take(pos_end, rows), model_->kernels, pool_);
}

// The K/V kept are this pass's rows of the pending token and of all emitted tokens but the last.
void Verifier::Commit(Plan* plan) {
  Sequence& s = *plan->sequence;
  const std::vector<TokenId>& emitted = plan->walk.emitted();
  const int64_t num_rows = static_cast<int64_t>(emitted.size());
  const int64_t pos = s.full.num_tokens();
  s.full.Commit(num_rows);
  RoundStats& round = s.rounds.emplace_back();
  round.drafted = static_cast<int>(s.drafted.size());
  round.accepted = plan->walk.num_accepted();
  round.emitted = static_cast<int>(num_rows);
  s.tokens.insert(s.tokens.end(), emitted.begin(), emitted.end());
  s.drafted.clear();
  if (s.finish == FinishReason::kNone) s.finish = plan->walk.finish();
  if (s.draft.has_value()) CommitDraft(&s, pos, pos + num_rows);
}

}  // namespace vericache
