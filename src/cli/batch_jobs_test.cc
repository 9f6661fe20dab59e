#include "cli/batch_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

namespace vericache::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::vector<BatchJob> JobsOf(std::string_view text, const Request& defaults = {},
                             const std::string& model = "m") {
  std::vector<BatchJob> jobs = ReadJobs(text, defaults, nullptr);
  SetDigests(model, {}, &jobs);
  return jobs;
}

Completion Answer(const std::string& text) {
  Completion completion;
  completion.text = text;
  completion.token_ids = {1, 2};
  completion.finish_reason = "stop";
  completion.logits_hash = "h";
  return completion;
}

TEST(ReadJobs, ABadLineIsAJobWithAnError) {
  Request defaults;
  defaults.max_tokens = 9;
  defaults.draft_len = 4;
  std::string unused;
  const std::vector<BatchJob> jobs = ReadJobs(
      "\n{\"prompt\": \"a\", \"model\": \"x\"}\n{\"custom_id\": \"b\", \"draft\": \"int9\", "
      "\"prompt\": \"p\"}\nnonsense\n{\"question\": \"c\", \"max_tokens\": 0}",
      defaults, &unused);
  ASSERT_EQ(jobs.size(), 4);
  EXPECT_EQ(unused, "2: model");
  EXPECT_TRUE(jobs[0].error.ok());
  EXPECT_EQ(jobs[0].line, 2);
  EXPECT_EQ(jobs[0].request.max_tokens, 9);
  EXPECT_EQ(jobs[0].request.draft_len, 4);
  EXPECT_EQ(jobs[1].id, "b");
  EXPECT_THAT(std::string(jobs[1].error.message()), HasSubstr("int9"));
  EXPECT_FALSE(jobs[2].error.ok());
  EXPECT_EQ(jobs[2].line, 4);
  EXPECT_EQ(jobs[3].request.max_tokens, 0);
}

TEST(SetDigests, EverySettingOfTheAnswerCounts) {
  std::set<std::string> digests;
  size_t num = 0;
  for (const char* members :
       {R"("prompt": "a")", R"("prompt": "b")", R"("question": "a")", R"("prompt": "a", "seed": 1)",
        R"("prompt": "a", "temperature": 0.5)", R"("prompt": "a", "max_tokens": 5)",
        R"("prompt": "a", "draft": "off")", R"("prompt": "a", "draft_len": 5)",
        R"("prompt": "a", "top_k": 5)", R"("prompt": "a", "presence_penalty": 5)",
        R"("messages": [{"role": "user", "content": "x"}])",
        R"("messages": [{"role": "user", "content": "x"}], "tools": [1])"}) {
    digests.insert(JobsOf("{" + std::string(members) + "}")[0].digest);
    ++num;
  }
  digests.insert(JobsOf(R"({"prompt": "a"})", {}, "other")[0].digest);
  for (const RopeOptions& rope : {RopeOptions{"yarn", 4, 32768}, RopeOptions{"yarn", 2, 32768},
                                  RopeOptions{"linear", 4, 1}}) {
    std::vector<BatchJob> jobs = ReadJobs(R"({"prompt": "a"})", {}, nullptr);
    SetDigests("m", rope, &jobs);
    digests.insert(jobs[0].digest);
  }
  EXPECT_EQ(digests.size(), num + 4);
  EXPECT_EQ(JobsOf(R"({"prompt": "a", "priority": 5, "kind": "x", "id": "y"})")[0].digest,
            JobsOf(R"({"prompt": "a"})")[0].digest);
}

TEST(OldAnswers, AreKeptByIdAndDigest) {
  const std::string text = "{\"custom_id\": \"a\", \"prompt\": \"p\"}\n{\"prompt\": \"p\"}\n";
  std::vector<BatchJob> jobs = JobsOf(text);
  SetAnswer(Answer("one\n"), &jobs[0]);
  SetAnswer(Answer("two"), &jobs[1]);
  const std::string output = jobs[1].answer + "\n" + jobs[0].answer + "\n";
  OldAnswers answers;
  EXPECT_EQ(AddOldAnswers(output, &answers), 0);
  std::vector<BatchJob> again = JobsOf(text + "{\"custom_id\": \"c\", \"prompt\": \"p\"}\n");
  EXPECT_EQ(TakeOldAnswers(answers, &again), 0);
  EXPECT_TRUE(again[0].kept);
  EXPECT_EQ(again[0].answer, jobs[0].answer);
  EXPECT_EQ(again[1].answer, jobs[1].answer);
  EXPECT_FALSE(again[2].kept);
  EXPECT_EQ(again[2].answer, "");
  // Another model: nothing fits.
  std::vector<BatchJob> other = JobsOf(text, {}, "other");
  EXPECT_EQ(TakeOldAnswers(answers, &other), 2);
  EXPECT_FALSE(other[0].kept);
}

TEST(OldAnswers, DamageAnywhereCostsThatLineOnly) {
  std::vector<BatchJob> jobs = JobsOf("{\"prompt\": \"p\"}\n{\"prompt\": \"q\"}\n");
  SetAnswer(Answer("one"), &jobs[0]);
  SetAnswer(Answer("two"), &jobs[1]);
  for (size_t size = 0; size < jobs[1].answer.size(); ++size) {
    OldAnswers answers;
    AddOldAnswers(jobs[0].answer + "\n" + jobs[1].answer.substr(0, size), &answers);
    EXPECT_EQ(answers.size(), 1) << size;
  }
  OldAnswers answers;
  EXPECT_EQ(AddOldAnswers("\n" + std::string(1 << 20, '[') + "\n{}\n\xff\n5\n" + jobs[0].answer,
                          &answers),
            4);
  EXPECT_EQ(answers.size(), 1);
}

TEST(OldAnswers, WhatTheContextCutIsComputedAgain) {
  Completion cut = Answer("cut");
  cut.finish_reason = "length";
  std::vector<BatchJob> jobs = JobsOf("{\"prompt\": \"p\", \"max_tokens\": 3}");
  SetAnswer(cut, &jobs[0]);
  OldAnswers answers;
  AddOldAnswers(jobs[0].answer, &answers);
  std::vector<BatchJob> again = JobsOf("{\"prompt\": \"p\", \"max_tokens\": 3}");
  TakeOldAnswers(answers, &again);
  EXPECT_FALSE(again[0].kept);
}

TEST(SetAnswer, AnErrorHasItsLineAndIsNeverKept) {
  std::vector<BatchJob> jobs = JobsOf("\n{\"custom_id\": \"a\", \"prompt\": \"p\"}\n");
  SetAnswer(absl::OutOfRangeError("too\nlong"), &jobs[0]);
  EXPECT_TRUE(jobs[0].failed);
  EXPECT_THAT(jobs[0].answer, StartsWith("{\"custom_id\":\"a\",\"error\":\"line 2: too long\","));
  OldAnswers answers;
  EXPECT_EQ(AddOldAnswers(jobs[0].answer, &answers), 1);
  EXPECT_TRUE(answers.empty());
}

}  // namespace
}  // namespace vericache::cli
