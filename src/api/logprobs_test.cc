#include "api/logprobs.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace vericache {
namespace {

std::vector<float> RandomLogits(int64_t n, uint64_t seed, float scale) {
  std::vector<float> logits;
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    logits.push_back(scale * (static_cast<float>(seed >> 40) * 0x1p-23f - 1.0f));
  }
  return logits;
}

const KernelTable* Table(const char* isa) {
  const auto table = SelectKernels(isa);
  EXPECT_TRUE(table.ok()) << table.status();
  return *table;
}

TEST(Logprobs, AreThoseOfTheWholeRowOnEveryCpu) {
  for (const float scale : {1.0f, 20.0f, 3000.0f}) {
    for (const int64_t n : {1, 15, 16, 17, 1000, 32003}) {
      const std::vector<float> logits = RandomLogits(n, n, scale);
      double max = logits[0], sum = 0;
      for (const float z : logits) max = std::max<double>(max, z);
      for (const float z : logits) sum += std::exp(z - max);
      LogprobMaker scalar(Table("scalar"), n, n), fastest(Table(""), n, n);
      const PositionLogprobs got = scalar.Of(logits.data(), n / 2, 5);
      const double want = logits[n / 2] - max - std::log(sum);
      EXPECT_NEAR(got.chosen.logprob, want, 1e-5 * (1 + std::abs(want)));
      const PositionLogprobs again = fastest.Of(logits.data(), n / 2, 5);
      EXPECT_EQ(std::memcmp(&got.chosen, &again.chosen, sizeof(got.chosen)), 0);
      ASSERT_EQ(got.top.size(), static_cast<size_t>(std::min<int64_t>(n, 5)));
      for (size_t i = 0; i < got.top.size(); ++i)
        EXPECT_EQ(std::memcmp(&got.top[i], &again.top[i], sizeof(got.top[i])), 0);
    }
  }
}

// Case 49: rows of the output matrix behind the vocabulary have no probability.
TEST(Logprobs, Case49PaddingHasNoProbability) {
  std::vector<float> logits = {1, 2, 2, 50, 60};
  LogprobMaker maker(Table(""), 5, 3);
  const PositionLogprobs row = maker.Of(logits.data(), 0, 20);
  ASSERT_EQ(row.top.size(), 3u);
  EXPECT_EQ(row.top[0].id, 1);  // equal logits: by id
  EXPECT_EQ(row.top[1].id, 2);
  EXPECT_EQ(row.top[2].id, 0);
  EXPECT_NEAR(row.chosen.logprob, -1 - std::log(2 + std::exp(-1.0)), 1e-6);
  EXPECT_TRUE(maker.IsFinite(logits.data()));
  logits[4] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(maker.IsFinite(logits.data())) << "a bad row is bad wherever it is";
}

}  // namespace
}  // namespace vericache
