#include "api/answer_stream.h"

namespace vericache {

std::string TextOf(const Tokenizer& tokenizer, absl::Span<const TokenId> ids) {
  Utf8Assembler assembler;
  std::string text;
  for (TokenId id : ids)
    if (!tokenizer.IsControl(id)) text += assembler.Push(tokenizer.TokenBytes(id));
  return text + assembler.Flush();
}

void AnswerStream::Watch(Sequence* sequence) {
  if (!callbacks_.on_round) return;
  sequence->on_drafted = [this](const Sequence& s) {
    view_ = RoundView();
    for (DraftToken token : s.drafted) view_.drafted.push_back(token.id);
    callbacks_.on_round(view_);
  };
}

bool AnswerStream::Push(const Sequence& s) {
  if (callbacks_.on_round && s.rounds.size() > num_rounds_) {
    view_ = RoundView();
    view_.verified = true;
    view_.emitted.assign(s.tokens.begin() + s.num_prompt + next_, s.tokens.end());
    view_.num_accepted = s.rounds.back().accepted;
    callbacks_.on_round(view_);
  }
  num_rounds_ = s.rounds.size();
  std::string text;
  for (; next_ < s.num_emitted(); ++next_) {
    const TokenId id = s.tokens[s.num_prompt + next_];
    if (!tokenizer_.IsControl(id)) text += assembler_.Push(tokenizer_.TokenBytes(id));
  }
  if (s.done()) text += assembler_.Flush();
  return !callbacks_.on_text || text.empty() || callbacks_.on_text(text);
}

}  // namespace vericache
