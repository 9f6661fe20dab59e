#include "engine/drafter.h"

#include <algorithm>

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

// As many sequences a pass as its row limit takes.
void Drafter::Step(absl::Span<Sequence* const> sequences) {
  for (size_t begin = 0; begin < sequences.size(); begin += kMaxPassRows)
    StepPass(sequences.subspan(begin, kMaxPassRows));
}

void Drafter::StepPass(absl::Span<Sequence* const> sequences) {
  last_.resize(sequences.size());
  batch_.assign(sequences.size(), RowGroup());
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = *sequences[i];
    last_[i] = s.drafted.empty() ? s.tokens.back() : s.drafted.back().id;
    batch_[i].tokens = absl::MakeConstSpan(&last_[i], 1);
    batch_[i].first_pos = static_cast<int64_t>(s.tokens.size() + s.drafted.size()) - 1;
    batch_[i].kv = &*s.draft;
  }
  forward_->Run(batch_, &hidden_);
  logits_.resize(kLogitsRows * model_->config.vocab_size);
  for (size_t begin = 0; begin < sequences.size(); begin += kLogitsRows) {
    const size_t end = std::min(sequences.size(), begin + kLogitsRows);
    forward_->Logits(hidden_, begin, end - begin, logits_.data());
    for (size_t i = begin; i < end; ++i) {
      Sequence& s = *sequences[i];
      const int64_t pos = batch_[i].first_pos + 1;
      history_.clear();
      if (s.sampler.NeedsHistory()) HistoryOf(s, &history_);
      const RowChoice choice = s.sampler.Choose(
          logits_.data() + (i - begin) * model_->config.vocab_size, pos, history_, s.num_prompt);
      DraftToken token{choice.bad ? -1 : choice.id};
      if (s.adversary) token = s.adversary(token, pos);
      s.drafted.push_back(token);
      if (s.on_drafted && token.id >= 0) s.on_drafted(s);
    }
  }
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
