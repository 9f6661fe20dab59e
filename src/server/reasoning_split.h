// Splits an answer into reasoning and content at <think> and </think>, while it is made.
//
// Where an answer starts follows from the rendered prompt, since many templates open the thinking
// block themselves. Only a mark at the very start opens a block and only the first </think> closes
// it; later marks are ordinary text. A block that never closes makes all of it reasoning. Blanks
// beside the marks belong to neither part. The parts do not depend on how the text is cut.
#pragma once

#include <string>
#include <string_view>

namespace vericache::server {

enum class ReasoningStart {
  kOff,     // all is content: the prompt closed the block, or nobody wants a split
  kDetect,  // the answer may open a block
  kInside,  // the prompt opened it
};
ReasoningStart ReasoningStartOf(std::string_view rendered_prompt);

struct SplitText {
  std::string reasoning, content;
};

class ReasoningSplit {
 public:
  explicit ReasoningSplit(ReasoningStart start);

  SplitText Push(std::string_view text);
  // What was held back; call it once, at the end.
  SplitText Finish();
  bool inside() const {
    return state_ == State::kOpening || state_ == State::kOpened || state_ == State::kReasoning;
  }

 private:
  // kOpening: the prompt opened the block, and the answer may say so once more. kOpened, kClosing:
  // behind a mark, where blanks are dropped.
  enum class State { kStart, kOpening, kOpened, kReasoning, kClosing, kContent };

  // Handles what can be handled of held_; true if the state has changed.
  bool Step(SplitText* out);

  State state_;
  std::string held_;
};

}  // namespace vericache::server
