#include "server/reasoning_split.h"

#include "server/text_hold.h"

namespace vericache::server {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

}  // namespace

ReasoningStart ReasoningStartOf(std::string_view rendered_prompt) {
  const std::string_view end = rendered_prompt.substr(0, TrimmedSize(rendered_prompt));
  if (end.ends_with(kOpen)) return ReasoningStart::kInside;
  return end.ends_with(kClose) ? ReasoningStart::kOff : ReasoningStart::kDetect;
}

ReasoningSplit::ReasoningSplit(ReasoningStart start)
    : state_(start == ReasoningStart::kOff      ? State::kContent
             : start == ReasoningStart::kInside ? State::kOpening
                                                : State::kStart) {}

bool ReasoningSplit::Step(SplitText* out) {
  switch (state_) {
    case State::kStart:
    case State::kOpening: {
      const size_t begin = held_.find_first_not_of(kBlanks);
      if (begin == held_.npos) return false;
      const std::string_view rest = std::string_view(held_).substr(begin);
      if (rest.size() < kOpen.size() && kOpen.starts_with(rest)) return false;
      const bool opened = rest.starts_with(kOpen);
      if (state_ == State::kStart && !opened) {
        state_ = State::kContent;
      } else if (opened) {
        held_.erase(0, begin + kOpen.size());
        state_ = State::kOpened;
      } else {
        held_.erase(0, begin);
        state_ = State::kReasoning;
      }
      return !held_.empty();
    }
    case State::kOpened: {
      held_.erase(0, std::min(held_.find_first_not_of(kBlanks), held_.size()));
      if (held_.empty()) return false;
      state_ = State::kReasoning;
      return true;
    }
    case State::kReasoning: {
      const size_t close = held_.find(kClose);
      const bool closed = close != held_.npos;
      const size_t size = closed ? TrimmedSize(std::string_view(held_).substr(0, close))
                                 : SizeBeforeMark(held_, kClose);
      out->reasoning += held_.substr(0, size);
      held_.erase(0, closed ? close + kClose.size() : size);
      if (closed) state_ = State::kClosing;
      return closed;
    }
    case State::kClosing: {
      held_.erase(0, std::min(held_.find_first_not_of(kBlanks), held_.size()));
      if (held_.empty()) return false;
      state_ = State::kContent;
      return true;
    }
    case State::kContent:
      out->content += held_;
      held_.clear();
      return false;
  }
  return false;
}

SplitText ReasoningSplit::Push(std::string_view text) {
  SplitText out;
  held_ += text;
  while (Step(&out)) {
  }
  return out;
}

SplitText ReasoningSplit::Finish() {
  SplitText out;
  if (state_ == State::kStart || state_ == State::kContent) out.content = held_;
  if (inside()) out.reasoning = held_;
  held_.clear();
  return out;
}

}  // namespace vericache::server
