// Finds tool calls in an answer while it is made: <tool_call>{"name": ..., "arguments": {...}}
// </tool_call>, one or more, as Qwen and Hermes models write them.
//
// A call counts if it names a tool that the request has; anything else stays text, marks included.
// Arguments are handed on as the model wrote them, character by character, so a call that the token
// limit cut has cut arguments. What comes out does not depend on how the text is cut into pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vericache::server {

struct ToolDelta {
  int index = 0;          // of the call
  std::string name;       // "" but in the first delta of a call
  std::string arguments;  // appended to those so far
};

struct ToolPiece {
  std::string content;
  std::vector<ToolDelta> calls;
};

class ToolParser {
 public:
  explicit ToolParser(std::vector<std::string> tool_names) : names_(std::move(tool_names)) {}

  ToolPiece Push(std::string_view text);
  // What was held back; call it once, at the end.
  ToolPiece Finish();
  int num_calls() const { return num_calls_; }

 private:
  // kBody: after <tool_call>, nothing decided. kArguments: they are handed on. kWhole: the object
  // is kept until it is whole. kTail: after the arguments.
  enum class State { kText, kBody, kArguments, kWhole, kTail };

  bool Step(ToolPiece* out);
  bool StepText(ToolPiece* out);
  bool StepBody(ToolPiece* out);
  bool StepArguments(ToolPiece* out);
  bool StepWhole(ToolPiece* out);
  bool StepTail();
  // No call after all: mark and body are text.
  void GiveUp(ToolPiece* out);
  void StartCall(const std::string& name, ToolPiece* out);
  bool IsKnown(std::string_view name) const;

  // Walks JSON from scan_ on. kMore: it goes on. kEnd: scan_ is behind the closing brace. kBad: at
  // scan_ is what no JSON has.
  enum class Scan { kMore, kEnd, kBad };
  Scan ScanObject();

  const std::vector<std::string> names_;
  State state_ = State::kText;
  std::string held_;
  std::string blanks_;  // that stood before the mark, dropped if a call follows
  bool after_call_ = false;
  int num_calls_ = 0;
  size_t scan_ = 0;
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

}  // namespace vericache::server
