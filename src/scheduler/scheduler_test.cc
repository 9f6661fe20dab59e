#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "scheduler/scheduler_test_driver.h"

namespace vericache {
namespace {

// What one scheduler has learned, the next one knows.
TEST(Scheduler, ExperienceOutlivesIt) {
  const auto experience = std::make_shared<Experience>(PassGuess::Of(0.5), 1e6);
  PassShape shape;
  shape.num_rows = shape.logit_rows = 1;
  const double guessed = experience->costs.PassSeconds(shape);
  {
    RequestInfo info = Request(1, 10, 40, kPlainOnly | ModeBit(DraftMode::kDraftKv));
    info.fixed_draft_len = 3;
    Driver driver(RamLimits(10000), {}, experience);
    driver.Add(info);
    driver.RunToEnd();
    EXPECT_EQ(driver.emitted[1], 40);
  }
  // Rows of this machine take a millisecond; the guess was half a second.
  EXPECT_LT(experience->costs.PassSeconds(shape), guessed / 50);
  EXPECT_TRUE(experience->acceptance.Tried(DraftMode::kDraftKv));
  const Scheduler next(RamLimits(10000), {}, experience);
  EXPECT_EQ(&next.cost_model(), &experience->costs);
  // Without one, each begins anew.
  EXPECT_EQ(Scheduler(RamLimits(10000), {}).cost_model().PassSeconds(shape),
            CostModel(RamLimits(0).pass, 1).PassSeconds(shape));
}

// A machine that takes 50 ms to choose a draft KV anew: the cost of a plain step is told from it.
TEST(Scheduler, ChoosingADraftKvAnewIsLearnedApart) {
  for (const bool reselects : {false, true}) {
    const auto experience = std::make_shared<Experience>(PassGuess::Of(0.01), 1e6);
    Driver driver(RamLimits(100000), {}, experience);
    driver.choose_s = 0.05;
    RequestInfo info = Request(1, 1000, 400, kPlainOnly | ModeBit(DraftMode::kDraftKv));
    info.fixed_draft_len = 3;
    info.reselects = reselects;
    driver.Add(info);
    driver.RunToEnd();
    driver.Add(Request(2, 1000, 400));
    driver.RunToEnd();
    PassShape plain, chosen;
    plain.AddFull(1, 1200, 1);
    chosen.chosen_tokens = 1200;
    const double chosen_s = experience->costs.ExtraSeconds(plain, chosen);
    EXPECT_EQ(chosen_s > 0.03, reselects) << chosen_s;
    if (reselects) EXPECT_NEAR(experience->costs.PassSeconds(plain), 0.001, 0.002);
  }
}

// Where a plain round of all takes longer over the link than the cap, drafts still pay: decoding
// plainly would be late as well.
TEST(Scheduler, ABurstCapDoesNotForbidDraftsWhereTheLinkIsSlow) {
  Driver driver(SpillLimits(60000, 8000));
  for (RequestId id = 1; id <= 3; ++id) {
    RequestInfo info = Request(id, 640, 60, kPlainOnly | ModeBit(DraftMode::kDraftKv));
    info.max_burst_s = 0.05;  // a read of one's K/V alone takes 0.064 s
    driver.Add(info);
  }
  int64_t drafted = 0, verified = 0;
  for (int step = 0; step < 3000; ++step) {
    const StepPlan plan = driver.Step();
    if (plan.idle()) break;
    for (const Work& work : plan.work) {
      if (work.kind != WorkKind::kVerify) continue;
      ++verified;
      drafted += work.draft_len;
    }
  }
  EXPECT_EQ(driver.num_ended.size(), 3u);
  EXPECT_GT(drafted, 2 * verified) << verified;
}

TEST(Scheduler, TellsWhetherADraftKvWouldFit) {
  const Scheduler scheduler(SpillLimits(20000, 2000), {});
  RequestInfo info = Request(1, 100, 20, kPlainOnly | ModeBit(DraftMode::kDraftKv));
  EXPECT_TRUE(scheduler.DraftKvFits(info));
  info.draft_bytes_per_token = 200;
  EXPECT_FALSE(scheduler.DraftKvFits(info));
  info.draft_bytes_per_token = 10;
  info.modes = kPlainOnly;
  EXPECT_FALSE(scheduler.DraftKvFits(info));
}

// What it says of several is what they find when all of them are there.
TEST(Scheduler, TellsHowManyDraftKvsFitTogether) {
  int fewest = 100, most = 0;
  for (int64_t kv_bytes = 20000; kv_bytes <= 160000; kv_bytes += 3500) {
    const Limits limits = SpillLimits(kv_bytes, 2000);
    const RequestInfo info = Request(1, 100, 20, kPlainOnly | ModeBit(DraftMode::kDraftKv));
    Driver driver(limits);
    int together = 1;
    while (together < 8 && driver.scheduler.DraftKvFits(info, together + 1)) ++together;
    int running = 0;
    for (RequestId id = 1; id <= 8; ++id) {
      RequestInfo one = info;
      one.id = id;
      driver.Add(one);
    }
    for (int step = 0; step < 40; ++step) {
      driver.Step();
      running = std::max(running, driver.scheduler.usage().num_running);
    }
    EXPECT_GE(running, together) << kv_bytes;
    fewest = std::min(fewest, together);
    most = std::max(most, together);
  }
  EXPECT_LT(fewest, 3);
  EXPECT_EQ(most, 8);
}

TEST(Scheduler, Case53TheImpossibleRequestIsRefusedAloneWithNumbers) {
  Driver driver(RamLimits(512));
  const absl::Status refused = driver.scheduler.Add(Request(0, 500, 100), 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(refused.message());
  for (const char* part : {"600 tokens", "500", "100", "64000", "51200", "--kv-memory"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  for (RequestId id = 1; id <= 3; ++id) driver.Add(Request(id, 60, 40));
  driver.RunToEnd();
  for (RequestId id = 1; id <= 3; ++id) {
    EXPECT_EQ(driver.emitted[id], 40);
    EXPECT_EQ(driver.num_ended[id], 1);
  }
}

TEST(Scheduler, Case53FourOf128TokensOn128WaitInTurn) {
  Driver driver(RamLimits(128));
  for (RequestId id = 0; id < 4; ++id) driver.Add(Request(id, 64, 64));
  std::vector<RequestId> admitted;
  for (int i = 0; i < 2000; ++i) {
    const StepPlan plan = driver.Step();
    for (const Admission& a : plan.admit) admitted.push_back(a.id);
    EXPECT_LE(driver.scheduler.usage().num_running, 1);
    EXPECT_TRUE(plan.preempt.empty());
    if (plan.idle()) break;
  }
  EXPECT_EQ(admitted, (std::vector<RequestId>{0, 1, 2, 3}));
  for (RequestId id = 0; id < 4; ++id) EXPECT_EQ(driver.emitted[id], 64);
}

TEST(Scheduler, Case52PreemptionChangesNothingButTime) {
  // Room for one and a half of four requests of 300 tokens.
  Driver driver(RamLimits(480));
  for (RequestId id = 0; id < 4; ++id) driver.Add(Request(id, 20, 280));
  int num_preempted = 0, num_resumed = 0;
  for (int i = 0; i < 20000; ++i) {
    const StepPlan plan = driver.Step();
    for (const Preemption& p : plan.preempt) {
      ++num_preempted;
      EXPECT_TRUE(p.drop_full_kv);
      EXPECT_NE(p.id, 0);  // the first in order is never the victim
      // Emission stands; when it comes back, rows for the prompt and for all but the last of the
      // emitted tokens are computed again, and no first token is emitted a second time: the
      // driver's books would not add up.
    }
    for (const Admission& a : plan.admit) num_resumed += a.resumed;
    if (plan.idle()) break;
  }
  EXPECT_GT(num_preempted, 0);
  EXPECT_EQ(num_resumed, num_preempted);
  for (RequestId id = 0; id < 4; ++id) {
    EXPECT_EQ(driver.emitted[id], 280) << id;
    EXPECT_EQ(driver.num_ended[id], 1) << id;
  }
}

TEST(Scheduler, Case55CancellingAllAtAnyMomentEmptiesIt) {
  for (int moment = 0; moment < 30; ++moment) {
    Driver driver(SpillLimits(60000, 20000));
    for (RequestId id = 0; id < 5; ++id) {
      driver.Add(Request(id, 400, 50, kPlainOnly | ModeBit(DraftMode::kDraftKv)));
    }
    for (int i = 0; i < moment; ++i) driver.Step();
    const StepPlan running = driver.Plan();
    const StepReport report = driver.Execute(running);
    int num_cancelled = 0;
    for (RequestId id = 0; id < 5; ++id) num_cancelled += driver.scheduler.Cancel(id).ok();
    EXPECT_GT(num_cancelled, 0);
    ASSERT_TRUE(driver.scheduler.Report(report).ok());  // results of nobody
    const StepPlan plan = driver.Plan();
    EXPECT_TRUE(plan.idle());
    EXPECT_EQ(static_cast<int>(plan.release.size()), num_cancelled);
    const SchedulerUsage usage = driver.scheduler.usage();
    EXPECT_EQ(usage.charged_bytes, 20000);
    EXPECT_EQ(usage.staging_bytes, 0);
    EXPECT_EQ(usage.num_running + usage.num_waiting, 0);
    EXPECT_TRUE(absl::IsNotFound(driver.scheduler.Cancel(0)));
  }
}

TEST(Scheduler, ACancelledIdMayBeUsedAgainWhileItsPassRuns) {
  Driver driver(RamLimits(1000));
  driver.Add(Request(7, 10, 5));
  const StepPlan plan = driver.Plan();
  const StepReport report = driver.Execute(plan);
  ASSERT_TRUE(driver.scheduler.Cancel(7).ok());
  driver.emitted.clear();
  driver.Add(Request(7, 10, 5));
  ASSERT_TRUE(driver.scheduler.Report(report).ok());
  driver.RunToEnd();
  EXPECT_EQ(driver.emitted[7], 5);
}

TEST(Scheduler, PriorityGoesFirstAndWaitingOutweighsIt) {
  Limits limits = RamLimits(1000);
  limits.max_running = 1;
  limits.aging_s = 10;
  Driver driver(limits);
  driver.Add(Request(0, 10, 5));
  driver.Step();
  RequestInfo urgent = Request(2, 10, 5);
  urgent.priority = 1;
  driver.Add(Request(1, 10, 5));
  driver.Add(urgent);
  std::vector<RequestId> order;
  for (int i = 0; i < 50; ++i) {
    for (const Admission& a : driver.Step().admit) order.push_back(a.id);
  }
  EXPECT_EQ(order, (std::vector<RequestId>{2, 1}));
  // One that has waited longer than a level is worth goes before an urgent newcomer.
  Driver later(limits);
  later.Add(Request(0, 10, 500));
  later.Step();
  later.Add(Request(1, 10, 5));
  later.now_s += 11;
  later.Step();
  later.Add(urgent);
  order.clear();
  for (int i = 0; i < 600; ++i) {
    for (const Admission& a : later.Step().admit) order.push_back(a.id);
  }
  EXPECT_EQ(order, (std::vector<RequestId>{1, 2}));
}

TEST(Scheduler, PrefillLeavesRoomForThoseWhoDecode) {
  Limits limits = RamLimits(100000);
  limits.prefill_chunk_s = 0.02;
  Driver driver(limits);
  driver.Add(Request(0, 10, 400));
  for (int i = 0; i < 40; ++i) driver.Step();
  driver.Add(Request(1, 5000, 4));
  int num_chunks = 0;
  double longest_s = 0;
  while (driver.emitted[1] == 0) {
    const double start_s = driver.now_s;
    const StepPlan plan = driver.Step();
    EXPECT_NE(FindWork(plan, 0), nullptr);
    const Work* chunk = FindWork(plan, 1);
    ASSERT_NE(chunk, nullptr);
    if (++num_chunks > 20) longest_s = std::max(longest_s, driver.now_s - start_s);
    ASSERT_LT(num_chunks, 2000);
  }
  EXPECT_LT(longest_s, 0.03);  // a row takes 1 ms
  EXPECT_GT(longest_s, 0.01);
}

TEST(Scheduler, PrefillAloneTakesWholePasses) {
  Limits limits = RamLimits(100000);
  limits.max_pass_rows = 128;
  Driver driver(limits);
  driver.Add(Request(0, 1000, 4));
  EXPECT_EQ(driver.Step().work[0].rows, 128);
}

TEST(Scheduler, CachedRowsAreNotComputedAgain) {
  Driver driver(RamLimits(10000));
  RequestInfo info = Request(0, 1000, 4);
  info.cached_tokens = 999;
  driver.Add(info);
  EXPECT_EQ(driver.Step().work[0].rows, 1);
  EXPECT_EQ(driver.emitted[0], 1);
}

TEST(Scheduler, HotBlocksAreShrunkBeforeAnyoneIsPreempted) {
  // Two requests of about 500 tokens; the budget holds draft KV and some hot blocks.
  Driver driver(SpillLimits(70000, 10000));
  const uint32_t modes = kPlainOnly | ModeBit(DraftMode::kDraftKv);
  driver.Add(Request(0, 400, 100, modes));
  int64_t alone = 0;
  for (int i = 0; i < 10; ++i) {
    for (const HotGrant& grant : driver.Step().hot) alone = grant.bytes;
  }
  driver.Add(Request(1, 400, 100, modes));
  std::map<RequestId, int64_t> granted;
  for (int i = 0; i < 500; ++i) {
    const StepPlan plan = driver.Step();
    EXPECT_TRUE(plan.preempt.empty());
    for (const HotGrant& grant : plan.hot) granted[grant.id] = grant.bytes;
    const SchedulerUsage usage = driver.scheduler.usage();
    EXPECT_LE(usage.charged_bytes, 70000);
    if (plan.idle()) break;
  }
  EXPECT_GT(alone, 0);
  EXPECT_EQ(driver.emitted[0], 100);
  EXPECT_EQ(driver.emitted[1], 100);
}

// The sizes of qwen2.5-0.5b with `verify:0.25+int4` on prompts of 16K tokens: a budget of one full
// KV holds eight requests. A prompt's open blocks are charged while it is computed, not for good.
TEST(Scheduler, ABudgetOfOneFullKvHoldsEightRequests) {
  constexpr int64_t kPrompt = 16384, kAnswer = 256, kToken = 12288, kBlock = kBlockTokens * kToken;
  constexpr int64_t kLayerOfStaging = 17 * (512 << 10), kRebuild = kLayerOfStaging;
  Limits limits = SpillLimits((kPrompt + kAnswer) * kToken - kRebuild, 3 * kLayerOfStaging);
  limits.prefill_bytes = 8 * kBlock;  // passes of 512 rows
  limits.link_bytes_per_s = 1e9;
  Driver driver(limits);
  for (RequestId id = 0; id < 10; ++id) {
    RequestInfo info = Request(id, kPrompt, kAnswer, kPlainOnly | ModeBit(DraftMode::kDraftKv));
    info.full_bytes_per_token = info.tail_bytes_per_token = kToken;
    info.draft_bytes_per_token = 1020;
    info.fixed_bytes = 1200 << 10;
    info.min_staging_bytes = kLayerOfStaging;
    info.cached_tokens = kPrompt - 1024;
    info.fixed_draft_len = 16;
    driver.Add(info);
  }
  int most_running = 0, num_preempted = 0;
  for (int i = 0; i < 100000; ++i) {
    const StepPlan plan = driver.Step();
    int64_t open = 0;  // blocks that the step's prompts begin
    for (const Work& work : plan.work) {
      if (work.kind != WorkKind::kPrefill) continue;
      const int64_t begin = driver.rows[work.id] - work.rows;
      open += (driver.rows[work.id] - 1) / kBlockTokens - begin / kBlockTokens;
    }
    EXPECT_LE(open * kBlock, limits.prefill_bytes);
    EXPECT_LE(driver.scheduler.usage().charged_bytes, limits.kv_bytes);
    most_running = std::max(most_running, driver.scheduler.usage().num_running);
    num_preempted += static_cast<int>(plan.preempt.size());
    if (plan.idle()) break;
  }
  EXPECT_GE(most_running, 8);
  for (RequestId id = 0; id < 10; ++id) EXPECT_EQ(driver.emitted[id], kAnswer) << id;
  std::printf("%d at once, %d preempted\n", most_running, num_preempted);
}

TEST(Scheduler, WhereTheDraftKvCannotFitTheRequestDecodesPlainly) {
  RequestInfo info = Request(0, 400, 100, kPlainOnly | ModeBit(DraftMode::kDraftKv));
  info.draft_bytes_per_token = 90;
  Driver driver(SpillLimits(20000, 10000));
  driver.Add(info);
  const StepPlan first = driver.Step();
  ASSERT_EQ(first.admit.size(), 1u);
  EXPECT_FALSE(first.admit[0].with_draft_kv);
  driver.RunToEnd();
  EXPECT_EQ(driver.emitted[0], 100);
}

TEST(Scheduler, AllInRamReservesNoLink) {
  Driver driver(SpillLimits(10000000, 10000));
  for (RequestId id = 0; id < 3; ++id) {
    driver.Add(Request(id, 400, 100, kPlainOnly | ModeBit(DraftMode::kDraftKv)));
  }
  for (int i = 0; i < 2000; ++i) {
    const StepPlan plan = driver.Step();
    EXPECT_TRUE(plan.fetch.empty());
    for (const Work& work : plan.work) EXPECT_EQ(work.staging_bytes, 0);
    if (plan.idle()) break;
  }
  EXPECT_EQ(driver.emitted[2], 100);
}

TEST(Scheduler, LockStepVerifiesTogetherAndStaggeredDoesNot) {
  for (const StaggerPolicy policy : {StaggerPolicy::kLockStep, StaggerPolicy::kStaggered}) {
    SchedulerOptions options;
    options.stagger = policy;
    Driver driver(SpillLimits(150000, 40000), options);
    for (RequestId id = 0; id < 4; ++id) {
      RequestInfo info = Request(id, 1000, 200, kPlainOnly | ModeBit(DraftMode::kDraftKv));
      info.cached_tokens = 999;
      info.fixed_draft_len = 8;
      driver.Add(info);
    }
    int num_together = 0, num_fetches = 0;
    for (int i = 0; i < 3000; ++i) {
      const StepPlan plan = driver.Step();
      num_fetches += static_cast<int>(plan.fetch.size());
      int num_verify = 0, num_draft = 0;
      for (const Work& work : plan.work) {
        num_verify += work.kind == WorkKind::kVerify && work.streamed_bytes > 0;
        num_draft += work.kind == WorkKind::kDraft;
      }
      num_together += num_verify == 4;
      if (policy == StaggerPolicy::kLockStep && num_verify > 0) {
        EXPECT_EQ(num_draft, 0);
      }
      if (plan.idle()) break;
    }
    EXPECT_EQ(driver.emitted[3], 200);
    if (policy == StaggerPolicy::kLockStep) {
      EXPECT_GT(num_together, 10);
      EXPECT_EQ(num_fetches, 0);
    } else {
      EXPECT_LT(num_together, 3);
      EXPECT_GT(num_fetches, 10);
    }
  }
}

TEST(Scheduler, TheBurstCapIsKept) {
  Driver driver(RamLimits(100000));
  RequestInfo info = Request(0, 10, 600, kPlainOnly | ModeBit(DraftMode::kDraftKv));
  info.fixed_draft_len = 200;
  info.max_burst_s = 0.02;  // nine draft steps and their verification: a row takes 1 ms
  driver.Add(info);
  double last_s = 0;
  int64_t last_emitted = 0;
  int longest = 0;
  for (int i = 0; i < 5000; ++i) {
    const StepPlan plan = driver.Step();
    if (plan.idle()) break;
    if (driver.emitted[0] == last_emitted) continue;
    if (last_emitted > 100) {
      longest = std::max<int>(longest, static_cast<int>(driver.emitted[0] - last_emitted));
      EXPECT_LE(driver.now_s - last_s, 0.021);
    }
    last_s = driver.now_s;
    last_emitted = driver.emitted[0];
  }
  EXPECT_EQ(driver.emitted[0], 600);
  EXPECT_GE(longest, 7);
  EXPECT_LE(longest, 10);
}

TEST(Scheduler, ATierThatNeverDeliversFailsTheRequestAndNotTheOthers) {
  Driver driver(SpillLimits(30000, 10000));
  driver.Add(Request(0, 1000, 50));
  RequestInfo small = Request(1, 10, 50);
  driver.Add(small);
  driver.retries = true;
  std::vector<Failure> failures;
  for (int i = 0; i < 1000; ++i) {
    const StepPlan plan = driver.Step();
    for (const Failure& failure : plan.fail) {
      failures.push_back(failure);
      EXPECT_EQ(std::count(plan.release.begin(), plan.release.end(), failure.id), 1);
    }
    if (plan.idle()) break;
  }
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].id, 0);
  EXPECT_NE(failures[0].message.find("--kv-dir"), std::string::npos);
  EXPECT_EQ(driver.emitted[1], 50);
}

TEST(Scheduler, RefusesNonsense) {
  Scheduler scheduler(RamLimits(1000), {});
  const auto code = [&](void (*change)(RequestInfo*)) {
    RequestInfo info = Request(5, 10, 10);
    change(&info);
    return scheduler.Add(info, 0).code();
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](RequestInfo* i) { i->prompt_tokens = 0; }), kInvalid);
  EXPECT_EQ(code([](RequestInfo* i) { i->max_tokens = 0; }), kInvalid);
  EXPECT_EQ(code([](RequestInfo* i) { i->cached_tokens = 10; }), kInvalid);
  EXPECT_EQ(code([](RequestInfo* i) { i->prompt_tokens = int64_t{1} << 62; }), kInvalid);
  EXPECT_EQ(code([](RequestInfo* i) { i->full_bytes_per_token = -1; }), kInvalid);
  EXPECT_EQ(code([](RequestInfo* i) { i->fixed_draft_len = kMaxDraftLen + 1; }), kInvalid);
  EXPECT_EQ(code([](RequestInfo* i) { i->max_burst_s = -1; }), kInvalid);
  EXPECT_EQ(code([](RequestInfo* i) { i->modes = 1u << kNumDraftModes; }), kInvalid);
  ASSERT_TRUE(scheduler.Add(Request(5, 10, 10), 0).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(scheduler.Add(Request(5, 10, 10), 0)));
}

TEST(Scheduler, ABadReportChangesNothing) {
  Driver driver(RamLimits(1000));
  driver.Add(Request(0, 10, 10));
  driver.Step();
  const StepPlan plan = driver.Plan();
  const StepReport good = driver.Execute(plan);
  const auto refused = [&](void (*change)(StepReport*)) {
    StepReport bad = good;
    change(&bad);
    return absl::IsInvalidArgument(driver.scheduler.Report(bad));
  };
  EXPECT_TRUE(refused([](StepReport* r) { r->step_idx += 1; }));
  EXPECT_TRUE(refused([](StepReport* r) { r->results.clear(); }));
  EXPECT_TRUE(refused([](StepReport* r) { r->results[0].id = 9; }));
  EXPECT_TRUE(refused([](StepReport* r) { r->results[0].kind = WorkKind::kPrefill; }));
  EXPECT_TRUE(refused([](StepReport* r) { r->results[0].num_accepted = 1; }));
  EXPECT_TRUE(refused([](StepReport* r) { r->results[0].num_emitted = 2; }));
  EXPECT_TRUE(refused([](StepReport* r) { r->results[0].num_emitted = 0; }));
  EXPECT_TRUE(refused([](StepReport* r) { r->results[0].rows = 2; }));
  EXPECT_TRUE(refused([](StepReport* r) { r->pass_s = -1; }));
  EXPECT_TRUE(refused([](StepReport* r) { r->stall_s = r->pass_s + 1; }));
  EXPECT_TRUE(driver.scheduler.Report(good).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(driver.scheduler.Report(good)));  // once is enough
}

}  // namespace
}  // namespace vericache
