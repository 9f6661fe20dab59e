// Which tokens a drafter looks at.
#include "engine/draft_vocab.h"

#include <gtest/gtest.h>

#include <numeric>

namespace vericache {
namespace {

constexpr int64_t kVocab = 150001;

bool IsEnd(TokenId id) { return id == 149990; }

std::vector<int64_t> IdsOf(const std::vector<OutRange>& ranges) {
  std::vector<int64_t> ids;
  for (const OutRange& range : ranges)
    for (int64_t id = range.begin; id < range.end; ++id) ids.push_back(id);
  return ids;
}

TEST(DraftVocab, HasCommonTokensThoseOfTheTextAndEnds) {
  DraftVocab vocab;
  std::vector<TokenId> text = {5, 100000, 149999, 40000};
  vocab.Update(text, kVocab, IsEnd);
  for (TokenId id = 0; id < kVocab; ++id) {
    const TokenId tile = id / kOutTile;
    const bool expected = id < DraftVocab::kNumCommon || tile == 100000 / kOutTile ||
                          tile == 149999 / kOutTile || tile == 40000 / kOutTile ||
                          tile == 149990 / kOutTile;
    ASSERT_EQ(vocab.Has(id), expected) << id;
  }
  text.push_back(70000);
  EXPECT_FALSE(vocab.Has(70000));
  vocab.Update(text, kVocab, IsEnd);
  EXPECT_TRUE(vocab.Has(70000));
  vocab.Add(90000);
  EXPECT_TRUE(vocab.Has(90000));
}

TEST(DraftVocab, ASmallVocabularyIsTakenWhole) {
  DraftVocab vocab;
  vocab.Update({}, 2 * DraftVocab::kNumCommon - 1, IsEnd);
  std::vector<OutRange> ranges;
  RangesOf(vocab.tiles(), 2 * DraftVocab::kNumCommon - 1, &ranges);
  ASSERT_EQ(ranges.size(), 1u);
  EXPECT_EQ(ranges[0].begin, 0);
  EXPECT_EQ(ranges[0].end, 2 * DraftVocab::kNumCommon - 1);
}

TEST(DraftVocab, RangesAndHiddenLogitsShareTheVocabulary) {
  DraftVocab vocab;
  vocab.Update(std::vector<TokenId>{16384, 16400, 60000, kVocab - 1}, kVocab, IsEnd);
  std::vector<OutRange> ranges;
  RangesOf(vocab.tiles(), kVocab, &ranges);
  std::vector<float> logits(kVocab, 7.0f);
  HideOthers(vocab.tiles(), kVocab, logits.data());
  size_t next = 0;
  const std::vector<int64_t> ids = IdsOf(ranges);
  for (int64_t id = 0; id < kVocab; ++id) {
    const bool in = next < ids.size() && ids[next] == id;
    next += in;
    EXPECT_EQ(vocab.Has(static_cast<TokenId>(id)), in) << id;
    ASSERT_EQ(logits[id], in ? 7.0f : -1e30f) << id;
  }
  EXPECT_EQ(next, ids.size());
  for (const OutRange& range : ranges) {
    EXPECT_EQ(range.begin % kOutTile, 0);
    EXPECT_TRUE(range.end % kOutTile == 0 || range.end == kVocab);
  }
}

}  // namespace
}  // namespace vericache
