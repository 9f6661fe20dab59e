// The scheduler on a simulated clock, thousands of times, all from the seed that a failure prints;
// and the judge itself: plans that break a promise have to be caught.

#include "sim/simulation.h"

#include <gtest/gtest.h>

#include <string>

namespace vericache {
namespace {

// Sanitizers take ten times as long, and need fewer seeds to see the same lines.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kNumSeeds = 1200;
#else
constexpr uint64_t kNumSeeds = 12000;
#endif

SimStats RunSeeds(uint64_t from, uint64_t to) {
  SimStats sum;
  for (uint64_t seed = from; seed < to; ++seed) {
    const absl::StatusOr<SimStats> stats = RunScenario(MakeScenario(seed), {});
    EXPECT_TRUE(stats.ok()) << stats.status().message() << "\n  replay: scheduler_sim --seed "
                            << seed << " --verbose";
    if (!stats.ok()) break;
    sum.num_steps += stats->num_steps;
    sum.num_rounds += stats->num_rounds;
    sum.num_preempted += stats->num_preempted;
    sum.num_retried += stats->num_retried;
    sum.num_questions += stats->num_questions;
    sum.num_idle_preempted += stats->num_idle_preempted;
    for (int i = 0; i < 5; ++i) sum.num_ended[i] += stats->num_ended[i];
  }
  return sum;
}

// One seed after the other also covers what a scenario must contain to be worth its time.
TEST(Simulation, KeepsItsPromisesForThousandsOfSeeds) {
  const SimStats sum = RunSeeds(0, kNumSeeds);
  const int64_t num_seeds = kNumSeeds;
  EXPECT_GT(sum.num_rounds, 80 * num_seeds);
  EXPECT_GT(sum.num_preempted, num_seeds / 6);
  EXPECT_GT(sum.num_retried, num_seeds / 6);
  EXPECT_GT(sum.num_questions, 10 * num_seeds);
  EXPECT_GT(sum.num_idle_preempted, num_seeds / 6);
  for (const SimEnd end :
       {SimEnd::kFinished, SimEnd::kFailed, SimEnd::kCancelled, SimEnd::kRefused}) {
    EXPECT_GT(sum.num_ended[static_cast<int>(end)], num_seeds / 24) << static_cast<int>(end);
  }
}

TEST(Simulation, TheSameSeedRunsTheSame) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const absl::StatusOr<SimStats> a = RunScenario(MakeScenario(seed), {});
    const absl::StatusOr<SimStats> b = RunScenario(MakeScenario(seed), {});
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->seconds, b->seconds);
    EXPECT_EQ(a->num_steps, b->num_steps);
    EXPECT_EQ(a->num_emitted, b->num_emitted);
  }
}

// Four requests of 300 tokens, room for one and a half: each is preempted, and ends with what it
// would have had alone.
TEST(Simulation, Case52PreemptedRequestsEmitWhatTheyWouldAlone) {
  for (const bool spills : {false, true}) {
    Scenario scenario;
    scenario.seed = 52;
    scenario.hardware = NamedHardware("cpu-gqa");
    for (RequestId id = 0; id < 4; ++id) {
      SimRequest request;
      request.info.id = id;
      request.info.prompt_tokens = 20;
      request.info.max_tokens = 280;
      request.info.full_bytes_per_token = 12288;
      request.info.draft_bytes_per_token = 12288;  // with spill the draft KV is what grows
      request.info.tail_bytes_per_token = 12288;
      request.info.min_staging_bytes = 12288;
      request.answer_tokens = 300 - 10 * id;
      request.acceptance.agreement.fill(0.9);
      scenario.requests.push_back(request);
    }
    scenario.limits.staging_bytes = spills ? 64 * 12288 : 0;
    scenario.limits.spill_bytes = spills ? int64_t{1} << 40 : 0;
    const int64_t one = (spills ? 300 : 2 * 320) * 12288;
    scenario.limits.kv_bytes = scenario.limits.staging_bytes + one * 3 / 2;
    const absl::StatusOr<SimStats> stats = RunScenario(scenario, {});
    ASSERT_TRUE(stats.ok()) << stats.status().message();  // CheckEnd compares the counts
    EXPECT_EQ(stats->num_ended[static_cast<int>(SimEnd::kFinished)], 4);
    EXPECT_GT(stats->num_preempted, 0);
    EXPECT_EQ(stats->num_emitted, 280 + 280 + 280 + 270);
  }
}

