// Requests whose drafts come from outside: parked until they are asked.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "scheduler/scheduler.h"
#include "scheduler/scheduler_test_driver.h"

namespace vericache {
namespace {

RequestInfo Remote(RequestId id, int64_t prompt, int64_t max_tokens) {
  RequestInfo info;
  info.id = id;
  info.prompt_tokens = prompt;
  info.max_tokens = max_tokens;
  info.full_bytes_per_token = kFull;
  info.tail_bytes_per_token = kFull;
  info.min_staging_bytes = 1000;
  info.modes = ModeBit(DraftMode::kPlain);
  info.remote = true;
  return info;
}

// Every row takes a millisecond; what is drafted holds.
class RemoteDriver {
 public:
  explicit RemoteDriver(const Limits& limits, StaggerPolicy policy = StaggerPolicy::kStaggered)
      : scheduler(limits, {policy, {}, 3}) {}

  StepPlan Step() {
    StepPlan plan = scheduler.Schedule(now_s);
    for (const Preemption& p : plan.preempt)
      if (p.drop_full_kv) rows[p.id] = 0;
    if (plan.idle()) return plan;
    StepReport report;
    report.step_idx = plan.step_idx;
    for (const Work& work : plan.work) {
      WorkResult result;
      result.id = work.id;
      result.kind = work.kind;
      result.rows = work.rows;
      rows[work.id] += work.rows;
      if (work.kind == WorkKind::kVerify) {
        result.num_drafted = result.num_accepted = work.draft_len;
        result.num_emitted = work.draft_len + 1;
      } else if (emitted[work.id] == 0 && rows[work.id] == prompt[work.id]) {
        result.num_emitted = 1;
      }
      emitted[work.id] += result.num_emitted;
      if (emitted[work.id] == max_tokens[work.id]) result.outcome = WorkOutcome::kFinished;
      report.pass_s += 0.001 * work.rows;
      report.results.push_back(result);
    }
    now_s += report.pass_s;
    report.end_s = now_s;
    EXPECT_TRUE(scheduler.Report(report).ok());
    return plan;
  }
  void Add(const RequestInfo& info) {
    prompt[info.id] = info.prompt_tokens;
    emitted[info.id] = info.emitted_tokens;
    max_tokens[info.id] = info.max_tokens;
    ASSERT_TRUE(scheduler.Add(info, now_s).ok());
  }
  // All that can be done without a question; false: there is no end to it.
  bool Settle(int max_steps = 1000) {
    for (int i = 0; i < max_steps; ++i)
      if (Step().idle()) return true;
    return false;
  }

