// Which way a prefix is had, on made-up machines and links. No clocks.
#include "scheduler/prefix_plan.h"

#include <algorithm>
#include <set>

#include "gtest/gtest.h"
#include "scheduler/answer_length.h"

namespace vericache {
namespace {

// What tokens and bytes of K/V take is the same for both models.
CostModel CostsOf(double pass_s, double output_s, double row_s, double logit_row_s) {
  PassGuess guess;
  guess.pass_s = pass_s;
  guess.output_s = output_s;
  guess.row_s = row_s;
  guess.logit_row_s = logit_row_s;
  guess.full_token_s = 1e-7;
  guess.attention_s = 7e-7;
  guess.draft_byte_s = 1e-10;
  return CostModel(guess, 1e9);
}

// About the 0.5b on two cores: 25 ms a pass, 4 ms a row, 12 KiB a token.
CostModel Costs() { return CostsOf(0.02, 0.005, 0.004, 0.0005); }

// The same where drafting pays: a step on the draft KV is half of a plain one.
CostModel DraftingCosts() { return CostsOf(0.006, 0.006, 0.001, 0.0003); }

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

PrefixPlanInput WithVerifier(int64_t tokens, double mbit, int64_t max_tokens = 128) {
  PrefixPlanInput in = Prefix(tokens, mbit);
  in.max_tokens = max_tokens;
  in.draft_bytes = 0;  // it is here
  in.verifier = true;
  in.verifier_round_trip_s = 0.02;
  in.remote_plain_tokens_per_s = 10;  // measured: it has others to serve
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
  PrefixPlanInput in = WithVerifier(16384, 100);
  in.draft_bytes = in.full_bytes / 8;
  const PrefixPlan plan = PlanPrefix(in, DraftingCosts());
  EXPECT_EQ(plan.way, PrefixWay::kRemote) << plan.reason;
  EXPECT_LT(plan.of(PrefixWay::kRemote).last_s, plan.of(PrefixWay::kLoad).last_s / 2);
  in.link_bytes_per_s = 10e9 / 8;
  EXPECT_NE(PlanPrefix(in, DraftingCosts()).way, PrefixWay::kRemote);
}

// Each way is the best one somewhere, and what is picked is never far from the best.
TEST(PrefixPlan, WithAVerifierNoWayIsMuchBetterThanThePickedOne) {
  std::set<PrefixWay> picked;
  for (const int64_t tokens : {64, 256, 1024, 4096, 8192, 16384})
    for (const double mbit : {10.0, 100.0, 300.0, 1000.0, 10000.0})
      for (const int64_t max_tokens : {1, 16, 128, 1000})
        for (const double round_trip_s : {0.001, 0.02, 0.2, 1.0})
          for (const double agreement : {0.2, 0.9})
            for (const bool stored : {false, true}) {
              PrefixPlanInput in = WithVerifier(tokens, mbit, max_tokens);
              in.verifier_round_trip_s = round_trip_s;
              in.remote_plain_tokens_per_s = 0;
              in.agreement = agreement;
              in.round_trip_s = round_trip_s / 2;
              if (!stored) in.prefix_tokens = in.draft_tokens = 0;
              const PrefixPlan plan = PlanPrefix(in, DraftingCosts());
              picked.insert(plan.way);
              ASSERT_TRUE(plan.of(plan.way).possible) << plan.reason;
              EXPECT_FALSE(plan.of(PrefixWay::kDraftFirst).possible);
              double best_s = 1e9;
              for (const PrefixEstimate& e : plan.estimates)
                if (e.possible) best_s = std::min(best_s, e.last_s);
              EXPECT_LE(0.95 * plan.of(plan.way).last_s, best_s) << plan.reason;
              // What is not clearly faster here stays there.
              const double here_s = plan.of(plan.way).last_s;
              const double there_s = std::min(
                  plan.of(PrefixWay::kRemotePlain).last_s,
                  plan.of(PrefixWay::kRemote).possible ? plan.of(PrefixWay::kRemote).last_s : 1e9);
              if (plan.way == PrefixWay::kLoad || plan.way == PrefixWay::kRecompute) {
                EXPECT_LT(here_s, 0.95 * there_s) << plan.reason;
              }
            }
  EXPECT_EQ(picked, (std::set<PrefixWay>{PrefixWay::kRecompute, PrefixWay::kLoad,
                                         PrefixWay::kRemote, PrefixWay::kRemotePlain}));
}

TEST(PrefixPlan, AVerifierAnswersWhileBlocksArrive) {
  const PrefixPlan plan = PlanPrefix(WithVerifier(4096, 1000), DraftingCosts());
  EXPECT_EQ(plan.way, PrefixWay::kLoad) << plan.reason;
  EXPECT_EQ(plan.of(PrefixWay::kLoad).first_s, plan.of(PrefixWay::kRemote).first_s);
  PrefixPlanInput alone = WithVerifier(4096, 1000);
  alone.verifier = false;
  EXPECT_LT(plan.of(PrefixWay::kLoad).last_s,
            PlanPrefix(alone, DraftingCosts()).of(PrefixWay::kLoad).last_s);
}

TEST(PrefixPlan, AShortAnswerIsOverBeforeItsBlocksAreHere) {
  EXPECT_EQ(PlanPrefix(WithVerifier(4096, 1000, 8), DraftingCosts()).way, PrefixWay::kRemote);
  EXPECT_EQ(PlanPrefix(WithVerifier(16384, 100, 128), DraftingCosts()).way, PrefixWay::kRemote);
}

TEST(PrefixPlan, MeasuredRatesOfAVerifierCount) {
  PrefixPlanInput in = WithVerifier(4096, 1000, 1000);
  in.remote_tokens_per_s = 1000;
  EXPECT_EQ(PlanPrefix(in, DraftingCosts()).way, PrefixWay::kRemote);
  in.remote_plain_tokens_per_s = 2000;
  EXPECT_EQ(PlanPrefix(in, DraftingCosts()).way, PrefixWay::kRemotePlain);
  in.remote_tokens_per_s = in.remote_plain_tokens_per_s = 2;
  EXPECT_EQ(PlanPrefix(in, DraftingCosts()).way, PrefixWay::kLoad);
  in.known_tokens = in.prompt_tokens - 1;  // in this node's RAM
  EXPECT_EQ(PlanPrefix(in, DraftingCosts()).way, PrefixWay::kRecompute);
}

// Look-up is as good there as here: what it gives here alone is no reason to leave.
TEST(PrefixPlan, LookUpAtTheVerifierCounts) {
  PrefixPlanInput in = WithVerifier(4096, 1000, 1000);
  in.remote_tokens_per_s = in.remote_plain_tokens_per_s = 20;
  in.remote_lookup_s = 0.05;
  EXPECT_EQ(PlanPrefix(in, DraftingCosts()).way, PrefixWay::kLoad);
  in.lookup_run = 6;
  const PrefixPlan plan = PlanPrefix(in, DraftingCosts());
  EXPECT_EQ(plan.way, PrefixWay::kRemote) << plan.reason;
  EXPECT_DOUBLE_EQ(plan.of(PrefixWay::kRemote).tokens_per_s, 6 / 0.05);
  EXPECT_DOUBLE_EQ(plan.of(PrefixWay::kRemotePlain).tokens_per_s, 20);
  in.remote_lookup_s = 0;  // not measured: as if that machine were this one
  EXPECT_GT(PlanPrefix(in, DraftingCosts()).of(PrefixWay::kRemote).tokens_per_s, 20);
  in.remote_lookup_s = 0.05;
  in.draft_tokens = 0;  // look-up needs no draft KV
  EXPECT_DOUBLE_EQ(PlanPrefix(in, DraftingCosts()).of(PrefixWay::kRemotePlain).tokens_per_s,
                   6 / 0.05);
}

TEST(PrefixPlan, WhatFindsNoRoomHereStaysAtTheVerifier) {
  PrefixPlanInput in = WithVerifier(4096, 10000);
  in.remote_tokens_per_s = in.remote_plain_tokens_per_s = 1;
  EXPECT_EQ(PlanPrefix(in, DraftingCosts()).way, PrefixWay::kLoad);
  in.fits_here = false;
  const PrefixPlan plan = PlanPrefix(in, DraftingCosts());
  EXPECT_GE(plan.way, PrefixWay::kRemote);
  EXPECT_NE(plan.reason.find("no room here"), std::string::npos) << plan.reason;
}

// Of many that begin at once not all leave: each counts those here, those who stay, and the prompts
// that have to be computed before its own.
TEST(PrefixPlan, ACrowdIsCounted) {
  PrefixPlanInput in = WithVerifier(8192, 10000);
  in.remote_plain_tokens_per_s = 0;  // not measured
  const PrefixPlan alone = PlanPrefix(in, DraftingCosts());
  in.num_remote = 12;
  const PrefixPlan among = PlanPrefix(in, DraftingCosts());
  for (const PrefixWay way : {PrefixWay::kRemote, PrefixWay::kRemotePlain}) {
    EXPECT_GT(among.of(way).last_s, 1.5 * alone.of(way).last_s);
  }
  // Drafts for those that stay take turns with this one's passes.
  EXPECT_LT(among.of(PrefixWay::kLoad).tokens_per_s, alone.of(PrefixWay::kLoad).tokens_per_s);
  in.num_remote = 1;
  in.num_active = 12;
  in.prompts_ahead_s = 5;
  const PrefixPlan late = PlanPrefix(in, DraftingCosts());
  EXPECT_GE(late.way, PrefixWay::kRemote) << late.reason;
  EXPECT_GT(late.of(PrefixWay::kLoad).last_s, 5);
  EXPECT_GE(late.of(PrefixWay::kRecompute).first_s,
            5 + alone.of(PrefixWay::kRecompute).first_s - 1e-9);
}

// Prompts that are computed between an answer's steps delay it there, and nothing here.
TEST(PrefixPlan, PromptsOfOthersDelayAnswersAtTheVerifier) {
  PrefixPlanInput in = WithVerifier(8192, 10000);
  in.verifier_ready_s = 1;
  const PrefixPlan alone = PlanPrefix(in, DraftingCosts());
  in.verifier_prompts_s = 4;
  const PrefixPlan among = PlanPrefix(in, DraftingCosts());
  for (const PrefixWay way : {PrefixWay::kRemote, PrefixWay::kRemotePlain}) {
    EXPECT_EQ(among.of(way).first_s, alone.of(way).first_s);
    EXPECT_NEAR(among.of(way).last_s, alone.of(way).last_s + 3, 1e-9);
  }
  EXPECT_EQ(among.of(PrefixWay::kRecompute).last_s, alone.of(PrefixWay::kRecompute).last_s);
  in.verifier_prompts_s = 0;  // of no others
  EXPECT_EQ(PlanPrefix(in, DraftingCosts()).of(PrefixWay::kRemote).last_s,
            alone.of(PrefixWay::kRemote).last_s);
}

double OfTheVerifiersTime(const PrefixPlan& plan) {
  return plan.of(PrefixWay::kLoad).last_s /
         std::min(plan.of(PrefixWay::kRemote).last_s, plan.of(PrefixWay::kRemotePlain).last_s);
}

// Alone 95% of the verifier's time is worth leaving for, in a crowd 85%.
TEST(PrefixPlan, ACrowdMustPromiseMore) {
  int between = 0, below = 0;
  for (const int num_remote : {1, 2, 3, 4, 6, 8, 12})
    for (const double measured : {0.0, 10.0})
      for (double mbit = 1000; mbit < 20000; mbit *= 1.1) {
        PrefixPlanInput in = WithVerifier(8192, mbit);
        in.num_remote = num_remote;
        in.remote_plain_tokens_per_s = measured;
        const PrefixPlan plan = PlanPrefix(in, DraftingCosts());
        const double ratio = OfTheVerifiersTime(plan);
        EXPECT_EQ(plan.way == PrefixWay::kLoad, ratio < (num_remote > 1 ? 0.85 : 0.95))
            << plan.reason;
        if (num_remote == 1) continue;
        between += ratio > 0.85 && ratio < 0.95 ? 1 : 0;
        below += ratio < 0.85 ? 1 : 0;
      }
  EXPECT_GT(between, 0);
  EXPECT_GT(below, 0);
}

// Those of other nodes may leave as this one may: half of them are taken to stay. They compute and
// draft on other machines.
TEST(PrefixPlan, RequestsOfOtherNodesCountHalfAndOnlyAtTheVerifier) {
  PrefixPlanInput mine = WithVerifier(8192, 10000);
  mine.remote_plain_tokens_per_s = 0;
  mine.num_remote = 3;
  PrefixPlanInput others = mine;
  others.num_remote = 1;
  others.num_elsewhere = 4;
  const PrefixPlan with_mine = PlanPrefix(mine, DraftingCosts());
  const PrefixPlan with_others = PlanPrefix(others, DraftingCosts());
  for (const PrefixWay there : {PrefixWay::kRemote, PrefixWay::kRemotePlain})
    EXPECT_EQ(with_others.of(there).last_s, with_mine.of(there).last_s);
  EXPECT_LT(with_others.of(PrefixWay::kLoad).last_s, with_mine.of(PrefixWay::kLoad).last_s);
  others.num_elsewhere = 0;
  const PrefixPlan alone = PlanPrefix(others, DraftingCosts());
  EXPECT_LT(alone.of(PrefixWay::kRemote).last_s, with_others.of(PrefixWay::kRemote).last_s);
  EXPECT_EQ(alone.of(PrefixWay::kRecompute).last_s, with_others.of(PrefixWay::kRecompute).last_s);
}

// Rates that were measured among twelve do not hold for the four that are left.
TEST(PrefixPlan, MeasuredRatesFollowTheCrowd) {
  PrefixPlanInput in = WithVerifier(8192, 1000);
  in.remote_tokens_per_s = 12;
  in.num_remote = 12;
  const PrefixPlan then = PlanPrefix(in, DraftingCosts());
  in.num_measured = 12.2;
  const PrefixPlan same = PlanPrefix(in, DraftingCosts());
  in.num_remote = 4;
  const PrefixPlan now = PlanPrefix(in, DraftingCosts());
  const auto cost = [&](int num_there, int rows) {
    PassShape pass;
    for (int i = 0; i < num_there; ++i) pass.AddFull(rows, in.prompt_tokens + rows - 1, rows);
    return DraftingCosts().PassSeconds(pass);
  };
  for (const PrefixWay there : {PrefixWay::kRemote, PrefixWay::kRemotePlain}) {
    EXPECT_EQ(same.of(there).tokens_per_s, then.of(there).tokens_per_s);
    const int rows = 1 + now.of(there).draft_len;
    EXPECT_NEAR(now.of(there).tokens_per_s,
                then.of(there).tokens_per_s * cost(12, rows) / cost(4, rows), 1e-6);
  }
  in.lookup_run = 3;
  in.remote_lookup_s = 0.1;
  const double looks_up = PlanPrefix(in, DraftingCosts()).of(PrefixWay::kRemote).tokens_per_s;
  EXPECT_NEAR(looks_up, 30 * cost(12, 1 + kLookupDraft) / cost(4, 1 + kLookupDraft), 1e-6);
}

// Many at once share passes here, and one link.
TEST(PrefixPlan, OthersMakeThisNodeAndItsLinkSlower) {
  PrefixPlanInput in = WithVerifier(8192, 10000);
  EXPECT_EQ(PlanPrefix(in, DraftingCosts()).way, PrefixWay::kLoad);
  const double alone = PlanPrefix(in, DraftingCosts()).of(PrefixWay::kLoad).tokens_per_s;
  in.num_active = 16;
  in.remote_tokens_per_s = PlanPrefix(in, DraftingCosts()).of(PrefixWay::kRemote).tokens_per_s;
  EXPECT_LT(PlanPrefix(in, DraftingCosts()).of(PrefixWay::kLoad).tokens_per_s, alone);
  in = WithVerifier(8192, 10000);
  in.link_queue_bytes = uint64_t{10} << 30;
  EXPECT_EQ(PlanPrefix(in, DraftingCosts()).way, PrefixWay::kRemote);
}

TEST(AnswerLengthTest, ALimitIsAnUpperBoundOnly) {
  AnswerLength length;
  EXPECT_EQ(length.Expected(1), 1);
  EXPECT_GT(length.Expected(32), 28);
  EXPECT_NEAR(length.Expected(1 << 20), 256, 1);
  for (int i = 0; i < 100; ++i) length.Observe(20, true);
  EXPECT_NEAR(length.Expected(1000), 25, 8);
  for (int i = 0; i < 100; ++i) length.Observe(500, false);  // cut off by their limits
  EXPECT_GT(length.Expected(10000), 1000);
  EXPECT_LE(length.Expected(100), 100);
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
