// Sampling with temperature: filters, noise and frequencies, against an oracle that sorts the whole
// vocabulary and draws noise for every id.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "gtest/gtest.h"
#include "kernels/kernel_test_util.h"

namespace vericache {
namespace {

// Bias, repetition, presence and frequency, temperature: what the filters see.
std::vector<float> AdjustedLogits(const SamplingParams& p, const std::vector<float>& logits,
                                  const std::vector<TokenId>& history, int64_t num_prompt) {
  std::vector<float> z = logits;
  for (const auto& [id, bias] : p.logit_bias) z[id] += bias;
  for (TokenId id = 0; id < static_cast<TokenId>(z.size()); ++id) {
    const int64_t seen = std::count(history.begin(), history.end(), id);
    const int64_t generated = std::count(history.begin() + num_prompt, history.end(), id);
    if (seen > 0) z[id] = z[id] > 0 ? z[id] / p.repetition_penalty : z[id] * p.repetition_penalty;
    if (generated > 0)
      z[id] -= p.presence_penalty + p.frequency_penalty * static_cast<float>(generated);
  }
  for (float& value : z) value /= p.temperature;
  return z;
}

// Survivors of top_k, top_p and min_p in order of (logit descending, id ascending); nothing if a
// cut is so close that the rounding of sums decides.
std::optional<std::vector<TokenId>> Survivors(const SamplingParams& p,
                                              const std::vector<float>& z) {
  std::vector<TokenId> order(z.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return z[a] > z[b]; });
  if (p.top_k > 0 && p.top_k < static_cast<int64_t>(order.size())) order.resize(p.top_k);
  const double max = z[order[0]];
  if (p.top_p < 1) {
    double total = 0, sum = 0;
    for (TokenId id : order) total += std::exp(z[id] - max);
    size_t kept = 0;
    while (kept < order.size()) {
      sum += std::exp(z[order[kept++]] - max);
      if (std::fabs(sum - p.top_p * total) < 1e-5 * total) return std::nullopt;
      if (sum >= p.top_p * total) break;
    }
    order.resize(kept);
  }
  std::vector<TokenId> out;
  for (TokenId id : order) {
    const double share = std::exp(z[id] - max);
    if (std::fabs(share - p.min_p) < 1e-5 * p.min_p && id != order[0]) return std::nullopt;
    if (share >= p.min_p) out.push_back(id);
  }
  return out;
}

TokenId NoisyArgmax(const SamplingParams& p, const std::vector<float>& z, std::vector<TokenId> ids,
                    int64_t pos) {
  std::sort(ids.begin(), ids.end());
  TokenId best = ids[0];
  double best_score = -1e300;
  for (TokenId id : ids) {
    const double score = z[id] + GumbelNoise(p.seed, p.choice, pos, id);
    if (score > best_score) {
      best = id;
      best_score = score;
    }
  }
  return best;
}

SamplingParams RandomParams(TestRandom* random, int64_t vocab) {
  SamplingParams p;
  const auto maybe = [&] { return random->Below(2) == 0; };
  p.temperature = 0.1f + static_cast<float>(random->Below(30)) * 0.1f;
  p.seed = random->Next();
  p.choice = static_cast<uint32_t>(random->Below(3));
  if (maybe()) p.top_k = random->Below(vocab + 5);
  if (maybe()) p.top_p = 0.05f + static_cast<float>(random->Below(95)) * 0.01f;
  if (maybe()) p.min_p = static_cast<float>(random->Below(100)) * 0.01f;
  if (maybe()) p.repetition_penalty = 0.5f + static_cast<float>(random->Below(20)) * 0.1f;
  if (maybe()) p.presence_penalty = random->Uniform(2);
  if (maybe()) p.frequency_penalty = random->Uniform(1);
  if (maybe())
    for (int i = 0; i < 3; ++i)
      p.logit_bias.emplace_back(static_cast<TokenId>(random->Below(vocab)), random->Uniform(4));
  return p;
}

TEST(SamplerFilters, ChooseWhatTheOracleChooses) {
  TestRandom random(1);
  int num_checked = 0, num_skipped = 0;
  for (int run = 0; run < 240; ++run) {
    const int64_t vocab = 1 + random.Below(run % 3 == 0 ? 300 : 20);
    const SamplingParams p = RandomParams(&random, vocab);
    std::vector<float> logits = random.Floats(vocab, 6.0f);
    if (run % 4 == 0)
      for (float& z : logits) z = std::round(z);  // ties
    std::vector<TokenId> history(random.Below(12));
    for (TokenId& id : history) id = static_cast<TokenId>(random.Below(vocab));
    const int64_t num_prompt = random.Below(static_cast<int64_t>(history.size()) + 1);
    const std::vector<float> z = AdjustedLogits(p, logits, history, num_prompt);
    const auto ids = Survivors(p, z);
    if (!ids.has_value()) {
      ++num_skipped;
      continue;
    }
    for (const KernelTable* table : AllKernelTables()) {
      Sampler sampler(p, vocab, vocab, table);
      for (int64_t pos = 0; pos < 30; ++pos) {
        const RowChoice choice = sampler.Choose(logits.data(), pos, history, num_prompt);
        ASSERT_FALSE(choice.bad);
        ASSERT_EQ(choice.id, NoisyArgmax(p, z, *ids, pos))
            << "run " << run << " pos " << pos << " " << table->name;
        ++num_checked;
      }
    }
  }
  EXPECT_GT(num_checked, 10000);
  EXPECT_LT(num_skipped, 60);
}

// All ids chosen at 2,000 positions.
std::vector<TokenId> Reachable(const SamplingParams& p, const std::vector<float>& logits) {
  Sampler sampler(p, logits.size(), logits.size(), &Judge());
  std::map<TokenId, int> counts;
  for (int64_t pos = 0; pos < 2000; ++pos) ++counts[sampler.Choose(logits.data(), pos, {}, 0).id];
  std::vector<TokenId> ids;
  for (const auto& [id, count] : counts) ids.push_back(id);
  return ids;
}

using Ids = std::vector<TokenId>;

TEST(SamplerFilters, TiesAtTheCutKeepTheLowerId) {
  SamplingParams p;
  p.temperature = 1;
  const std::vector<float> equal(10, 2.5f);
  p.top_k = 3;
  EXPECT_EQ(Reachable(p, equal), (Ids{0, 1, 2}));
  p.top_k = 0;
  p.top_p = 0.5f;
  EXPECT_EQ(Reachable(p, equal), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(Reachable(p, {0, 5, 5, 5, 5}), (Ids{1, 2, 3})) << "0.5 of 4 and a bit: the third too";
  p.top_p = 1;
  p.min_p = 1;
  EXPECT_EQ(Reachable(p, {1, 2, 1, 2}), (Ids{1, 3})) << "min_p 1 keeps all of the best";
}

TEST(SamplerFilters, LimitsThatSwitchOff) {
  SamplingParams p;
  p.temperature = 1;
  const std::vector<float> equal(5, 0.0f);
  const Ids all = {0, 1, 2, 3, 4};
  for (int64_t top_k : {int64_t{0}, int64_t{5}, int64_t{6}, int64_t{1} << 40}) {
    p.top_k = top_k;
    EXPECT_EQ(Reachable(p, equal), all) << "top_k " << top_k;
  }
  p = {};
  p.temperature = 1;
  p.top_p = 1e-6f;
  EXPECT_EQ(Reachable(p, equal), Ids{0}) << "one always stays";
  p.top_p = 1;
  p.top_k = 1;
  EXPECT_EQ(Reachable(p, {0, 1, 1}), Ids{1});
}

TEST(SamplerFilters, ComeInTheDocumentedOrder) {
  const auto logit = [](double probability) { return static_cast<float>(std::log(probability)); };
  const std::vector<float> logits = {logit(0.5), logit(0.2), logit(0.15), logit(0.1), logit(0.05)};
  SamplingParams p;
  p.temperature = 1;
  p.top_p = 0.69f;
  EXPECT_EQ(Reachable(p, logits), (Ids{0, 1}));
  // top_k first: of {0.5, 0.2} the best has 0.71.
  p.top_k = 2;
  EXPECT_EQ(Reachable(p, logits), Ids{0});
  // temperature first: flat enough, 0.69 takes four of five.
  p.top_k = 0;
  p.temperature = 50;
  EXPECT_EQ(Reachable(p, logits), (Ids{0, 1, 2, 3}));
  // min_p compares with the best after temperature: 0.2 / 0.5 = 0.4, its square 0.16.
  p = {};
  p.min_p = 0.29f;
  p.temperature = 1;
  EXPECT_EQ(Reachable(p, logits), (Ids{0, 1, 2})) << "0.15 / 0.5 is 0.3";
  p.temperature = 0.5f;
  EXPECT_EQ(Reachable(p, logits), Ids{0});
  // The bias moves an id before any filter sees it.
  p = {};
  p.temperature = 1;
  p.top_k = 1;
  p.logit_bias = {{4, 3.0f}};
  EXPECT_EQ(Reachable(p, logits), Ids{4});
}

// --- Noise ---------------------------------------------------------------------------------------

TEST(SamplerNoise, SeedsReproduceAndDiffer) {
  TestRandom random(2);
  const std::vector<float> logits = random.Floats(50, 1.0f);
  const auto text = [&](uint64_t seed, uint32_t choice) {
    SamplingParams p;
    p.temperature = 1;
    p.seed = seed;
    p.choice = choice;
    Ids ids;
    for (int64_t pos = 0; pos < 40; ++pos) {
      Sampler sampler(p, 50, 50, &Judge());  // no state is carried from one position to the next
      ids.push_back(sampler.Choose(logits.data(), pos, {}, 0).id);
    }
    return ids;
  };
  EXPECT_EQ(text(42, 0), text(42, 0));
  std::vector<Ids> all;
  for (uint64_t seed :
       {uint64_t{0}, uint64_t{42}, uint64_t{4294967295}, uint64_t{1} << 63, ~uint64_t{0}})
    for (uint32_t choice : {0u, 1u}) all.push_back(text(seed, choice));
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]);
}