TEST(Simulation, Case53OnlyTheImpossibleOneIsRefused) {
  Scenario scenario;
  scenario.seed = 53;
  for (RequestId id = 0; id < 4; ++id) {
    SimRequest request;
    request.info.id = id;
    request.info.prompt_tokens = id == 0 ? 500 : 60;
    request.info.max_tokens = id == 0 ? 100 : 40;
    request.info.full_bytes_per_token = 12288;
    request.answer_tokens = 40;
    scenario.requests.push_back(request);
  }
  scenario.limits.kv_bytes = 512 * 12288;
  const absl::StatusOr<SimStats> stats = RunScenario(scenario, {});
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_EQ(stats->num_ended[static_cast<int>(SimEnd::kRefused)], 1);
  EXPECT_EQ(stats->num_ended[static_cast<int>(SimEnd::kFinished)], 3);
}

TEST(Simulation, Case55AllCancelledInTheMiddleOfAPrefillLeaveNothing) {
  Scenario scenario;
  scenario.seed = 55;
  for (RequestId id = 0; id < 3; ++id) {
    SimRequest request;
    request.info.id = id;
    request.info.prompt_tokens = 20000;
    request.info.max_tokens = 100;
    request.info.full_bytes_per_token = 12288;
    request.info.min_staging_bytes = 20100 * 1024;
    request.answer_tokens = 100;
    request.cancel_s = 3;
    scenario.requests.push_back(request);
  }
  scenario.limits.staging_bytes = 64 << 20;
  scenario.limits.kv_bytes = 128 << 20;
  scenario.limits.spill_bytes = int64_t{1} << 40;
  const absl::StatusOr<SimStats> stats = RunScenario(scenario, {});
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_EQ(stats->num_ended[static_cast<int>(SimEnd::kCancelled)], 3);
  EXPECT_LT(stats->seconds, 5);  // simulated: within a pass of the request, not after the prefill
}

// What the engine guesses from a model's shape (api/request_loop.cc).
PassGuess GuessOf(const HardwareModel& hw) {
  PassGuess guess;
  guess.pass_s = hw.weight_bytes / hw.memory_bytes_per_s;
  guess.row_s = 2 * hw.weight_params / hw.matmul_flops;
  guess.logit_row_s = 2 * hw.output_params / hw.matmul_flops;
  guess.attention_s = hw.attention_flops_per_pair / hw.attention_flops;
  guess.full_token_s = hw.full_bytes_per_token / hw.memory_bytes_per_s;
  guess.draft_byte_s = 2 / hw.memory_bytes_per_s;
  return guess;
}

// Without noise and faults, with costs that can be met, no request waits longer than its cap.
TEST(Simulation, BurstCapIsKeptWhereItIsFeasible) {
  for (const double cap_s : {0.0, 0.4, 0.8}) {
    Scenario scenario;
    scenario.seed = 3;
    scenario.hardware = NamedHardware("cpu-mha");
    scenario.limits.pass = GuessOf(scenario.hardware);
    for (RequestId id = 0; id < 2; ++id) {
      SimRequest request;
      request.info.id = id;
      request.info.prompt_tokens = 16000;
      request.info.cached_tokens = 15999;
      request.info.max_tokens = request.answer_tokens = 300;
      request.info.full_bytes_per_token = 98304;
      request.info.draft_bytes_per_token = 9000;
      request.info.max_burst_s = cap_s;
      request.acceptance.agreement.fill(0.99);
      scenario.requests.push_back(request);
    }
    scenario.limits.kv_bytes = int64_t{1} << 33;
    const absl::StatusOr<SimStats> stats = RunScenario(scenario, {});
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    EXPECT_GT(stats->num_accepted, 200);  // it drafts all the same
    if (cap_s > 0) {
      EXPECT_LE(stats->max_burst_s, 1.05 * cap_s);
    } else {
      EXPECT_GT(stats->max_burst_s, 1.0);  // what the caps below are there for
    }
  }
}

