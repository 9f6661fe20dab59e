#include "server/choice_text.h"

#include "server/random_id.h"

namespace vericache::server {

void ChoiceText::AddCalls(const ToolPiece& piece, TextDelta* delta) {
  delta->content += piece.content;
  for (const ToolDelta& call : piece.calls) {
    if (!call.name.empty()) calls_.push_back({RandomId("call_"), call.name, ""});
    calls_[call.index].arguments += call.arguments;
    delta->calls.push_back(call);
  }
}

TextDelta ChoiceText::Sort(SplitText split, bool last) {
  TextDelta delta;
  delta.reasoning = std::move(split.reasoning);
  if (find_calls_) {
    AddCalls(parser_.Push(split.content), &delta);
    if (last) AddCalls(parser_.Finish(), &delta);
  } else {
    delta.content = std::move(split.content);
  }
  reasoning_ += delta.reasoning;
  content_ += delta.content;
  return delta;
}

}  // namespace vericache::server