// The order of calls does not show: drafting asks for positions again that verification repeats.
TEST(SamplerNoise, IsAFunctionOfThePosition) {
  TestRandom random(3);
  const std::vector<float> logits = random.Floats(64, 2.0f);
  SamplingParams p;
  p.temperature = 0.8f;
  p.top_p = 0.95f;
  Sampler forward(p, 64, 64, &Judge()), backward(p, 64, 64, &Judge());
  Ids a, b;
  for (int64_t pos = 0; pos < 50; ++pos) a.push_back(forward.Choose(logits.data(), pos, {}, 0).id);
  for (int64_t pos = 49; pos >= 0; --pos)
    b.push_back(backward.Choose(logits.data(), pos, {}, 0).id);
  std::reverse(b.begin(), b.end());
  EXPECT_EQ(a, b);
}

TEST(SamplerNoise, PruningNeverChangesTheChoice) {
  TestRandom random(4);
  for (int run = 0; run < 60; ++run) {
    const int64_t vocab = 1000;
    std::vector<float> logits = random.Floats(vocab, 2.0f + static_cast<float>(run) * 0.5f);
    SamplingParams p;
    p.temperature = run % 2 == 0 ? 1.0f : 3.0f;
    p.seed = random.Next();
    Ids all(vocab);
    std::iota(all.begin(), all.end(), 0);
    const std::vector<float> z = AdjustedLogits(p, logits, {}, 0);
    Sampler sampler(p, vocab, vocab, &Judge());
    for (int64_t pos = 0; pos < 5; ++pos)
      ASSERT_EQ(sampler.Choose(logits.data(), pos, {}, 0).id, NoisyArgmax(p, z, all, pos));
  }
}

