// Rounds without a draft KV, by hand.
#include "cli/other_proposals.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace vericache::cli {
namespace {

using testing::ElementsAre;

TEST(NgramRounds, CopiesWhatFollowedTheSameTokens) {
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  // 2 leads to 3 4 5, then 99 surprises; nothing ever followed 99.
  const DraftReplayReport r = NgramRounds(prompt, std::vector<int32_t>{2, 3, 4, 5, 99, 7, 8}, 64);
  EXPECT_THAT(r.run_lengths, ElementsAre(4, 1, 1));
  EXPECT_EQ(r.num_compared, 5);
  EXPECT_DOUBLE_EQ(r.agreement, 4.0 / 5);
  EXPECT_EQ(r.kept_fraction, 0);
}

TEST(NgramRounds, PrefersTheLongestAndLatestPlace) {
  const std::vector<int32_t> prompt = {1, 2, 3, 7, 5, 2, 3, 8, 1, 2, 3, 9, 9};
  // After 1 2 3 the latest place says 9, not the 7 of the first or the 8 behind 5 2 3.
  const DraftReplayReport r = NgramRounds(prompt, std::vector<int32_t>{1, 2, 3, 9, 9}, 2);
  EXPECT_THAT(r.run_lengths, ElementsAre(3, 1));
}

TEST(NgramRounds, RespectsTheDraftLengthAndTheEnd) {
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<int32_t> answer = {1, 2, 3, 4, 5, 6};
  EXPECT_THAT(NgramRounds(prompt, answer, 2).run_lengths, ElementsAre(3, 2));
  EXPECT_THAT(NgramRounds(prompt, answer, 64).run_lengths, ElementsAre(5));
  EXPECT_TRUE(NgramRounds(prompt, std::vector<int32_t>{1}, 64).run_lengths.empty());
  EXPECT_TRUE(NgramRounds(prompt, {}, 64).run_lengths.empty());
}

TEST(RoundsOfHits, EndAtTheFirstMiss) {
  // The first token is nobody's proposal.
  const DraftReplayReport r = RoundsOfHits({false, true, true, false, false, true, true, true}, 3);
  EXPECT_THAT(r.run_lengths, ElementsAre(3, 1, 3));
  EXPECT_EQ(r.num_compared, 3 + 1 + 3);
  EXPECT_DOUBLE_EQ(r.agreement, 5.0 / 7);
}

}  // namespace
}  // namespace vericache::cli
