#include "scheduler/acceptance_estimate.h"

#include <gtest/gtest.h>

namespace vericache {
namespace {

TEST(AcceptanceEstimate, StartsAtThePriorAndMovesToWhatIsSeen) {
  AcceptanceEstimate estimate;
  EXPECT_DOUBLE_EQ(estimate.Mean(0.9), 0.9);
  for (int i = 0; i < 100; ++i) estimate.Observe(4, 1);  // one of two trials agrees
  EXPECT_NEAR(estimate.Mean(0.9), 0.5, 0.03);
}

TEST(AcceptanceEstimate, TokensBehindTheFirstMismatchAreNotCounted) {
  AcceptanceEstimate a, b;
  a.Observe(64, 2);
  b.Observe(3, 2);
  EXPECT_DOUBLE_EQ(a.Mean(0.5), b.Mean(0.5));
  EXPECT_DOUBLE_EQ(a.AtPosition(10, 0.5), b.AtPosition(10, 0.5));
}

TEST(AcceptanceEstimate, KnowsThatLaterPositionsAreWorse) {
  AcceptanceEstimate estimate;
  for (int i = 0; i < 200; ++i) estimate.Observe(12, i % 2 == 0 ? 8 : 9);
  EXPECT_GT(estimate.AtPosition(2, 0.9), 0.9);
  EXPECT_LT(estimate.AtPosition(9, 0.9), estimate.AtPosition(2, 0.9) - 0.1);
}

TEST(AcceptanceEstimate, NothingIsEverCertain) {
  AcceptanceEstimate estimate;
  for (int i = 0; i < 1000; ++i) estimate.Observe(256, 256);
  EXPECT_LT(estimate.Mean(1), 1);
  EXPECT_LT(estimate.AtPosition(255, 1), 1);
  EXPECT_LT(estimate.AtPosition(100000, 1), 1);
}

TEST(AcceptanceEstimate, AgeingLetsNewEvidenceWin) {
  AcceptanceEstimate kept, aged;
  for (int i = 0; i < 100; ++i) {
    kept.Observe(4, 0);
    aged.Observe(4, 0);
  }
  aged.Age(0.1);
  for (int i = 0; i < 5; ++i) {
    kept.Observe(4, 4);
    aged.Observe(4, 4);
  }
  EXPECT_GT(aged.Mean(0.5), kept.Mean(0.5) + 0.2);
}

TEST(AcceptanceEstimate, NonsenseIsIgnored) {
  AcceptanceEstimate estimate;
  estimate.Observe(0, 0);
  estimate.Observe(-3, 5);
  EXPECT_DOUBLE_EQ(estimate.Mean(0.7), 0.7);
  estimate.Observe(2, 9);  // more accepted than drafted: at most all
  EXPECT_GT(estimate.Mean(0.7), 0.7);
}

TEST(SharedAcceptance, CalibratesConfidenceByWhatHappened) {
  SharedAcceptance shared;
  const DraftMode mode = DraftMode::kDraftKv;
  EXPECT_DOUBLE_EQ(shared.AtConfidence(mode, -1, 0.8), 0.8);
  EXPECT_LT(shared.AtConfidence(mode, 0.1, 0.9), shared.AtConfidence(mode, 0.9, 0.9));
  for (int i = 0; i < 300; ++i) {
    shared.ObserveConfidence(mode, 0.95, false);  // an overconfident drafter
    shared.ObserveConfidence(mode, 0.35, true);
  }
  EXPECT_LT(shared.AtConfidence(mode, 0.95, 0.9), 0.1);
  EXPECT_GT(shared.AtConfidence(mode, 0.35, 0.9), 0.9);
  EXPECT_LT(shared.AtConfidence(mode, 7.0, 0.9), 0.1);  // above one counts as one
}

TEST(SharedAcceptance, ModesAreApart) {
  SharedAcceptance shared;
  EXPECT_FALSE(shared.Tried(DraftMode::kNgram));
  for (int i = 0; i < 200; ++i) shared.Observe(DraftMode::kNgram, 4, 0);
  EXPECT_TRUE(shared.Tried(DraftMode::kNgram));
  EXPECT_LT(shared.Mean(DraftMode::kNgram), 0.1);
  EXPECT_GT(shared.Mean(DraftMode::kDraftKv), 0.5);
}

}  // namespace
}  // namespace vericache
