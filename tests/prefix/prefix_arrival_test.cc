// Prefixes from a store far away: drafted on while their full blocks arrive, cut off, damaged,
// late. The answers are those of a cold run, whatever is planned and whatever the store does.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/engine_impl.h"
#include "gtest/gtest.h"
#include "tests/prefix/far_store.h"
#include "tests/prefix/prefix_fixture.h"

namespace vericache {
namespace {

constexpr const char* kPlans[] = {"auto", "load", "draft-first", "recompute"};
constexpr int64_t kPrefixTokens = 320;

class PrefixArrivalTest : public PrefixFixture {
 protected:
  // A document's K/V and draft KV, stored as `vericache prefix push` does.
  void Push(const std::string& draft) {
    const auto engine = Load(WithStore());
    const auto report = engine->PushPrefix(Ask(document_, draft), {{draft}, "document"});
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_EQ(report->stored_tokens, kPrefixTokens);
  }
  std::unique_ptr<Engine> Far(const std::string& plan, FarStore::Before before = {},
                              StoreLink link = {true, 1e6, 0.001}) {
    EngineOptions options = WithStore();
    options.prefix_store_mode = "ro";
    options.prefix_plan = plan;
    auto engine = Load(options);
    MoveStoreAway(store_, link, std::move(before), engine.get());
    return engine;
  }
  Request Question(const std::string& draft, uint64_t seed = 9) const {
    Request request = Ask(document_ + TestPrompt(21, seed), draft, 24);
    request.draft_len = 8;
    return request;
  }
  Answer Cold(const Request& request) { return AnswerOf(Load(Options())->Generate(request)); }

