// The text of one choice as it comes, split into reasoning, content and tool calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/reasoning_split.h"
#include "server/tool_parser.h"

namespace vericache::server {

struct ToolCall {
  std::string id, name, arguments;
};

// What a piece of text added.
struct TextDelta {
  std::string reasoning, content;
  std::vector<ToolDelta> calls;
  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

class ChoiceText {
 public:
  // tool_names: "" for no tools, in which case all is reasoning or content.
  ChoiceText(ReasoningStart start, const std::vector<std::string>& tool_names)
      : find_calls_(!tool_names.empty()), split_(start), parser_(tool_names) {}

  TextDelta Push(std::string_view text) { return Sort(split_.Push(text), /*last=*/false); }
  // At the end, once.
  TextDelta Finish() { return Sort(split_.Finish(), /*last=*/true); }

  bool in_reasoning() const { return split_.inside(); }
  // All so far.
  const std::string& reasoning() const { return reasoning_; }
  const std::string& content() const { return content_; }
  const std::vector<ToolCall>& calls() const { return calls_; }

 private:
  TextDelta Sort(SplitText split, bool last);
  void AddCalls(const ToolPiece& piece, TextDelta* delta);

  const bool find_calls_;
  ReasoningSplit split_;
  ToolParser parser_;
  std::string reasoning_, content_;
  std::vector<ToolCall> calls_;
};

}  // namespace vericache::server