// --- The judge. One request of 100 + 20 tokens that has been admitted and prefilled.
class JudgeTest : public testing::Test {
 protected:
  JudgeTest() {
    SimRequest request;
    request.info.prompt_tokens = 100;
    request.info.max_tokens = 20;
    request.info.full_bytes_per_token = 1000;
    request.info.draft_bytes_per_token = 100;
    request.info.tail_bytes_per_token = 1000;
    request.info.min_staging_bytes = 5000;
    request.answer_tokens = 20;
    scenario_.requests = {request};
    scenario_.limits.kv_bytes = 200000;
    scenario_.limits.staging_bytes = 10000;
    scenario_.limits.spill_bytes = 1000000;
  }

  // Admits and prefills, then executes `plan`.
  std::string Verdict(StepPlan plan) {
    SimExecutor executor(scenario_);
    StepPlan first;
    first.admit = {{0, true, false}};
    first.work = {{0, WorkKind::kPrefill, DraftMode::kPlain, 100}};
    EXPECT_TRUE(executor.Execute(first, 0).ok());
    return std::string(executor.Execute(plan, 1).status().message());
  }
  static StepPlan WithWork(Work work) {
    StepPlan plan;
    plan.work = {work};
    return plan;
  }
  Scenario scenario_;
};

TEST_F(JudgeTest, AcceptsASoundPlan) {
  EXPECT_EQ(Verdict(WithWork({0, WorkKind::kDraft, DraftMode::kDraftKv, 1})), "");
  EXPECT_EQ(Verdict(WithWork({0, WorkKind::kVerify, DraftMode::kPlain, 1, 0, 64000, 5000})), "");
}

TEST_F(JudgeTest, CatchesBrokenPlans) {
  const auto caught = [&](const StepPlan& plan, const char* why) {
    const std::string verdict = Verdict(plan);
    EXPECT_NE(verdict.find(why), std::string::npos) << "wanted: " << why << ", got: " << verdict;
  };
  caught(WithWork({0, WorkKind::kPrefill, DraftMode::kPlain, 1, 0, 0, 5000}),
         "beyond the known tokens");
  caught(WithWork({0, WorkKind::kVerify, DraftMode::kDraftKv, 4, 3, 0, 5000}), "drafted 0");
  caught(WithWork({0, WorkKind::kVerify, DraftMode::kPlain, 20, 19, 0, 5000}), "19 left");
  caught(WithWork({0, WorkKind::kVerify, DraftMode::kPlain, 1, 0, 0, 4999}), "reads spilled KV");
  caught(WithWork({0, WorkKind::kDraft, DraftMode::kNgramDraftKv, 1}), "not allowed");
  caught(WithWork({3, WorkKind::kDraft, DraftMode::kDraftKv, 1}), "unknown request");
  caught(WithWork({0, WorkKind::kVerify, DraftMode::kPlain, 1, 0, 0, 10001}), "staging");
  StepPlan plan = WithWork({0, WorkKind::kDraft, DraftMode::kDraftKv, 1});
  plan.work.push_back(plan.work[0]);
  caught(plan, "two works");
  plan = {};
  plan.admit = {{0, true, false}};
  caught(plan, "admitted twice");
  plan = {};
  plan.release = {0};
  caught(plan, "for no reason");
  plan = {};
  plan.fail = {{0, "?"}};
  caught(plan, "without a fault");
  plan = {};
  plan.fetch = {{0, 10001}};
  caught(plan, "staging");
  plan = {};
  plan.hot = {{0, 190000}};
  plan.work = {{0, WorkKind::kVerify, DraftMode::kPlain, 1, 0, 0, 5000}};
  caught(plan, "the budget is");
}

TEST_F(JudgeTest, ACancelledRequestMustBeReleasedAndGetsNoWork) {
  SimExecutor executor(scenario_);
  StepPlan first;
  first.admit = {{0, true, false}};
  first.work = {{0, WorkKind::kPrefill, DraftMode::kPlain, 100}};
  ASSERT_TRUE(executor.Execute(first, 0).ok());
  executor.Cancel(0);
  EXPECT_FALSE(executor.Execute({}, 1).ok());
  StepPlan release;
  release.release = {0};
  EXPECT_TRUE(executor.Execute(release, 1).ok());
  EXPECT_FALSE(executor.Execute(WithWork({0, WorkKind::kDraft, DraftMode::kDraftKv, 1}), 2).ok());
}

}  // namespace
}  // namespace vericache
