#include "engine/verifier.h"

#include <algorithm>
#include <utility>

#include "engine/prefill.h"

namespace vericache {
namespace {

constexpr size_t kMaxRowsPerTurn = 4 * kLogitsRows;
// Choosing anew costs more than a plain step (at 4K tokens four times as much), and a single query
// votes badly. While the draft KV drafts nothing it is left as it is and grows by the new rows; it
// is chosen anew before it drafts again (RefreshChoice()), or when it has grown by so many. Under a
// budget, where it may not grow, by as many as vote.
constexpr int64_t kStaleChoice = 32, kMostUnchosen = 512, kMostUnchosenOfBudget = kStaleChoice;
// Choosing takes as long as a plain step for about each 2,500 tokens there are (0.28 s at 29K of
// the 0.5b, for a draft of one token): not before so many have been emitted that it is a tenth of
// them.
constexpr int64_t kTokensPerStale = 256;

}  // namespace

bool TakeVerifiedRow(const float* logits, int64_t vocab_size, int64_t pos,
                     absl::Span<const TokenId> history, Sequence* sequence, AcceptWalk* walk) {
  Sequence& s = *sequence;
  const RowChoice choice = s.sampler.Choose(logits, pos, history, s.num_prompt);
  if (choice.bad) {
    s.Fail(NonFiniteLogits(pos));
    return false;
  }
  s.chain.Push(logits, vocab_size);
  bool ends = s.ends_generation(choice.id);
  if (s.on_verified && s.on_verified(choice.id, logits)) ends = true;
  return walk->Push(choice.id, ends);
}

void Verifier::RefreshChoice(Sequence* sequence) {
  Sequence& s = *sequence;
  const int64_t stale = std::max(kStaleChoice, s.full.num_tokens() / kTokensPerStale);
  if (s.num_unchosen < stale || !s.drafted.empty() || !s.draft.has_value() ||
      !s.queries.has_value() || !s.spec.reselects() || s.full.num_cold_blocks() > 0)
    return;
  const int64_t rows = QueryRowsOfRound(s.spec, s.num_unchosen);
  const QueryRows queries = s.queries->Take(s.full.num_tokens(), rows);
  if (queries.num_rows > 0 && Reselect(&s, s.full, queries, model_->kernels, pool_).ok())
    s.num_unchosen = 0;
}

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

// A task for each sequence whose K/V have room; the others fail alone.
int64_t Verifier::Plan(absl::Span<Sequence* const> sequences, std::vector<RowGroup>* batch) {
  if (tasks_.size() < sequences.size()) tasks_.resize(sequences.size());
  num_tasks_ = 0;
  int64_t num_planned = 0;
  for (Sequence* s : sequences) {
    const int64_t num_rows = static_cast<int64_t>(s->drafted.size()) + 1;
    if (absl::Status status = s->full.Reserve(num_rows); !status.ok()) {
      s->drafted.clear();
      s->Fail(std::move(status));
      continue;
    }
    Task& task = tasks_[num_tasks_++];
    task.sequence = s;
    task.tokens.assign(1, s->tokens.back());
    for (DraftToken token : s->drafted) task.tokens.push_back(token.id);
    task.first_row = num_planned;
    task.walk.Start(s->drafted, s->max_tokens - s->num_emitted());
    task.wants_row = true;
    num_planned += num_rows;
    RowGroup& group = batch->emplace_back();
    group.tokens = task.tokens;
    group.first_pos = s->full.num_tokens();
    group.kv = &s->full;
    Observe(&task, &group);
  }
  return num_planned;
}

void Verifier::VerifyPass(absl::Span<Sequence* const> sequences) {
  batch_.clear();
  if (Plan(sequences, &batch_) == 0) return;
  forward_->Run(batch_, &hidden_);
  Settle(hidden_, 0);
}

void Verifier::Settle(const HiddenRows& hidden, int64_t first_hidden) {
  for (size_t i = 0; i < num_tasks_; ++i) {
    Sequence& s = *tasks_[i].sequence;
    if (s.full.pass_status().ok()) continue;
    s.Fail(s.full.pass_status());
    tasks_[i].wants_row = false;
  }
  Accept(hidden, first_hidden);
  for (size_t i = 0; i < num_tasks_; ++i) Commit(&tasks_[i]);
}

void Verifier::Observe(Task* task, RowGroup* group) {
  Sequence* s = task->sequence;
  task->reselector.reset();
  const int64_t most = s->full.has_tier() ? kMostUnchosenOfBudget : kMostUnchosen;
  task->keeps_choice = (s->drafted.empty() || s->proposed) &&
                       s->num_unchosen + static_cast<int64_t>(task->tokens.size()) < most;
  if (!s->queries.has_value() || !s->spec.reselects()) return;
  s->queries->MayReject(static_cast<int64_t>(task->tokens.size()) - 1);
  group->observer = &*s->queries;
  if (!s->draft.has_value() || task->keeps_choice) return;
  // In RAM asking afterwards is cheap where few rows vote: after a plain round, whose single query
  // votes badly without those of the rounds before; and vegas, which asks two.
  if (s->full.num_cold_blocks() == 0 &&
      (s->drafted.empty() || s->spec.score == VerifyScore::kVegas))
    return;
  task->reselector.emplace(s, group->first_pos, group->tokens.size(), model_->kernels, pool_);
  task->observers = ObserverList();
  task->observers.Add(&*s->queries);
  task->observers.Add(&*task->reselector);
  group->observer = &task->observers;
}

// Logits are computed from left to right, up to eight rows a sequence at a time, and stop at the
// first mismatch: most of a long rejected draft never meets the output matrix. A turn takes a
// bounded number of rows, so that a large batch does not need rows x vocabulary of memory.
void Verifier::Accept(const HiddenRows& hidden, int64_t first_hidden) {
  const int64_t vocab = model_->config.vocab_size, width = model_->config.hidden_size;
  for (;;) {
    spans_.clear();
    rows_.clear();
    for (Task& task : absl::MakeSpan(tasks_).first(num_tasks_)) {
      if (!task.wants_row) continue;
      const int64_t next = task.walk.next_row();
      const int64_t n =
          std::min<int64_t>(kLogitsRows, static_cast<int64_t>(task.tokens.size()) - next);
      if (rows_.size() + n > kMaxRowsPerTurn) break;
      for (int64_t i = 0; i < n; ++i)
        rows_.push_back(hidden.x.data() + (first_hidden + task.first_row + next + i) * width);
      spans_.emplace_back(&task, n);
    }
    if (spans_.empty()) return;
    logits_.resize(rows_.size() * vocab);
    forward_->LogitsOf(rows_, logits_.data());
    const float* row = logits_.data();
    for (auto& [task, n] : spans_) {
      for (int64_t i = 0; i < n && task->wants_row; ++i)
        task->wants_row = TakeRow(task, row + i * vocab);
      row += n * vocab;
    }
  }
}

bool Verifier::TakeRow(Task* task, const float* logits) {
  Sequence& s = *task->sequence;
  const int64_t pos = static_cast<int64_t>(s.tokens.size() + task->walk.emitted().size());
  history_.clear();
  if (s.sampler.NeedsHistory()) {
    history_.reserve(s.tokens.capacity());  // the answer's room, not a bit more each step
    history_.assign(s.tokens.begin(), s.tokens.end());
    history_.insert(history_.end(), task->walk.emitted().begin(), task->walk.emitted().end());
  }
  return TakeVerifiedRow(logits, model_->config.vocab_size, pos, history_, &s, &task->walk);
}

// The exact rows of emitted tokens enter the draft KV behind what it has, which the pass may have
// chosen anew (acceptance.md: the largest single effect on run lengths); after plain rounds they
// enter in a new choice by the queries of those.
absl::Status Verifier::CommitDraft(const Task& task, int64_t pos_begin, int64_t pos_end) {
  Sequence* s = task.sequence;
  if (!s->queries.has_value() || !s->spec.reselects() || task.reselector.has_value() ||
      task.keeps_choice || s->done())
    return s->draft->CommitRows(s->full, pos_begin, pos_end, pool_);
  const int64_t rows = QueryRowsOfRound(s->spec, pos_end - pos_begin);
  return Reselect(s, s->full, s->queries->Take(pos_end, rows), model_->kernels, pool_);
}

// The K/V kept are this pass's rows of the pending token and of all emitted tokens but the last.
void Verifier::Commit(Task* task) {
  Sequence& s = *task->sequence;
  if (!s.full.pass_status().ok()) {  // nothing of this pass is kept
    s.drafted.clear();
    return;
  }
  const std::vector<TokenId>& emitted = task->walk.emitted();
  const int64_t num_rows = static_cast<int64_t>(emitted.size());
  const int64_t pos = s.full.num_tokens();
  s.full.Commit(num_rows);
  RoundStats& round = s.rounds.emplace_back();
  round.drafted = static_cast<int>(s.drafted.size());
  round.accepted = task->walk.num_accepted();
  round.emitted = static_cast<int>(num_rows);
  s.tokens.insert(s.tokens.end(), emitted.begin(), emitted.end());
  s.drafted.clear();
  s.num_unchosen = task->keeps_choice ? s.num_unchosen + num_rows : 0;
  s.proposed = false;
  if (s.finish == FinishReason::kNone) s.finish = task->walk.finish();
  if (s.draft.has_value())
    if (absl::Status status = CommitDraft(*task, pos, pos + num_rows); !status.ok())
      s.Fail(std::move(status));
  if (absl::Status status = s.full.Spill(); !status.ok() && !s.done()) s.Fail(std::move(status));
}

}  // namespace vericache
