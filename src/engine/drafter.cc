#include "engine/drafter.h"

#include <algorithm>

#include "base/check.h"

namespace vericache {
namespace {

// All tokens before the next one: emitted, then drafted.
std::vector<TokenId> HistoryOf(const Sequence& sequence) {
  std::vector<TokenId> history = sequence.tokens;
  for (DraftToken token : sequence.drafted) history.push_back(token.id);
  return history;
}

}  // namespace

// As many sequences a pass as its row limit takes.
void Drafter::Step(absl::Span<Sequence* const> sequences) {
  for (size_t begin = 0; begin < sequences.size(); begin += kMaxPassRows)
    StepPass(sequences.subspan(begin, kMaxPassRows));
}

void Drafter::StepPass(absl::Span<Sequence* const> sequences) {
  std::vector<TokenId> last(sequences.size());
  std::vector<RowGroup> batch(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = *sequences[i];
    last[i] = s.drafted.empty() ? s.tokens.back() : s.drafted.back().id;
    batch[i].tokens = absl::MakeConstSpan(&last[i], 1);
    batch[i].first_pos = static_cast<int64_t>(s.tokens.size() + s.drafted.size()) - 1;
    batch[i].kv = &*s.draft;
  }
  forward_->Run(batch, &hidden_);
  logits_.resize(kLogitsRows * model_->config.vocab_size);
  for (size_t begin = 0; begin < sequences.size(); begin += kLogitsRows) {
    const size_t end = std::min(sequences.size(), begin + kLogitsRows);
    forward_->Logits(hidden_, begin, end - begin, logits_.data());
    for (size_t i = begin; i < end; ++i) {
      Sequence& s = *sequences[i];
      const int64_t pos = batch[i].first_pos + 1;
      const std::vector<TokenId> history =
          s.sampler.NeedsHistory() ? HistoryOf(s) : std::vector<TokenId>();
      const RowChoice choice = s.sampler.Choose(
          logits_.data() + (i - begin) * model_->config.vocab_size, pos, history, s.num_prompt);
      DraftToken token{choice.bad ? -1 : choice.id};
      if (s.adversary) token = s.adversary(token, pos);
      s.drafted.push_back(token);
      if (s.on_drafted && token.id >= 0) s.on_drafted(s);
    }
  }
}

void Drafter::Draft(absl::Span<Sequence* const> sequences, absl::Span<const int> num_tokens) {
  std::vector<Sequence*> active;
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i]->drafted.clear();
    if (num_tokens[i] > 0) active.push_back(sequences[i]);
  }
  while (!active.empty()) {
    Step(active);
    std::erase_if(active, [&](Sequence* s) {
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
