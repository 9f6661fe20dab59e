// Reasoning and tool calls, cut at every place: what comes out must not depend on the cuts.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/choice_text.h"

namespace vericache::server {
namespace {

const std::vector<std::string> kTools = {"f", "g"};

// "reasoning|content|name(arguments)..."
std::string Show(const ChoiceText& text) {
  std::string shown = text.reasoning() + "|" + text.content() + "|";
  for (const ToolCall& call : text.calls()) shown += call.name + "(" + call.arguments + ")";
  return shown;
}

// The deltas must add up to what the choice says of itself, too.
std::string Run(const std::vector<std::string>& pieces, ReasoningStart start,
                const std::vector<std::string>& tools) {
  ChoiceText text(start, tools);
  std::string reasoning, content;
  std::vector<std::string> calls;
  const auto add = [&](const TextDelta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const ToolDelta& call : delta.calls) {
      if (!call.name.empty()) {
        EXPECT_EQ(call.index, static_cast<int>(calls.size()));
        calls.push_back(call.name + "(");
      }
      calls[call.index] += call.arguments;
    }
  };
  for (const std::string& piece : pieces) add(text.Push(piece));
  add(text.Finish());
  std::string shown = reasoning + "|" + content + "|";
  for (const std::string& call : calls) shown += call + ")";
  EXPECT_EQ(shown, Show(text));
  return shown;
}

// Whole, byte by byte, and cut at every one and two places.
void ExpectAlways(const std::string& answer, const std::string& expected,
                  ReasoningStart start = ReasoningStart::kOff,
                  const std::vector<std::string>& tools = kTools) {
  EXPECT_EQ(Run({answer}, start, tools), expected);
  std::vector<std::string> bytes;
  for (const char c : answer) bytes.emplace_back(1, c);
  EXPECT_EQ(Run(bytes, start, tools), expected);
  for (size_t i = 0; i <= answer.size(); ++i)
    for (size_t j = i; j <= answer.size(); j += 3)
      ASSERT_EQ(Run({answer.substr(0, i), answer.substr(i, j - i), answer.substr(j)}, start, tools),
                expected)
          << "cut at " << i << " and " << j;
}

TEST(ToolParser, OneCall) {
  ExpectAlways(
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": 2}]}}\n</tool_call>",
      "||f({\"a\": [1, {\"b\": 2}]})");
}

TEST(ToolParser, TextAndTwoCallsWithoutTheBlanksBetween) {
  ExpectAlways(
      "Well. \n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n"
      "<tool_call>{\"name\":\"g\",\"arguments\":{\"x\":\"}\"}}</tool_call>\n done",
      "|Well.done|f({})g({\"x\":\"}\"})");
}

TEST(ToolParser, MarksInsideStringsAreText) {
  ExpectAlways(
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\\\"<tool_call>\"}}"
      "</tool_call>",
      "||f({\"a\": \"</tool_call>\\\"<tool_call>\"})");
}

TEST(ToolParser, OtherOrderOfKeysAndArgumentsAsText) {
  ExpectAlways("<tool_call>{\"arguments\": {\"z\": 1, \"a\": 2}, \"name\": \"g\"}</tool_call>",
               "||g({\"z\":1,\"a\":2})");
  ExpectAlways("<tool_call>{\"name\": \"g\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
               "||g({\"a\": 1})");
  ExpectAlways("<tool_call>{\"name\": \"g\"}</tool_call>", "||g({})");
  ExpectAlways("<tool_call>{\"name\": \"g\", \"parameters\": {\"a\": 1}}</tool_call>",
               "||g({\"a\":1})");
}

TEST(ToolParser, WhatIsNoCallStaysText) {
  for (const std::string& text :
       {std::string("a < b <tool <tool_cal"), std::string("  <tool_call>not json</tool_call> x"),
        std::string("<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>"),
        std::string("x <tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>"),
        std::string("<tool_call>{\"name\": \"f\""), std::string("<tool_call>"),
        std::string("<tool_call>{bad</tool_call>"), std::string("end of text \n ")})
    ExpectAlways(text, "|" + text + "|");
}

TEST(ToolParser, ABackslashAtTheEndOfAStringEscapesNothing) {
  ExpectAlways(R"(<tool_call>{"name": "f", "arguments": {"a": "x\\\\"}}</tool_call> y)",
               R"(|y|f({"a": "x\\\\"}))");
}

// The JSON library throws at such a number, in another way than at other bad JSON.
TEST(ToolParser, ANumberThatNoDoubleHoldsStaysText) {
  const std::string call =
      "<tool_call>{\"arguments\": {\"a\": 1e999}, \"name\": \"f\"}</tool_call>";
  ExpectAlways(call, "|" + call + "|");
}

TEST(ToolParser, ACallThatTheLimitCutsHasCutArguments) {
  ExpectAlways("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"lo", "||f({\"a\": \"lo)");
  ExpectAlways("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1</tool_call> x",
               "|x|f({\"a\": 1)");
}

TEST(ToolParser, WithoutToolsNothingIsLookedFor) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  ExpectAlways(call, "|" + call + "|", ReasoningStart::kOff, {});
}

TEST(ReasoningSplit, StartsWhereThePromptSays) {
  EXPECT_EQ(ReasoningStartOf("...assistant\n<think>\n"), ReasoningStart::kInside);
  EXPECT_EQ(ReasoningStartOf("...assistant\n<think>\n\n</think>\n\n"), ReasoningStart::kOff);
  EXPECT_EQ(ReasoningStartOf("...<think> assistant\n"), ReasoningStart::kDetect);
  EXPECT_EQ(ReasoningStartOf(""), ReasoningStart::kDetect);
}

TEST(ReasoningSplit, ClosedOpenTwiceAndLiteral) {
  const ReasoningStart inside = ReasoningStart::kInside, detect = ReasoningStart::kDetect;
  ExpectAlways(" why \n</think>\n\nso", "why|so|", inside);
  ExpectAlways("why </thin", "why </thin||", inside);
  ExpectAlways("<think>\nwhy</think>so", "why|so|", inside);
  ExpectAlways("\n<think>\nwhy</think>so <think>x</think>", "why|so <think>x</think>|", detect);
  ExpectAlways("so <think>x</think>", "|so <think>x</think>|", detect);
  ExpectAlways("<thin", "|<thin|", detect);
  ExpectAlways("a</think>b</think>c", "a|b</think>c|", inside);
  ExpectAlways("<think>x</think>", "|<think>x</think>|", ReasoningStart::kOff);
  ExpectAlways("<think></think>so", "|so|", detect);
  for (const ReasoningStart start : {inside, detect})
    ExpectAlways("<think>\n<think>\nwhy</think>so", "<think>\nwhy|so|", start);
}

TEST(ReasoningSplit, CallsAreLookedForInTheContentAlone) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  ExpectAlways("<think>" + call + "</think>" + call, call + "||f({})", ReasoningStart::kDetect);
}

}  // namespace
}  // namespace vericache::server