// An unlikely id that wins by its noise alone: the largest among many, and only just.
TEST(SamplerNoise, PruningKeepsTheLuckiestId) {
  constexpr int64_t kVocab = 20000;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    TokenId lucky = 1;
    for (TokenId id = 1; id < kVocab; ++id)
      if (GumbelNoise(seed, 0, 9, id) > GumbelNoise(seed, 0, 9, lucky)) lucky = id;
    const double gap = GumbelNoise(seed, 0, 9, lucky) - GumbelNoise(seed, 0, 9, 0);
    EXPECT_GT(gap, 5);
    SamplingParams p;
    p.temperature = 1;
    p.seed = seed;
    std::vector<float> logits(kVocab, -100.0f);
    logits[0] = 0;
    logits[lucky] = static_cast<float>(-gap + 1e-3);
    Sampler sampler(p, kVocab, kVocab, &Judge());
    EXPECT_EQ(sampler.Choose(logits.data(), 9, {}, 0).id, lucky) << "gap " << gap;
    logits[lucky] = static_cast<float>(-gap - 1e-3);
    EXPECT_EQ(sampler.Choose(logits.data(), 9, {}, 0).id, 0);
  }
}

// Chi-square of `counts` against `probabilities`.
double ChiSquare(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  const int total = std::accumulate(counts.begin(), counts.end(), 0);
  double chi = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * total;
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0);
      continue;
    }
    chi += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return chi;
}

TEST(SamplerNoise, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, -2.0f, 1.5f, 0.2f};
  for (int variant = 0; variant < 4; ++variant) {
    SamplingParams p;
    p.temperature = variant == 1 ? 2.0f : 1.0f;
    if (variant == 2) p.top_k = 4;
    std::vector<double> probabilities(8);
    std::vector<float> sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    double sum = 0;
    for (int i = 0; i < 8; ++i)
      if (variant != 2 || logits[i] >= sorted[3])
        sum += probabilities[i] = std::exp(logits[i] / p.temperature);
    for (double& probability : probabilities) probability /= sum;
    std::vector<int> counts(8, 0);
    for (int i = 0; i < 20000; ++i) {
      // Over positions of one seed, and over seeds at one position.
      p.seed = variant == 3 ? static_cast<uint64_t>(i) : 17;
      Sampler sampler(p, 8, 8, &Judge());
      ++counts[sampler.Choose(logits.data(), variant == 3 ? 5 : i, {}, 0).id];
    }
    EXPECT_LT(ChiSquare(counts, probabilities), 24.3) << variant << ": 7 degrees, p = 0.001";
  }
}

}  // namespace
}  // namespace vericache
