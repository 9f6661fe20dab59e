// The prefix cache in RAM as a part of the KV budget: never more in all, it gives way to requests
// that run, it fills what they leave, and answers stay the same.
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/prefix/prefix_fixture.h"
#include "vericache/batch.h"

namespace vericache {
namespace {

class PrefixBudgetTest : public PrefixFixture {
 protected:
  // A budget of open blocks, staging and `tokens` of full KV; the cache would like all there is.
  EngineOptions WithBudget(int64_t tokens) const {
    EngineOptions options = WithMemory();
    options.kv_dir = folder_;
    options.kv_memory = (640 << 10) + tokens * Load(Options())->info().kv_bytes_per_token;
    return options;
  }
  static std::vector<Request> Asks(int count, uint64_t seed, int64_t length,
                                   const std::string& draft) {
    std::vector<Request> requests;
    for (int i = 0; i < count; ++i)
      requests.push_back(Ask(TestPrompt(length, seed + i), draft, 24));
    return requests;
  }
};

TEST_F(PrefixBudgetTest, ABatchAndItsPrefixesStayWithinOneBudget) {
  const auto plain = Load(Options());
  int64_t evicted = 0, hits = 0;
  for (const int64_t tokens : {200, 1500, 12000}) {
    const EngineOptions options = WithBudget(tokens);
    const auto engine = Load(options);
    for (const uint64_t seed : {10, 20, 10, 20}) {
      const std::vector<Request> requests = Asks(5, seed, 600, "int4");
      BatchReport report;
      const auto got = engine->GenerateBatch(requests, BatchOptions(), &report);
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(AnswerOf(got[i]), AnswerOf(plain->Generate(requests[i]))) << tokens << " " << i;
      EXPECT_LE(report.peak_kv_bytes, options.kv_memory) << tokens;
      EXPECT_LE(engine->prefix_stats().memory_bytes, options.kv_memory);
    }
    evicted += engine->prefix_stats().evicted;
    hits += engine->prefix_stats().memory_hits;
  }
  EXPECT_GT(evicted, 0);
  EXPECT_GT(hits, 0);
}

TEST_F(PrefixBudgetTest, OneRequestAfterAnotherFindsWhatTheLastOneLeft) {
  const auto plain = Load(Options());
  for (const int64_t tokens : {300, 3000}) {
    const EngineOptions options = WithBudget(tokens);
    const auto engine = Load(options);
    std::vector<int32_t> prompt = TestPrompt(900, 3);
    for (int turn = 0; turn < 3; ++turn) {
      const Request request = Ask(prompt, "int4", 30);
      const auto got = engine->Generate(request);
      EXPECT_EQ(AnswerOf(got), AnswerOf(plain->Generate(request))) << turn;
      EXPECT_LE(got->stats.memory.peak_bytes, options.kv_memory) << turn;
      EXPECT_LE(engine->prefix_stats().memory_bytes, options.kv_memory);
      if (turn > 0) {
        EXPECT_GE(got->usage.cached_tokens, 900) << tokens;
      }
      prompt = prompt + got->token_ids + TestPrompt(20, 50 + turn);
    }
  }
}

// Under a budget much smaller than the stored prefix.
TEST_F(PrefixBudgetTest, AStoredPrefixIsLoadedWithinThePlan) {
  const std::vector<int32_t> prompt = TestPrompt(1900, 4);
  const Request request = Ask(prompt, "int4", 30);
  Answer want;
  {
    EngineOptions options = WithStore();
    want = AnswerOf(Load(options)->Generate(request));
  }
  for (const bool batch : {false, true}) {
    EngineOptions options = WithBudget(400);
    options.prefix_store = store_;
    const auto engine = Load(options);
    BatchReport report;
    const auto got = batch ? engine->GenerateBatch({request, request}, BatchOptions(), &report)[1]
                           : engine->Generate(request);
    EXPECT_EQ(AnswerOf(got), want);
    EXPECT_GE(got->usage.cached_tokens, 1850);
    EXPECT_LE(std::max(report.peak_kv_bytes, got->stats.memory.peak_bytes), options.kv_memory);
  }
}

}  // namespace
}  // namespace vericache
