// Draft lengths for a verifier far away: what is measured decides, not what was guessed.
#include "scheduler/remote_length.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace vericache {
namespace {

AcceptanceEstimate Agreeing(int accepted_of_16) {
  AcceptanceEstimate estimate;
  for (int i = 0; i < 30; ++i) estimate.Observe(16, accepted_of_16);
  return estimate;
}

// A link of round_trip_s, a verifier of verify_s and a tenth more a row.
RemoteCosts Measured(double step_s, double round_trip_s, double verify_s, int num_rows = 1) {
  RemoteCosts costs{RemoteGuess()};
  for (int i = 0; i < 100; ++i) {
    costs.ObserveStep(step_s, num_rows);
    const int drafted = 4 + i % 20;
    const double busy = verify_s * (1 + 0.1 * drafted);
    costs.ObserveQuestion({drafted, 1 + i % 5, round_trip_s + busy, busy});
  }
  return costs;
}

TEST(RemoteLength, ALongerWayAsksForLongerDrafts) {
  const AcceptanceEstimate good = Agreeing(13);
  int last = 0;
  for (const double round_trip_s : {0.002, 0.02, 0.2}) {
    const RemoteLength chosen =
        Measured(0.01, round_trip_s, 0.02).Choose(good, 0.8, {64, 16, 1, false});
    EXPECT_GT(chosen.draft_len, last) << round_trip_s;
    EXPECT_NEAR(chosen.round_trip_s, round_trip_s, 0.1 * round_trip_s);
    EXPECT_NEAR(chosen.step_s, 0.01, 0.001);
    last = chosen.draft_len;
  }
  EXPECT_GT(last, 8);
}

TEST(RemoteLength, BadDraftsAreShortOrNotMade) {
  const RemoteCosts costs = Measured(0.01, 0.02, 0.02);
  const RemoteLength good = costs.Choose(Agreeing(15), 0.8, {64, 16, 1, false});
  const RemoteLength bad = costs.Choose(Agreeing(1), 0.8, {64, 16, 1, false});
  EXPECT_LT(bad.draft_len, good.draft_len);
  EXPECT_GE(bad.draft_len, 1);
  const RemoteLength none = costs.Choose(Agreeing(0), 0.1, {64, 16, 1, true});
  EXPECT_EQ(none.draft_len, 0);
  EXPECT_EQ(none.tokens_per_s, none.plain_tokens_per_s);
  EXPECT_EQ(none.expected_emitted, 16);
}

// Others draft while a question is away: the round trip is hidden, drafting is what is scarce.
TEST(RemoteLength, ManyRequestsDraftShorter) {
  const RemoteCosts costs = Measured(0.04, 0.2, 0.02, 2);
  const AcceptanceEstimate fair = Agreeing(6);
  const RemoteLength alone = costs.Choose(fair, 0.8, {64, 16, 1, false});
  const RemoteLength many = costs.Choose(fair, 0.8, {64, 16, 32, false});
  EXPECT_LT(many.draft_len, alone.draft_len);
}

TEST(RemoteLength, APauseIsBounded) {
  const RemoteCosts costs = Measured(0.01, 0.1, 0.02);
  RemoteLengthLimits limits{64, 16, 1, false};
  const RemoteLength any = costs.Choose(Agreeing(16), 0.8, limits);
  limits.max_burst_s = 0.2;
  const RemoteLength bounded = costs.Choose(Agreeing(16), 0.8, limits);
  EXPECT_LT(bounded.draft_len, any.draft_len);
  EXPECT_GT(bounded.draft_len, 0);
  EXPECT_EQ(any.plain_tokens, 16);
  EXPECT_LT(bounded.plain_tokens, 6);
  limits.max_burst_s = 1e-6;
  EXPECT_EQ(costs.Choose(Agreeing(16), 0.8, limits).plain_tokens, 1);
}

TEST(RemoteLength, TheLimitHoldsAndNothingIsLeftToDraft) {
  const RemoteCosts costs = Measured(0.001, 0.5, 0.02);
  EXPECT_EQ(costs.Choose(Agreeing(16), 0.8, {3, 16, 1, false}).draft_len, 3);
  EXPECT_EQ(costs.Choose(Agreeing(16), 0.8, {0, 16, 1, false}).draft_len, 0);
}

TEST(RemoteLength, SenselessTimesChangeNothing) {
  RemoteCosts costs{RemoteGuess()};
  const RemoteLength before = costs.Choose(AcceptanceEstimate(), 0.8, {64, 16, 1, true});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  costs.ObserveStep(nan, 1);
  costs.ObserveStep(1, 0);
  costs.ObserveQuestion({8, 4, nan, 1});
  costs.ObserveQuestion({8, 0, 1, 1});
  const RemoteLength after = costs.Choose(AcceptanceEstimate(), 0.8, {64, 16, 1, true});
  EXPECT_EQ(before.draft_len, after.draft_len);
  EXPECT_EQ(before.tokens_per_s, after.tokens_per_s);
  // A verifier's own word counts no more than the reply took.
  costs.ObserveQuestion({8, 4, 1, nan});
  costs.ObserveQuestion({8, 4, 1, 1e300});
  const RemoteLength chosen = costs.Choose(AcceptanceEstimate(), 0.8, {64, 16, 1, true});
  EXPECT_TRUE(std::isfinite(chosen.tokens_per_s) && chosen.tokens_per_s > 0);
}

TEST(RemoteLength, TellsHowManyWereThere) {
  RemoteCosts costs{RemoteGuess()};
  EXPECT_EQ(costs.num_own(), 0);
  for (int i = 0; i < 9; ++i) costs.ObserveQuestion({8, 4, 1, 0.5, 12});
  EXPECT_DOUBLE_EQ(costs.num_own(), 12);
  costs.ObserveQuestion({8, 4, 1, 0.5, 2});
  EXPECT_GT(costs.num_own(), 9);
  for (int i = 0; i < 100; ++i) costs.ObserveQuestion({8, 4, 1, 0.5, 2});
  EXPECT_NEAR(costs.num_own(), 2, 0.1);
}

TEST(LineFit, FindsALine) {
  LineFit fit(1, 0, 0);
  for (int i = 0; i < 200; ++i) fit.Observe(i % 30, 3 + 0.5 * (i % 30));
  EXPECT_NEAR(fit.a(), 3, 0.3);
  EXPECT_NEAR(fit.b(), 0.5, 0.05);
}

}  // namespace
}  // namespace vericache
