// Which way a prefix is had, on made-up machines and links. No clocks.
#include "scheduler/prefix_plan.h"

#include "gtest/gtest.h"

namespace vericache {
namespace {

// About the 0.5b on two cores: 25 ms a pass, 4 ms a row, 12 KiB a token.
CostModel Costs() {
  PassGuess guess;
  guess.pass_s = 0.02;
  guess.output_s = 0.005;
  guess.row_s = 0.004;
  guess.logit_row_s = 0.0005;
  guess.full_token_s = 1e-7;
  guess.attention_s = 7e-7;
  guess.draft_byte_s = 1e-10;
  return CostModel(guess, 1e9);
}

PrefixPlanInput Prefix(int64_t tokens, double mbit) {
  PrefixPlanInput in;
  in.prompt_tokens = tokens + 40;
  in.prefix_tokens = in.draft_tokens = tokens;
  in.full_bytes = tokens * 12288;
  in.draft_bytes = in.full_bytes / 8;
  in.draft_kv_bytes = static_cast<int64_t>(in.draft_bytes);
  in.max_tokens = 128;
  in.link_bytes_per_s = mbit * 1e6 / 8;
  in.round_trip_s = 0.01;
  in.agreement = 0.9;
  in.max_draft_len = 256;
  in.row_bytes = 12288;
  return in;
}

TEST(PrefixPlan, WithoutAStoreItIsComputed) {
  PrefixPlanInput in = Prefix(4096, 1000);
  in.prefix_tokens = in.draft_tokens = 0;
  const PrefixPlan plan = PlanPrefix(in, Costs());
  EXPECT_EQ(plan.way, PrefixWay::kRecompute);
  EXPECT_FALSE(plan.of(PrefixWay::kLoad).possible);
  EXPECT_FALSE(plan.of(PrefixWay::kDraftFirst).possible);
  EXPECT_FALSE(plan.of(PrefixWay::kRemote).possible);
}

TEST(PrefixPlan, AFastLinkLoadsAndALinkSlowerThanComputingComputes) {
  EXPECT_EQ(PlanPrefix(Prefix(8192, 10000), Costs()).way, PrefixWay::kLoad);
  const PrefixPlan slow = PlanPrefix(Prefix(8192, 5), Costs());
  EXPECT_EQ(slow.way, PrefixWay::kRecompute) << slow.reason;
  EXPECT_GT(slow.of(PrefixWay::kLoad).last_s, slow.of(PrefixWay::kRecompute).last_s);
}

TEST(PrefixPlan, DraftsWhileBlocksArriveWhereTheDraftIsSmall) {
  PrefixPlanInput in = Prefix(16384, 1000);
  in.draft_bytes = in.full_bytes / 50;
  const PrefixPlan plan = PlanPrefix(in, Costs());
  EXPECT_EQ(plan.way, PrefixWay::kDraftFirst) << plan.reason;
  EXPECT_GT(plan.of(PrefixWay::kDraftFirst).draft_len, 4);
  EXPECT_LT(plan.of(PrefixWay::kDraftFirst).last_s, plan.of(PrefixWay::kLoad).last_s);
  EXPECT_GT(plan.of(PrefixWay::kDraftFirst).link_bytes, plan.of(PrefixWay::kLoad).link_bytes);
  EXPECT_NE(plan.reason.find("draft-first"), std::string::npos);
}

// What a draft of ten tokens saves is less than what its bytes delay the blocks by.
TEST(PrefixPlan, SkipsADraftThatIsTooLargeToPay) {
  PrefixPlanInput in = Prefix(16384, 100);
  in.draft_bytes = in.full_bytes / 2;
  const PrefixPlan plan = PlanPrefix(in, Costs());
  EXPECT_EQ(plan.way, PrefixWay::kLoad);
  EXPECT_NE(plan.reason.find("would delay the blocks"), std::string::npos) << plan.reason;
  in.draft_bytes = in.full_bytes / 1000;
  EXPECT_EQ(PlanPrefix(in, Costs()).way, PrefixWay::kDraftFirst);
}

TEST(PrefixPlan, PatienceIsNotForComputing) {
  PrefixPlanInput in = Prefix(64, 100);
  in.round_trip_s = 1;
  EXPECT_EQ(PlanPrefix(in, Costs()).way, PrefixWay::kRecompute);
  in.patience_s = 60;
  EXPECT_NE(PlanPrefix(in, Costs()).way, PrefixWay::kRecompute);
}

// Drafting costs nothing else where nobody else runs, but a bad draft is worth nothing.
TEST(PrefixPlan, ABadDraftIsNotWaitedFor) {
  PrefixPlanInput in = Prefix(16384, 300);
  in.draft_bytes = in.full_bytes / 50;
  in.agreement = 0.05;
  EXPECT_EQ(PlanPrefix(in, Costs()).way, PrefixWay::kLoad);
}

TEST(PrefixPlan, ASaturatedLinkIsLeftToOthers) {
  PrefixPlanInput in = Prefix(2048, 1000);
  EXPECT_NE(PlanPrefix(in, Costs()).way, PrefixWay::kRecompute);
  in.link_queue_bytes = uint64_t{10} << 30;
  EXPECT_EQ(PlanPrefix(in, Costs()).way, PrefixWay::kRecompute);
}

TEST(PrefixPlan, AVerifierTakesOverWhereTheLinkIsSlow) {
  PrefixPlanInput in = Prefix(16384, 100);
  in.verifier = true;
  in.verifier_round_trip_s = 0.01;
  const PrefixPlan plan = PlanPrefix(in, Costs());
  EXPECT_EQ(plan.way, PrefixWay::kRemote) << plan.reason;
  EXPECT_LT(plan.of(PrefixWay::kRemote).first_s, plan.of(PrefixWay::kLoad).first_s / 4);
  in.link_bytes_per_s = 10e9 / 8;
  EXPECT_NE(PlanPrefix(in, Costs()).way, PrefixWay::kRemote);
}

TEST(PrefixPlan, RowsThatAreKnownNeedNotBeComputedNorLoaded) {
  PrefixPlanInput in = Prefix(4096, 1000);
  in.known_tokens = in.prompt_tokens - 1;
  const PrefixPlan plan = PlanPrefix(in, Costs());
  EXPECT_EQ(plan.way, PrefixWay::kRecompute);
  EXPECT_FALSE(plan.of(PrefixWay::kLoad).possible);
  EXPECT_LT(plan.of(PrefixWay::kRecompute).first_s, 0.1);
}

TEST(PrefixPlan, NoLongerDraftThanTheAnswer) {
  PrefixPlanInput in = Prefix(16384, 100);
  in.draft_bytes = in.full_bytes / 200;
  in.max_tokens = 5;
  EXPECT_LE(PlanPrefix(in, Costs()).of(PrefixWay::kDraftFirst).draft_len, 4);
  in.max_tokens = 1;
  EXPECT_FALSE(PlanPrefix(in, Costs()).of(PrefixWay::kDraftFirst).possible);
}

TEST(PrefixPlan, ExpectedEmittedIsAGeometricSum) {
  EXPECT_DOUBLE_EQ(ExpectedEmitted(0, 10), 1);
  EXPECT_DOUBLE_EQ(ExpectedEmitted(1, 10), 11);
  EXPECT_DOUBLE_EQ(ExpectedEmitted(0.5, 2), 1.75);
}

}  // namespace
}  // namespace vericache