  Scheduler scheduler;
  std::map<RequestId, int64_t> rows, emitted, prompt, max_tokens;
  double now_s = 0;
};

TEST(RemoteRequest, IsParkedBehindItsPromptAndBehindEachAnswer) {
  RemoteDriver d(RamLimits(1000));
  d.Add(Remote(1, 100, 20));
  EXPECT_TRUE(absl::IsFailedPrecondition(d.scheduler.Ask(1, 3, 0)));  // its prompt is not done
  ASSERT_TRUE(d.Settle());
  EXPECT_EQ(d.rows[1], 100);
  EXPECT_EQ(d.emitted[1], 1);
  EXPECT_EQ(d.scheduler.usage().num_idle, 1);
  EXPECT_TRUE(absl::IsNotFound(d.scheduler.Ask(2, 3, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(d.scheduler.Ask(1, -1, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(d.scheduler.Ask(1, 19, 0)));  // 19 are left, one is bonus
  ASSERT_TRUE(d.scheduler.Ask(1, 5, 0).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(d.scheduler.Ask(1, 5, 0)));
  const StepPlan plan = d.Step();
  ASSERT_EQ(plan.work.size(), 1u);
  EXPECT_EQ(plan.work[0].kind, WorkKind::kVerify);
  EXPECT_EQ(plan.work[0].mode, DraftMode::kPlain);
  EXPECT_EQ(plan.work[0].draft_len, 5);
  EXPECT_EQ(plan.work[0].rows, 6);
  EXPECT_TRUE(d.Step().idle());
  EXPECT_EQ(d.emitted[1], 7);
  ASSERT_TRUE(d.scheduler.Ask(1, 0, d.now_s).ok());  // plain
  EXPECT_EQ(d.Step().work[0].rows, 1);
  ASSERT_TRUE(d.scheduler.Cancel(1).ok());
  EXPECT_EQ(d.Step().release, std::vector<RequestId>{1});
}

TEST(RemoteRequest, BeginsWithTokensThatWereEmittedElsewhere) {
  RemoteDriver d(RamLimits(1000));
  RequestInfo info = Remote(1, 100, 20);
  info.emitted_tokens = 20;
  EXPECT_TRUE(absl::IsInvalidArgument(d.scheduler.Add(info, 0)));  // nothing is left
  info.emitted_tokens = 7;
  d.Add(info);
  ASSERT_TRUE(d.Settle());
  EXPECT_EQ(d.rows[1], 106);  // the last token's row is the first of the verification
  EXPECT_EQ(d.emitted[1], 7);
  EXPECT_TRUE(absl::IsInvalidArgument(d.scheduler.Ask(1, 13, 0)));
  EXPECT_TRUE(d.scheduler.Ask(1, 12, 0).ok());
}

TEST(RemoteRequest, WhoIsIdleForLongestGivesWay) {
  RemoteDriver d(RamLimits(320));  // two of 128 and a bit
  for (const RequestId id : {1, 2}) {
    d.Add(Remote(id, 100, 20));
    ASSERT_TRUE(d.Settle());
  }
  ASSERT_TRUE(d.scheduler.Ask(1, 3, d.now_s).ok());  // 2 is idle for longest from here on
  ASSERT_TRUE(d.Settle());
  d.Add(Remote(3, 100, 20));
  const StepPlan plan = d.Step();
  ASSERT_EQ(plan.preempt.size(), 1u);
  EXPECT_EQ(plan.preempt[0].id, 2);
  ASSERT_EQ(plan.admit.size(), 1u);
  EXPECT_EQ(plan.admit[0].id, 3);
  ASSERT_TRUE(d.Settle());
  // Its next question brings it back; it computes again what it had to drop.
  ASSERT_TRUE(d.scheduler.Ask(2, 4, d.now_s).ok());
  const StepPlan back = d.Step();
  EXPECT_TRUE(back.admit[0].resumed);
  EXPECT_EQ(back.work[0].kind, WorkKind::kPrefill);
  ASSERT_TRUE(d.Settle());
  EXPECT_EQ(d.emitted[2], 6);
  EXPECT_EQ(d.scheduler.usage().num_idle, 3);
}

TEST(RemoteRequest, MoreSessionsThanMayRunTakeTurns) {
  Limits limits = RamLimits(100000);
  limits.max_running = 2;
  RemoteDriver d(limits);
  for (RequestId id = 0; id < 6; ++id) d.Add(Remote(id, 50, 30));
  ASSERT_TRUE(d.Settle());
  for (int round = 0; round < 5; ++round) {
    for (RequestId id = 0; id < 6; ++id) ASSERT_TRUE(d.scheduler.Ask(id, 3, d.now_s).ok());
    ASSERT_TRUE(d.Settle());
  }
  for (RequestId id = 0; id < 6; ++id) EXPECT_EQ(d.emitted[id], 21);
}

TEST(RemoteRequest, OnlyStaggeredOnesAreReadAhead) {
  for (const StaggerPolicy policy : {StaggerPolicy::kStaggered, StaggerPolicy::kLockStep}) {
    Limits limits = RamLimits(0);
    limits.kv_bytes = 400000;
    limits.staging_bytes = 300000;
    limits.spill_bytes = int64_t{1} << 40;
    limits.link_bytes_per_s = 1e6;
    RemoteDriver d(limits, policy);
    for (RequestId id = 0; id < 4; ++id) d.Add(Remote(id, 1000, 200));
    ASSERT_TRUE(d.Settle());
    size_t fetches = 0, together = 0;
    for (int round = 0; round < 10; ++round) {
      for (RequestId id = 0; id < 4; ++id) ASSERT_TRUE(d.scheduler.Ask(id, 7, d.now_s).ok());
      for (StepPlan plan = d.Step(); !plan.idle(); plan = d.Step()) {
        fetches += plan.fetch.size();
        together = std::max(together, plan.work.size());
      }
    }
    for (RequestId id = 0; id < 4; ++id) EXPECT_EQ(d.emitted[id], 81);
    if (policy == StaggerPolicy::kLockStep) {
      EXPECT_EQ(fetches, 0u);
      EXPECT_EQ(together, 4u);
    } else {
      EXPECT_GT(fetches, 0u);
    }
  }
}

TEST(RemoteRequest, AQuestionIsCutToWhatFits) {
  Limits limits = RamLimits(0);
  limits.kv_bytes = 4000 + 65 * kFull;  // one block that is being written
  limits.staging_bytes = 4000;
  limits.spill_bytes = int64_t{1} << 40;
  RemoteDriver d(limits);
  d.Add(Remote(1, 100, 60));
  ASSERT_TRUE(d.Settle());
  ASSERT_TRUE(d.scheduler.Ask(1, 50, 0).ok());
  EXPECT_EQ(d.Step().work[0].draft_len, 27);  // positions 100 to 127
  EXPECT_TRUE(d.Step().idle());
  ASSERT_TRUE(d.scheduler.Ask(1, 22, d.now_s).ok());
  EXPECT_EQ(d.Step().work[0].draft_len, 22);
  Limits narrow = RamLimits(1000);
  narrow.max_pass_rows = 8;
  RemoteDriver e(narrow);
  EXPECT_EQ(e.scheduler.MaxQuestion(), 7);
  e.Add(Remote(1, 20, 100));
  ASSERT_TRUE(e.Settle());
  EXPECT_TRUE(absl::IsInvalidArgument(e.scheduler.Ask(1, 8, 0)));
  ASSERT_TRUE(e.scheduler.Ask(1, 7, 0).ok());
  EXPECT_EQ(e.Step().work[0].rows, 8);
}

}  // namespace
}  // namespace vericache
