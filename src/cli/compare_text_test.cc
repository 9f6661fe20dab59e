#include "cli/compare_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

namespace vericache::cli {
namespace {

using Ids = std::vector<int32_t>;
constexpr std::string_view kPython[] = {"python", "py"};

TEST(FirstDivergence, IsMinusOneForEqualTokens) {
  EXPECT_EQ(FirstDivergence(Ids{}, Ids{}), -1);
  EXPECT_EQ(FirstDivergence(Ids{4, 5}, Ids{4, 5}), -1);
}

TEST(FirstDivergence, IsTheFirstIndexThatDiffers) {
  EXPECT_EQ(FirstDivergence(Ids{4, 5, 6}, Ids{4, 7, 6}), 1);
  EXPECT_EQ(FirstDivergence(Ids{1}, Ids{2}), 0);
}

TEST(FirstDivergence, IsTheShorterLengthWhereOneIsTheStartOfTheOther) {
  EXPECT_EQ(FirstDivergence(Ids{4, 5, 6}, Ids{4, 5}), 2);
  EXPECT_EQ(FirstDivergence(Ids{}, Ids{4}), 0);
}

TEST(TokenF1, ComparesBagsAndNotSets) {
  EXPECT_DOUBLE_EQ(TokenF1(Ids{}, Ids{}), 1);
  EXPECT_DOUBLE_EQ(TokenF1(Ids{1, 2}, Ids{}), 0);
  EXPECT_DOUBLE_EQ(TokenF1(Ids{1, 2, 3}, Ids{3, 1, 2}), 1);  // order does not count
  // Two of the sevens match, not three: P = 2/3, R = 2/4.
  EXPECT_DOUBLE_EQ(TokenF1(Ids{7, 7, 8, 9}, Ids{7, 7, 7}), 4.0 / 7);
  EXPECT_DOUBLE_EQ(TokenF1(Ids{7, 7, 7}, Ids{7, 7, 8, 9}), 4.0 / 7);
}

TEST(FindFencedBlock, TakesTheFirstBlockOfTheLanguage) {
  const auto block =
      FindFencedBlock("a\n```sh\nls\n```\nb\n```Python \nx = 1\n```\n```py\ny\n```", kPython);
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->code, "x = 1\n");
  EXPECT_TRUE(block->closed);
}

TEST(FindFencedBlock, TakesABlockThatTheAnswerEndsIn) {
  const auto block = FindFencedBlock("Here:\n```python\ndef f(", kPython);
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->code, "def f(");
  EXPECT_FALSE(block->closed);
  const auto only_fence = FindFencedBlock("```python", kPython);
  ASSERT_TRUE(only_fence.has_value());
  EXPECT_EQ(only_fence->code, "");
}

TEST(FindFencedBlock, FindsNothingWithoutTheLanguage) {
  EXPECT_FALSE(FindFencedBlock("no fence", kPython).has_value());
  EXPECT_FALSE(FindFencedBlock("```\nx\n```", kPython).has_value());
  EXPECT_FALSE(FindFencedBlock("```sh\nls", kPython).has_value());
  EXPECT_FALSE(FindFencedBlock("", kPython).has_value());
}

TEST(ParseJsonAnswer, ReadsFencedAndBareJson) {
  const JsonVerdict fenced =
      ParseJsonAnswer("Sure:\n```json\n{\"b\": 1, \"a\": [2]}\n```\nDone.", AnswerEnd::kOwn);
  EXPECT_EQ(fenced.state, ParseState::kParses);
  EXPECT_EQ(fenced.canonical, "{\"a\":[2],\"b\":1}");
  const JsonVerdict bare = ParseJsonAnswer("It is {\"a\":[2], \"b\":1}.", AnswerEnd::kOwn);
  EXPECT_EQ(bare.state, ParseState::kParses);
  EXPECT_EQ(bare.canonical, fenced.canonical);  // the same value, written otherwise
  EXPECT_EQ(ParseJsonAnswer("```\n[1]\n```", AnswerEnd::kOwn).canonical, "[1]");
}

