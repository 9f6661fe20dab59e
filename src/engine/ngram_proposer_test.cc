#include "engine/ngram_proposer.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace vericache {
namespace {

uint64_t Next(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

// Looks at every earlier place of every end, longest end first, newest place first.
std::vector<TokenId> Slowly(const std::vector<TokenId>& tokens, const std::vector<TokenId>& tail,
                            int64_t max_tokens, const NgramOptions& options) {
  std::vector<TokenId> all = tokens;
  all.insert(all.end(), tail.begin(), tail.end());
  const int64_t size = std::ssize(all);
  std::vector<TokenId> proposal;
  for (int n = options.max_n; n >= options.min_n; --n) {
    // What is behind the place must be a known token and not a drafted one.
    for (int64_t next = std::ssize(tokens) - 1; next >= n; --next) {
      if (n > size || !std::equal(all.end() - n, all.end(), all.begin() + next - n)) continue;
      for (int64_t i = 0; i < max_tokens; ++i) {
        if (next + i >= size && !options.overlap) break;
        all.push_back(all[next + i]);
        proposal.push_back(all.back());
      }
      return proposal;
    }
  }
  return proposal;
}

TEST(NgramProposer, EqualsTheSlowOracle) {
  uint64_t state = 1;
  int64_t found = 0, nothing = 0;
  for (int cell = 0; cell < 300; ++cell) {
    NgramOptions options;
    options.min_n = 1 + static_cast<int>(Next(&state) % 3);
    options.max_n = options.min_n + static_cast<int>(Next(&state) % 4);
    options.overlap = Next(&state) % 2 == 0;
    NgramProposer proposer(options);
    const uint64_t vocab = 2 + Next(&state) % 40;
    std::vector<TokenId> tokens, tail, got;
    for (int step = 0; step < 60; ++step) {
      const int64_t more = Next(&state) % 9;
      for (int64_t i = 0; i < more; ++i) {
        const bool copies = tokens.size() > 20 && Next(&state) % 4 != 0;
        tokens.push_back(copies ? tokens[tokens.size() - 17]
                                : static_cast<TokenId>(Next(&state) % vocab));
      }
      tail.clear();
      for (uint64_t i = Next(&state) % 4; i > 0; --i)
        tail.push_back(static_cast<TokenId>(Next(&state) % vocab));
      const int64_t max_tokens = Next(&state) % 30;
      proposer.Update(tokens);
      proposer.Propose(tokens, tail, max_tokens, &got);
      ASSERT_EQ(got, Slowly(tokens, tail, max_tokens, options)) << "cell " << cell;
      ++(got.empty() ? nothing : found);
    }
  }
  EXPECT_GT(found, 3000);
  EXPECT_GT(nothing, 1000);
}

TEST(NgramProposer, RunsOnIntoItself) {
  NgramProposer proposer;
  std::vector<TokenId> got;
  const std::vector<TokenId> tokens = {9, 1, 2, 3, 1, 2, 3};
  proposer.Update(tokens);
  proposer.Propose(tokens, {}, 7, &got);
  EXPECT_EQ(got, (std::vector<TokenId>{1, 2, 3, 1, 2, 3, 1}));
}

// Extreme ids, of a caller's own prompt, are tokens like any other.
TEST(NgramProposer, AnyTokenIds) {
  NgramProposer proposer;
  std::vector<TokenId> got;
  const std::vector<TokenId> tokens = {2147483647, 0, 5, 2147483647, 0};
  proposer.Update(tokens);
  proposer.Propose(tokens, {}, 1, &got);
  EXPECT_EQ(got, (std::vector<TokenId>{5}));
  proposer.Update({});
  proposer.Propose({}, {}, 5, &got);
  EXPECT_TRUE(got.empty());
}

TEST(NgramProposer, MemoryIsBoundedAndTheNewestIsKept) {
  NgramOptions options;
  options.max_entries = 256;
  NgramProposer proposer(options);
  uint64_t state = 3;
  std::vector<TokenId> tokens, got;
  size_t most = 0;
  for (int i = 0; i < 20000; ++i) {
    tokens.push_back(static_cast<TokenId>(Next(&state) % 100000));
    proposer.Update(tokens);
    most = std::max(most, proposer.num_bytes());
    if (tokens.size() < 120) continue;
    // What stood a hundred tokens ago is still known.
    const std::vector<TokenId> end(tokens.end() - 100, tokens.end() - 96);
    proposer.Propose(tokens, end, 1, &got);
    ASSERT_EQ(got.size(), 1);
    ASSERT_EQ(got[0], tokens[tokens.size() - 96]);
  }
  EXPECT_LE(most, 3 * 8 * 256 * sizeof(uint32_t));
  // The first ones are forgotten.
  proposer.Propose(tokens, absl::MakeConstSpan(tokens).first(4), 1, &got);
  EXPECT_TRUE(got.empty());
}

// A text that was cut and goes on otherwise: every proposal is still something that followed.
TEST(NgramProposer, AnotherTextIsLearnedAnew) {
  NgramProposer proposer;
  uint64_t state = 5;
  std::vector<TokenId> tokens, got;
  for (int round = 0; round < 200; ++round) {
    const size_t keep = tokens.empty() ? 0 : Next(&state) % tokens.size();
    tokens.resize(keep);
    for (uint64_t i = 1 + Next(&state) % 60; i > 0; --i)
      tokens.push_back(static_cast<TokenId>(Next(&state) % 6));
    proposer.Update(tokens);
    proposer.Propose(tokens, {}, 3, &got);
    if (got.empty()) continue;
    std::vector<TokenId> want(tokens.end() - 2, tokens.end());
    want.push_back(got[0]);
    EXPECT_NE(std::search(tokens.begin(), tokens.end(), want.begin(), want.end()), tokens.end());
  }
}

}  // namespace
}  // namespace vericache
