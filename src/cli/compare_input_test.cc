#include "cli/compare_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace vericache::cli {
namespace {

using testing::HasSubstr;

std::string ErrorOf(std::string_view text, QuestionForm form) {
  return std::string(ParseQuestions(text, form, "file").status().message());
}

TEST(ParseQuestions, ReadsOneObjectALine) {
  const auto questions = ParseQuestions(
      "\n{\"id\": \"x\", \"kind\": \"json\", \"question\": \"Why?\", \"max_tokens\": 5}\r\n"
      "  \n{\"question\": \"And?\"}",
      QuestionForm::kQuestionsOnly, "file");
  ASSERT_TRUE(questions.ok()) << questions.status();
  ASSERT_EQ(questions->size(), 2);
  EXPECT_EQ((*questions)[0].id, "x");
  EXPECT_EQ((*questions)[0].kind, "json");
  EXPECT_EQ((*questions)[0].text, "Why?");
  EXPECT_EQ((*questions)[0].max_tokens, 5);
  EXPECT_EQ((*questions)[1].id, "2");  // numbered where it has no name
  EXPECT_EQ((*questions)[1].max_tokens, 0);
}

TEST(ParseQuestions, ReadsPromptsQuestionsAndChats) {
  const auto prompts = ParseQuestions(
      "{\"prompt\": \"Once\"}\n{\"question\": \"Why?\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}",
      QuestionForm::kPrompts, "file");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_EQ((*prompts)[0].text, "Once");
  EXPECT_TRUE((*prompts)[0].messages_json.empty());
  const auto chat = nlohmann::json::parse((*prompts)[1].messages_json);
  EXPECT_EQ(chat[0]["role"], "user");
  EXPECT_EQ(chat[0]["content"], "Why?");
  EXPECT_THAT((*prompts)[2].messages_json, HasSubstr("\"Hi\""));
}

TEST(ParseQuestions, NamesTheLineThatIsWrong) {
  const QuestionForm form = QuestionForm::kQuestionsOnly;
  EXPECT_THAT(ErrorOf("{\"question\": \"a\"}\n{\"question\": ", form), HasSubstr("file:2: "));
  EXPECT_THAT(ErrorOf("[1]", form), HasSubstr("one JSON object a line"));
  EXPECT_THAT(ErrorOf("{}", form), HasSubstr("\"question\" is missing"));
  EXPECT_THAT(ErrorOf("{\"question\": 5}", form), HasSubstr("\"question\" must be a text"));
  EXPECT_THAT(ErrorOf("{\"question\": \"a\", \"max_tokens\": 0}", form),
              HasSubstr("\"max_tokens\" must be"));
  EXPECT_THAT(ErrorOf("{\"question\": \"a\", \"max_tokens\": 1.5}", form),
              HasSubstr("\"max_tokens\" must be"));
  EXPECT_THAT(ErrorOf("\n \n", form), HasSubstr("holds no prompt"));
}

TEST(ParseQuestions, WantsExactlyOnePrompt) {
  const QuestionForm form = QuestionForm::kPrompts;
  EXPECT_THAT(ErrorOf("{\"prompt\": \"a\", \"question\": \"b\"}", form), HasSubstr("give one of"));
  EXPECT_THAT(ErrorOf("{\"id\": \"a\"}", form), HasSubstr("give one of"));
  EXPECT_THAT(ErrorOf("{\"messages\": []}", form), HasSubstr("\"messages\" must be"));
}

TEST(ReadDocumentInput, RefusesWhatIsNotText) {
  EXPECT_FALSE(ReadDocumentInput("/nonexistent", "/nonexistent").ok());
  EXPECT_FALSE(ReadPromptsInput("/nonexistent").ok());
  // A GGUF file is the likeliest wrong file.
  const auto input = ReadDocumentInput("tests/golden/model/llama_tied.gguf", "README.md");
  EXPECT_THAT(std::string(input.status().message()), HasSubstr("is not UTF-8 text"));
}

}  // namespace
}  // namespace vericache::cli
