#include "engine/drafter.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace vericache {
namespace {

// All tokens before the next one: emitted, then drafted.
void HistoryOf(const Sequence& sequence, std::vector<TokenId>* history) {
  history->reserve(sequence.tokens.capacity());  // the answer's room, not a bit more each step
  history->assign(sequence.tokens.begin(), sequence.tokens.end());
  for (DraftToken token : sequence.drafted) history->push_back(token.id);
}

}  // namespace

DraftedToken JudgeDrafted(Sequence* sequence, int64_t vocab_size) {
  const TokenId last = sequence->drafted.back().id;
  if (last < 0 || last >= vocab_size) {
    sequence->drafted.pop_back();
    return DraftedToken::kBad;
  }
  return sequence->ends_generation(last) ? DraftedToken::kEnds : DraftedToken::kGoesOn;
}

// As many sequences a pass as its row limit takes.
void Drafter::Step(absl::Span<Sequence* const> sequences) {
  for (size_t begin = 0; begin < sequences.size(); begin += kMaxPassRows)
    StepPass(sequences.subspan(begin, kMaxPassRows));
}

void Drafter::StepPass(absl::Span<Sequence* const> sequences) {
  batch_.clear();
  if (step_rows_.size() < sequences.size()) step_rows_.resize(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) step_rows_[i].sequence = sequences[i];
  Plan(absl::MakeSpan(step_rows_).first(sequences.size()), &batch_);
  forward_->Run(batch_, &hidden_);
  Settle(hidden_, 0, false);
}

int64_t Drafter::Plan(absl::Span<DraftRows> rows, std::vector<RowGroup>* batch) {
  if (tasks_.size() < rows.size()) tasks_.resize(rows.size());
  num_tasks_ = rows.size();
  int64_t num_planned = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence& s = *rows[i].sequence;
    rows[i].num_drafted = 0;
    rows[i].confidence.clear();
    Task& task = tasks_[i];
    task.rows = &rows[i];
    task.tokens.assign(1, s.drafted.empty() ? s.tokens.back() : s.drafted.back().id);
    task.tokens.insert(task.tokens.end(), rows[i].proposals.begin(), rows[i].proposals.end());
    task.first_row = num_planned;
    task.next = 0;
    task.ended = false;
    s.draft_vocab.Update(s.tokens, model_->config.vocab_size, s.ends_generation);
    for (const TokenId token : rows[i].proposals) s.draft_vocab.Add(token);
    num_planned += static_cast<int64_t>(task.tokens.size());
    RowGroup& group = batch->emplace_back();
    group.tokens = task.tokens;
    group.first_pos = static_cast<int64_t>(s.tokens.size() + s.drafted.size()) - 1;
    group.kv = &*s.draft;
  }
  return num_planned;
}

// Over the ids that somebody of this turn looks at: the others are hidden, their share is nothing.
float Drafter::ConfidenceOf(const float* logits, TokenId id) {
  exps_.clear();
  for (const OutRange& range : ranges_)
    exps_.insert(exps_.end(), logits + range.begin, logits + range.end);
  const float max = *std::max_element(exps_.begin(), exps_.end());
  for (float& x : exps_) x -= max;
  model_->kernels->exp(exps_.data(), std::ssize(exps_), exps_.data());
  float sum = 0, chosen = logits[id] - max;
  for (float e : exps_) sum += e;
  model_->kernels->exp(&chosen, 1, &chosen);
  return chosen / sum;
}

// Of the rows of this turn, each over its own sequence's part of the vocabulary: what is drafted
// does not depend on who else drafts.
void Drafter::ComputeLogits() {
  const int64_t vocab = model_->config.vocab_size;
  logits_.resize(kLogitsRows * vocab);
  tiles_.clear();
  for (const auto& [task, n] : spans_) {
    const absl::Span<const uint64_t> own = task->rows->sequence->draft_vocab.tiles();
    tiles_.resize(own.size());
    for (size_t i = 0; i < own.size(); ++i) tiles_[i] |= own[i];
  }
  RangesOf(tiles_, vocab, &ranges_);
  forward_->LogitsOf(logit_rows_, ranges_, logits_.data());
  float* row = logits_.data();
  for (const auto& [task, n] : spans_) {
    for (int64_t i = 0; i < n; ++i, row += vocab)
      HideOthers(task->rows->sequence->draft_vocab.tiles(), vocab, row);
  }
}

// As in the verifier: logits from left to right, a bounded number of rows a turn, and none behind
// the first proposal that does not hold.
void Drafter::Settle(const HiddenRows& hidden, int64_t first_hidden, bool with_confidence) {
  const int64_t vocab = model_->config.vocab_size, width = model_->config.hidden_size;
  for (;;) {
    spans_.clear();
    logit_rows_.clear();
    for (Task& task : absl::MakeSpan(tasks_).first(num_tasks_)) {
      if (task.ended) continue;
      const int64_t room = kLogitsRows - static_cast<int64_t>(logit_rows_.size());
      const int64_t n = std::min<int64_t>(room, std::ssize(task.tokens) - task.next);
      if (n == 0) break;
      for (int64_t i = 0; i < n; ++i)
        logit_rows_.push_back(hidden.x.data() +
                              (first_hidden + task.first_row + task.next + i) * width);
      spans_.emplace_back(&task, n);
    }
    if (spans_.empty()) break;
    ComputeLogits();
    const float* row = logits_.data();
    for (auto& [task, n] : spans_) {
      for (int64_t i = 0; i < n && !task->ended; ++i)
        TakeRow(task, row + i * vocab, with_confidence);
      row += n * vocab;
    }
  }
  for (Task& task : absl::MakeSpan(tasks_).first(num_tasks_))
    task.rows->sequence->draft->Rollback(std::ssize(task.tokens) - task.rows->num_drafted);
}

// One more drafted token. It ends the step unless it is what was proposed.
void Drafter::TakeRow(Task* task, const float* logits, bool with_confidence) {
  Sequence& s = *task->rows->sequence;
  const int64_t pos = static_cast<int64_t>(s.tokens.size() + s.drafted.size());
  history_.clear();
  if (s.sampler.NeedsHistory()) HistoryOf(s, &history_);
  const RowChoice choice = s.sampler.Choose(logits, pos, history_, s.num_prompt);
  DraftToken token{choice.bad ? -1 : choice.id};
  if (with_confidence)
    task->rows->confidence.push_back(choice.bad ? 0.0f : ConfidenceOf(logits, choice.id));
  if (s.adversary) token = s.adversary(token, pos);
  s.drafted.push_back(token);
  s.proposed = false;
  ++task->rows->num_drafted;
  ++task->next;
  task->ended = task->next == std::ssize(task->tokens) || token.id != task->tokens[task->next] ||
                s.ends_generation(token.id);
  if (s.on_drafted && token.id >= 0) s.on_drafted(s);
}

void Drafter::Draft(absl::Span<Sequence* const> sequences, absl::Span<const int> num_tokens) {
  active_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i]->drafted.clear();
    if (num_tokens[i] > 0) active_.push_back(sequences[i]);
  }
  while (!active_.empty()) {
    Step(active_);
    std::erase_if(active_, [&](Sequence* s) {
      const DraftToken last = s->drafted.back();
      if (last.id < 0 || last.id >= model_->config.vocab_size) {
        s->drafted.pop_back();  // a bad row proposes nothing
        return true;
      }
      const size_t idx = std::find(sequences.begin(), sequences.end(), s) - sequences.begin();
      return static_cast<int>(s->drafted.size()) >= num_tokens[idx] || s->ends_generation(last.id);
    });
  }
}

}  // namespace vericache
