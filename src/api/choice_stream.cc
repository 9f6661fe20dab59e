#include "api/choice_stream.h"

#include <utility>

namespace vericache {

ChoiceStream::ChoiceStream(const Tokenizer* tokenizer, LogprobMaker* logprobs,
                           const ServeRequest& request, int choice, std::shared_ptr<ServeSink> sink)
    : tokenizer_(tokenizer),
      logprobs_(logprobs),
      wants_logprobs_(request.logprobs),
      wants_prompt_(request.prompt_logprobs && choice == 0),
      wants_drafts_(request.drafts),
      num_top_(request.top_logprobs),
      choice_(choice),
      sink_(std::move(sink)),
      stops_(request.stop) {}

void ChoiceStream::Watch(Sequence* sequence) {
  sequence->on_verified = [this](TokenId id, const float* logits) { return TakeToken(id, logits); };
  if (wants_drafts_) sequence->on_drafted = [this](const Sequence& s) { SendDraft(s); };
  if (!wants_prompt_) return;
  prompt_rows_.resize(sequence->num_prompt - 1);
  sequence->on_prompt_row = [this, sequence](int64_t pos, const float* logits) {
    return TakePromptRow(*sequence, pos, logits);
  };
}

absl::Status ChoiceStream::TakePromptRow(const Sequence& s, int64_t pos, const float* logits) {
  if (!logprobs_->IsFinite(logits)) return NonFiniteLogits(pos + 1);
  prompt_rows_[pos] = logprobs_->Of(logits, s.tokens[pos + 1], num_top_);
  return absl::OkStatus();
}

// Token by token, so that nothing behind the end of a stop string is ever emitted.
bool ChoiceStream::TakeToken(TokenId id, const float* logits) {
  ids_.push_back(id);
  if (wants_logprobs_) rows_.push_back(logprobs_->Of(logits, id, num_top_));
  if (!tokenizer_->IsControl(id))
    text_ += stops_.Push(characters_.Push(tokenizer_->TokenBytes(id)));
  return stops_.matched();
}

void ChoiceStream::SendDelta() {
  if (ids_.empty() && text_.empty()) return;
  ServeDelta delta;
  delta.choice = choice_;
  delta.text = text_;
  delta.token_ids = ids_;
  delta.logprobs = rows_;
  sink_->OnDelta(delta);
  shown_ += text_;
  text_.clear();
  ids_.clear();
  rows_.clear();
}

void ChoiceStream::Finish() {
  text_ += stops_.Push(characters_.Flush());
  if (!stops_.matched()) text_ += stops_.Flush();
  SendDelta();
}

void ChoiceStream::SendEnd(ServeEnd end) {
  end.choice = choice_;
  end.prompt_logprobs = std::move(prompt_rows_);
  sink_->OnEnd(std::move(end));
}

// What would be shown behind the last delta if all of the draft held.
void ChoiceStream::SendDraft(const Sequence& s) {
  Utf8Assembler characters = characters_;
  StopMatcher stops = stops_;
  std::string text;
  for (const DraftToken token : s.drafted) {
    if (token.id < 0 || s.ends_generation(token.id)) break;
    if (!tokenizer_->IsControl(token.id))
      text += stops.Push(characters.Push(tokenizer_->TokenBytes(token.id)));
  }
  if (!stops.matched()) text += stops.Flush();
  sink_->OnDraft(choice_, text);
}

}  // namespace vericache