  const std::vector<int32_t> document_ = TestPrompt(kPrefixTokens, 3);
};

TEST_F(PrefixArrivalTest, EveryPlanGivesTheColdAnswer) {
  for (const char* draft : {"int8", "verify:0.5+int4", "kvzip:0.4,chunk=64", "snapkv:0.3"}) {
    std::filesystem::remove_all(store_);
    Push(draft);
    for (const bool sampled : {false, true}) {
      Request request = Question(draft);
      if (sampled) {
        request.sampling.temperature = 0.9F;
        request.sampling.seed = 11;
        request.sampling.repetition_penalty = 1.2F;
        request.sampling.frequency_penalty = 0.3F;
      }
      const Answer want = Cold(request);
      for (const char* plan : kPlans) {
        const bool drafts = std::string_view(plan) == "draft-first";
        Latch drafted;
        // Scores come before all else where there are some, then the draft KV, then full blocks.
        const int64_t second_block = std::string_view(draft).starts_with("kvzip") ? 7 : 2;
        const auto engine = Far(plan, [&](int64_t number, Deadline) {
          if (drafts && number == second_block) drafted.Wait();
          return absl::OkStatus();
        });
        Callbacks callbacks;
        callbacks.on_round = [&](const RoundView&) { drafted.Open(); };
        const auto got = engine->Generate(request, nullptr, callbacks);
        EXPECT_EQ(AnswerOf(got), want) << draft << " " << plan << " sampled " << sampled;
        const PrefixArrivalStats& stats = got->stats.arrival;
        if (std::string_view(plan) == "auto") continue;
        EXPECT_EQ(stats.draft_tokens, drafts ? kPrefixTokens : 0) << draft << " " << plan;
        const bool recomputes = std::string_view(plan) == "recompute";
        EXPECT_EQ(got->usage.cached_tokens > 0, !recomputes) << draft << " " << plan;
        EXPECT_EQ(stats.plan, recomputes ? "" : plan);
      }
    }
  }
}

// Shown by the order of events: full blocks wait until tokens have been drafted.
TEST_F(PrefixArrivalTest, DraftsWhileFullBlocksArrive) {
  Push("int8");
  Request request = Question("int8");
  const Answer want = Cold(request);
  Latch drafted;
  std::atomic<int> late{0};
  // The draft KV is the first blob, full blocks follow.
  const auto engine = Far("draft-first", [&](int64_t number, Deadline) {
    if (number == 2 && !drafted.Wait()) ++late;
    return absl::OkStatus();
  });
  std::atomic<size_t> most{0};
  Callbacks callbacks;
  callbacks.on_round = [&](const RoundView& view) {
    if (view.verified) return;
    most = std::max<size_t>(most, view.drafted.size());
    if (view.drafted.size() >= 5) drafted.Open();
  };
  const auto got = engine->Generate(request, nullptr, callbacks);
  EXPECT_EQ(AnswerOf(got), want);
  EXPECT_EQ(late, 0);
  const PrefixArrivalStats& stats = got->stats.arrival;
  EXPECT_GE(stats.drafted, 5);
  EXPECT_GT(stats.accepted, 0) << "int8 drafts hold";
  EXPECT_EQ(stats.provisional_rows, 20);
  EXPECT_EQ(stats.full_tokens, kPrefixTokens);
  EXPECT_GT(stats.draft_bytes, 0u);
  EXPECT_GT(stats.full_bytes, 0u);
  ASSERT_FALSE(got->stats.records.empty());
  EXPECT_EQ(got->stats.records[0].mode, "arrival");
  EXPECT_EQ(got->stats.records[0].emitted, stats.accepted + 1);
}

// Each draft length, and each way an answer may end within the first draft.
TEST_F(PrefixArrivalTest, AnswersOfAnyLengthAndDraftsOfAnyLength) {
  Push("int8");
  for (const int draft_len : {1, 7, 8, 9, 40})
    for (const int64_t max_tokens : {1, 2, 8, 9, 30}) {
      Request request = Question("int8", 5);
      request.max_tokens = max_tokens;
      request.draft_len = draft_len;
      Latch drafted;
      const auto engine = Far("draft-first", [&](int64_t number, Deadline) {
        if (number == 3 && max_tokens > 1) drafted.Wait();
        return absl::OkStatus();
      });
      Callbacks callbacks;
      const size_t all = std::min<int64_t>(draft_len, max_tokens - 1);
      callbacks.on_round = [&](const RoundView& view) {
        // As many as the plan lets it draft, one at least.
        if (view.drafted.size() >= std::min<size_t>(all, 1)) drafted.Open();
      };
      const auto got = engine->Generate(request, nullptr, callbacks);
      EXPECT_EQ(AnswerOf(got), Cold(request)) << draft_len << " " << max_tokens;
      EXPECT_LE(got->stats.arrival.drafted, std::min<int64_t>(draft_len, max_tokens - 1));
    }
}

TEST_F(PrefixArrivalTest, WhatTheStoreDoesCostsRowsAndNoBits) {
  Push("int8");
  const Request request = Question("int8");
  const Answer want = Cold(request);
  for (const char* plan : {"load", "draft-first"}) {
    for (const int64_t good : {0, 1, 2, 4}) {
      const auto dies = [&](int64_t number, Deadline) {
        return number < good ? absl::OkStatus() : absl::UnavailableError("gone");
      };
      const auto got = Far(plan, dies)->Generate(request);
      EXPECT_EQ(AnswerOf(got), want) << plan << " dies after " << good;
      EXPECT_LT(got->usage.cached_tokens, kPrefixTokens);
      const auto damaged = [&](int64_t number, Deadline) {
        return number == good ? absl::NotFoundError("damaged") : absl::OkStatus();
      };
      EXPECT_EQ(AnswerOf(Far(plan, damaged)->Generate(request)), want) << plan << good;
    }
    // It hangs until the deadline, which is how long computing would take, at least 0.25 s.
    const auto stalls = [&](int64_t number, Deadline deadline) -> absl::Status {
      if (number < 3) return absl::OkStatus();
      std::this_thread::sleep_until(deadline);
      return absl::DeadlineExceededError("late");
    };
    const auto got = Far(plan, stalls)->Generate(request);
    EXPECT_EQ(AnswerOf(got), want) << plan << " stalls";
    EXPECT_GT(got->usage.cached_tokens, 0) << "what came is used";
  }
}

TEST_F(PrefixArrivalTest, AStalledLoadCanBeStopped) {
  Push("int8");
  Latch stopped;
  const auto engine = Far("load", [&](int64_t number, Deadline) {
    if (number > 0) stopped.Wait();
    return absl::OkStatus();
  });
  Callbacks callbacks;
  callbacks.on_prefill = [&](int64_t, int64_t) {
    stopped.Open();
    return false;
  };
  EXPECT_TRUE(absl::IsCancelled(engine->Generate(Question("int8"), nullptr, callbacks).status()));
}

// The plan follows the link: no bytes where computing is faster, no draft where it would delay.
TEST_F(PrefixArrivalTest, AutoFollowsTheLink) {
  Push("int8");
  const Request request = Question("int8");
  const Answer want = Cold(request);
  const auto slow = Far("auto", {}, {true, 10, 0.001})->Generate(request);
  EXPECT_EQ(AnswerOf(slow), want);
  EXPECT_EQ(slow->stats.arrival.plan, "recompute") << slow->stats.arrival.reason;
  EXPECT_EQ(slow->usage.cached_tokens, 0);
  const auto fast = Far("auto", {}, {true, 1e10, 1e-6})->Generate(request);
  EXPECT_EQ(AnswerOf(fast), want);
  EXPECT_EQ(fast->stats.arrival.plan, "load") << fast->stats.arrival.reason;
  EXPECT_EQ(fast->usage.cached_tokens, kPrefixTokens);
}

TEST_F(PrefixArrivalTest, UnderABudgetToo) {
  Push("int8");
  const Request request = Question("int8");
  const Answer want = Cold(request);
  for (const char* plan : kPlans) {
    const auto engine = Far(plan);
    EngineAccess::Impl& impl = *EngineAccess::Of(engine.get());
    impl.options.kv_memory = 3 << 20;
    impl.options.kv_dir = folder_;
    ASSERT_TRUE(impl.OpenTier().ok());
    EXPECT_EQ(AnswerOf(engine->Generate(request)), want) << plan;
  }
}

}  // namespace
}  // namespace vericache
