#include "engine/lookup_run.h"

#include <vector>

#include "base/split_mix.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

std::vector<TokenId> RandomTokens(int64_t count, uint64_t seed) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>(NextSplitMix(&seed) % 50000));
  return tokens;
}

TEST(LookupRun, ACopyGoesInWholeDrafts) {
  std::vector<TokenId> tokens = RandomTokens(400, 1);
  const int64_t num_prompt = std::ssize(tokens);
  for (int i = 0; i < 100; ++i) tokens.push_back(tokens[50 + i]);
  const LookupRun run = ReplayLookup(tokens, num_prompt, 8);
  EXPECT_EQ(run.tokens, 100);
  // Two tokens until the place is known, then nine a round.
  EXPECT_EQ(run.rounds, 2 + (98 + 8) / 9);
}

TEST(LookupRun, NewTextGoesTokenByToken) {
  const std::vector<TokenId> tokens = RandomTokens(300, 2);
  const LookupRun run = ReplayLookup(tokens, 200, 8);
  EXPECT_EQ(run.tokens, 100);
  EXPECT_EQ(run.rounds, 100);
}

TEST(LookupRun, ItEndsWithTheText) {
  std::vector<TokenId> tokens = RandomTokens(40, 3);
  EXPECT_EQ(ReplayLookup(tokens, 40, 8).rounds, 0);
  for (int i = 0; i < 5; ++i) tokens.push_back(tokens[10 + i]);
  EXPECT_EQ(ReplayLookup(tokens, 40, 64).tokens, 5);
  EXPECT_EQ(ReplayLookup(tokens, 40, 64).rounds, 3);
  EXPECT_EQ(ReplayLookup(tokens, 0, 64).tokens, 45);
  // Far behind the window.
  std::vector<TokenId> far = RandomTokens(40000, 4);
  for (int i = 0; i < 20; ++i) far.push_back(far[100 + i]);
  EXPECT_EQ(ReplayLookup(far, 40000, 8).rounds, 20);
}

}  // namespace
}  // namespace vericache