TEST(ParseJsonAnswer, TellsBrokenFromCutAndFromNone) {
  EXPECT_EQ(ParseJsonAnswer("no JSON here", AnswerEnd::kOwn).state, ParseState::kNone);
  EXPECT_EQ(ParseJsonAnswer("{\"a\": None}", AnswerEnd::kOwn).state, ParseState::kFails);
  EXPECT_EQ(ParseJsonAnswer("```json\n{\"a\": None}\n```", AnswerEnd::kAtTokenLimit).state,
            ParseState::kFails);
  EXPECT_EQ(ParseJsonAnswer("```json\n{\"a\": [1, 2", AnswerEnd::kAtTokenLimit).state,
            ParseState::kCut);
  EXPECT_EQ(ParseJsonAnswer("```json\n{\"a\": [1, 2", AnswerEnd::kOwn).state, ParseState::kFails);
  EXPECT_EQ(ParseJsonAnswer("[{\"a\": 1}, {\"b\"", AnswerEnd::kAtTokenLimit).state,
            ParseState::kCut);
  EXPECT_EQ(ParseJsonAnswer("[{\"a\": 1}, {\"a\": 2}, ", AnswerEnd::kAtTokenLimit).state,
            ParseState::kCut);
}

TEST(ParseJsonAnswer, DoesNotMistakeValuesForEqual) {
  const auto canonical = [](const char* text) {
    return ParseJsonAnswer(text, AnswerEnd::kOwn).canonical;
  };
  EXPECT_NE(canonical("{\"a\": 1}"), canonical("{\"a\": \"1\"}"));
  EXPECT_NE(canonical("[1, 2]"), canonical("[2, 1]"));
}

TEST(ParseJsonAnswer, SurvivesAbsurdNesting) {
  EXPECT_EQ(ParseJsonAnswer(std::string(100000, '['), AnswerEnd::kAtTokenLimit).state,
            ParseState::kCut);
}

class PythonTest : public testing::Test {
 protected:
  void SetUp() override {
    if (access("/usr/bin/python3", X_OK) != 0) GTEST_SKIP() << "no /usr/bin/python3";
  }
};

TEST_F(PythonTest, ParsesAndRunsNothing) {
  EXPECT_EQ(ParsePython("def f(x: int) -> int:\n    return x\n"), ParseState::kParses);
  EXPECT_EQ(ParsePython(""), ParseState::kParses);
  EXPECT_EQ(ParsePython("import os; os._exit(10)"), ParseState::kParses);
  EXPECT_EQ(ParsePython("s = 'caf\xc3\xa9'"), ParseState::kParses);
}

TEST_F(PythonTest, RefusesWhatIsNoPython) {
  EXPECT_EQ(ParsePython("def f(:\n"), ParseState::kFails);
  EXPECT_EQ(ParsePython(std::string("x = 1\0y", 7)), ParseState::kFails);
  EXPECT_EQ(ParsePython("s = '\xff'"), ParseState::kFails);
  EXPECT_EQ(ParsePython(std::string(5000, '(')), ParseState::kFails);
  // More than a pipe holds.
  EXPECT_EQ(ParsePython("x = [" + std::string(300000, '1') + "\n"), ParseState::kFails);
}

TEST_F(PythonTest, AnswerStates) {
  EXPECT_EQ(ParsePythonAnswer("just words", AnswerEnd::kOwn), ParseState::kNone);
  EXPECT_EQ(ParsePythonAnswer("```python\nx = 1\n```", AnswerEnd::kOwn), ParseState::kParses);
  EXPECT_EQ(ParsePythonAnswer("```python\nx = (\n```", AnswerEnd::kAtTokenLimit),
            ParseState::kFails);
  EXPECT_EQ(ParsePythonAnswer("```python\nx = (", AnswerEnd::kAtTokenLimit), ParseState::kCut);
}

TEST(ParsePython, GivesNoVerdictWithoutAnInterpreter) {
  EXPECT_EQ(ParsePython("x", "/nonexistent/python3"), ParseState::kUnavailable);
  // Ends without reading: neither a verdict nor a SIGPIPE for us.
  EXPECT_EQ(ParsePython(std::string(1 << 20, ' '), "/bin/false"), ParseState::kUnavailable);
}

TEST(ParsePython, KillsAChildThatDoesNotEnd) {
  char path[] = "/tmp/vericache_sleeper_XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  constexpr std::string_view kScript = "#!/bin/sh\nexec sleep 60\n";
  ASSERT_EQ(write(fd, kScript.data(), kScript.size()), static_cast<ssize_t>(kScript.size()));
  fchmod(fd, 0700);
  close(fd);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(ParsePython("x", path, 100), ParseState::kUnavailable);
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took, std::chrono::milliseconds(98));  // it counts whole milliseconds, rounded down
  EXPECT_LT(took, std::chrono::seconds(30));
  unlink(path);
}

}  // namespace
}  // namespace vericache::cli
