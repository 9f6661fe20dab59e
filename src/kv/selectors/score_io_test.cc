// Score sets as bytes: a round trip, and every damaged form refused.
#include "kv/selectors/score_io.h"

#include <string>

#include "gtest/gtest.h"

namespace vericache {
namespace {

ScoreSets SomeSets() {
  KeyScores a{3, {{1, 2, 3}, {4, 5, 6}}}, b{1, {{-1}, {0.5f}}};
  ScoreSets sets;
  sets["kvzip 2048"] = std::make_shared<const KeyScores>(a);
  sets["h2o"] = std::make_shared<const KeyScores>(b);
  return sets;
}

TEST(ScoreIo, GivesTheSameSetsBack) {
  std::string bytes;
  AppendScores(SomeSets(), &bytes);
  ScoreSets read;
  ASSERT_TRUE(ReadScores(bytes, 2, 3, &read).ok());
  ASSERT_EQ(read.size(), 2u);
  for (const auto& [key, scores] : SomeSets()) {
    ASSERT_TRUE(read.contains(key)) << key;
    EXPECT_EQ(read[key]->num_scored, scores->num_scored);
    EXPECT_EQ(read[key]->of_head, scores->of_head);
  }
  ScoreSets none;
  EXPECT_TRUE(ReadScores("", 2, 3, &none).ok());
  EXPECT_TRUE(none.empty());
}

TEST(ScoreIo, RefusesWhatItDidNotWrite) {
  std::string bytes;
  AppendScores(SomeSets(), &bytes);
  ScoreSets sets;
  size_t whole = 0;  // cuts that leave a whole first set
  for (size_t n = 1; n < bytes.size(); ++n) {
    ScoreSets cut;
    whole += ReadScores(bytes.substr(0, n), 2, 3, &cut).ok();
  }
  EXPECT_EQ(whole, 1u);
  EXPECT_FALSE(ReadScores(bytes, 3, 3, &sets).ok()) << "more lists than there are";
  sets.clear();
  EXPECT_FALSE(ReadScores(bytes, 2, 2, &sets).ok()) << "more positions than tokens";
  sets.clear();
  EXPECT_FALSE(ReadScores(bytes + bytes, 2, 3, &sets).ok()) << "a set twice";
  sets.clear();
  std::string huge = bytes;
  huge[0] = '\xff';
  huge[7] = '\xff';
  EXPECT_FALSE(ReadScores(huge, 2, 3, &sets).ok()) << "a key longer than everything";
}

}  // namespace
}  // namespace vericache
