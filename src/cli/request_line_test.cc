#include "cli/request_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vericache::cli {
namespace {

using testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  return std::string(ParseRequestLine(text, SamplingOptions()).status().message());
}

TEST(ParseRequestLine, ReadsWhatALineSays) {
  const auto line = ParseRequestLine(
      R"({"custom_id": "a", "id": "b", "kind": "code", "prompt": "Once", "max_tokens": 7,
          "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 18446744073709551615,
          "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5,
          "draft": "int4", "draft_len": 9, "priority": -3})",
      SamplingOptions());
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->id, "a");
  EXPECT_EQ(line->kind, "code");
  EXPECT_EQ(line->prompt, "Once");
  EXPECT_EQ(line->max_tokens, 7);
  EXPECT_EQ(line->sampling.temperature, 0.7F);
  EXPECT_EQ(line->sampling.top_k, 5);
  EXPECT_EQ(line->sampling.top_p, 0.9F);
  EXPECT_EQ(line->sampling.min_p, 0.1F);
  EXPECT_EQ(line->sampling.seed, UINT64_MAX);
  EXPECT_EQ(line->sampling.presence_penalty, 1);
  EXPECT_EQ(line->sampling.frequency_penalty, -1);
  EXPECT_EQ(line->sampling.repetition_penalty, 1.5F);
  EXPECT_EQ(line->draft, "int4");
  EXPECT_EQ(line->draft_len, 9);
  EXPECT_EQ(line->priority, -3);
  EXPECT_EQ(line->unused, "");
}

TEST(ParseRequestLine, WhatIsNotSaidStaysAsItWas) {
  SamplingOptions sampling;
  sampling.temperature = 0.25F;
  sampling.seed = 8;
  const auto line = ParseRequestLine(
      R"({"id": "b", "temperature": null, "max_tokens": null, "body": {"x": 1}})", sampling);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->id, "b");
  EXPECT_EQ(line->sampling.temperature, 0.25F);
  EXPECT_EQ(line->sampling.seed, 8);
  EXPECT_FALSE(line->max_tokens.has_value());
  EXPECT_FALSE(line->draft_len.has_value());
  EXPECT_EQ(line->unused, "body");
}

TEST(ParseRequestLine, SaysWhatIsWrong) {
  for (const auto& [text, says] : std::initializer_list<std::pair<const char*, const char*>>{
           {"", "expected one JSON object a line"},
           {"[1]", "expected one JSON object a line"},
           {"{\"prompt\": \"\xff\"}", "expected one JSON object a line"},
           {R"({"prompt": ""})", "\"prompt\" must be a text"},
           {R"({"custom_id": 5})", "\"custom_id\" must be a text"},
           {R"({"temperature": "hot"})", "\"temperature\" must be a number"},
           {R"({"top_p": 1e300})", "\"top_p\" must be a number"},
           {R"({"seed": -1})", "\"seed\" must be a whole number"},
           {R"({"max_tokens": -1})", "\"max_tokens\" must be"},
           {R"({"max_tokens": 18446744073709551615})", "\"max_tokens\" must be"},
           {R"({"max_tokens": 5.0})", "\"max_tokens\" must be"},
           {R"({"draft_len": 0})", "\"draft_len\" must be \"auto\" or"},
           {R"({"draft_len": 257})", "from 1 to 256"},
           {R"({"draft_len": "long"})", "\"draft_len\" must be"},
           {R"({"priority": 1e9})", "\"priority\" must be"},
           {R"({"messages": {}})", "\"messages\" must be a list"},
           {R"({"messages": []})", "\"messages\" must be a list"},
           {R"({"prompt": "a", "tools": []})", "\"tools\" must be a list, beside"}})
    EXPECT_THAT(ErrorOf(text), HasSubstr(says)) << text;
}

TEST(ParseRequestLine, DepthIsLimited) {
  const auto nested = [](int depth) {
    return "{\"messages\": [" + std::string(depth, '[') + std::string(depth, ']') + "]}";
  };
  EXPECT_EQ(ErrorOf(nested(100)), "");
  EXPECT_THAT(ErrorOf(nested(300)), HasSubstr("levels deep"));
  EXPECT_THAT(ErrorOf(nested(2000000)), HasSubstr("levels deep"));
}

TEST(ParseRequestLine, ABadLineStillTellsItsId) {
  std::string id;
  EXPECT_FALSE(ParseRequestLine(R"({"custom_id": "a", "seed": "x"})", SamplingOptions(), &id).ok());
  EXPECT_EQ(id, "a");
}

TEST(SetPrompt, WantsExactlyOne) {
  Request request;
  for (const char* text : {R"({"prompt": "a", "question": "b"})", R"({"id": "a"})",
                           R"({"prompt": "a", "messages": [{"role": "user"}]})"}) {
    const auto line = ParseRequestLine(text, SamplingOptions());
    ASSERT_TRUE(line.ok()) << line.status();
    EXPECT_THAT(std::string(SetPrompt(*line, &request).message()), HasSubstr("give one of"));
  }
  const auto line = ParseRequestLine(R"({"question": "Why \"x\"?"})", SamplingOptions());
  ASSERT_TRUE(SetPrompt(*line, &request).ok());
  EXPECT_EQ(request.messages_json, R"([{"role":"user","content":"Why \"x\"?"}])");
  EXPECT_EQ(request.prompt, "");
}

TEST(ForEachLine, NumbersLinesAndSkipsBlankOnes) {
  std::vector<std::pair<size_t, std::string>> lines;
  const auto keep = [&](size_t number, std::string_view line) {
    lines.emplace_back(number, line);
    return absl::OkStatus();
  };
  ASSERT_TRUE(ForEachLine("\na\n \t\r\nb", keep).ok());
  EXPECT_THAT(lines, testing::ElementsAre(testing::Pair(2, "a"), testing::Pair(4, "b")));
}

// Chat templates write tools as JSON, and the model sees the order of their keys.
TEST(RequestLine, ToolsKeepTheOrderOfTheirKeys) {
  const auto line = ParseRequestLine(
      R"({"messages": [{"role": "user", "content": "a"}],
          "tools": [{"type": "f", "a": {"z": 1, "b": 2}}]})",
      {}, nullptr);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->tools_json, R"([{"type":"f","a":{"z":1,"b":2}}])");
  EXPECT_EQ(line->messages_json, R"([{"role":"user","content":"a"}])");
}

TEST(RequestLine, EndlessKeysAreRefused) {
  std::string text = R"({"prompt": "a", "tools": {)";
  for (int i = 0; i < 200000; ++i) text += "\"" + std::to_string(i) + "\":1,";
  const auto line = ParseRequestLine(text + "\"end\":1}}", {}, nullptr);
  EXPECT_EQ(line.status().message(), "the JSON has more than 20000 keys, which no request needs");
}

}  // namespace
}  // namespace vericache::cli
