#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "engine/philox.h"
#include "gtest/gtest.h"
#include "kernels/kernel_test_util.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace vericache {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One choice without history.
RowChoice ChooseOnce(const SamplingParams& params, const std::vector<float>& logits,
                     int64_t pos = 0, int64_t num_ids = -1) {
  const int64_t vocab = static_cast<int64_t>(logits.size());
  Sampler sampler(params, vocab, num_ids < 0 ? vocab : num_ids, &Judge());
  return sampler.Choose(logits.data(), pos, {}, 0);
}

SamplingParams AtTemperature(float temperature, uint64_t seed = 1) {
  SamplingParams params;
  params.temperature = temperature;
  params.seed = seed;
  return params;
}

// --- Random numbers ------------------------------------------------------------------------------

TEST(Philox, KnownAnswers) {  // Random123's kat_vectors, philox4x32 with 10 rounds
  using Four = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(GumbelNoise, IsMinusLogMinusLogOfTheCounter) {
  const uint64_t seed = 0x0123456789abcdef;
  for (TokenId id : {0, 1, 2, 3, 4, 1000003}) {
    for (int64_t pos : {int64_t{0}, int64_t{7}, (int64_t{3} << 32) + 5}) {
      const auto bits =
          Philox4x32({static_cast<uint32_t>(id) / 4, static_cast<uint32_t>(pos & 0xffffffff),
                      static_cast<uint32_t>(pos >> 32), 9},
                     {0x89abcdef, 0x01234567});
      const double u = ((bits[id % 4] >> 8) + 0.5) / 16777216.0;
      EXPECT_NEAR(GumbelNoise(seed, 9, pos, id), -std::log(-std::log(u)), 1e-12);
    }
  }
}

TEST(GumbelNoise, DependsOnSeedChoicePositionAndIdOnly) {
  std::set<double> values;
  size_t num_values = 0;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{0xffffffff}, uint64_t{1} << 32,
                        uint64_t{1} << 63, ~uint64_t{0}}) {  // cases.md 7
    for (uint32_t choice : {0u, 1u, 0xffffffffu}) {
      for (int64_t pos : {int64_t{0}, int64_t{1}, int64_t{1} << 32, (int64_t{1} << 32) + 1}) {
        for (TokenId id : {0, 1, 3, 4, 150000}) {
          const double noise = GumbelNoise(seed, choice, pos, id);
          EXPECT_EQ(noise, GumbelNoise(seed, choice, pos, id));
          values.insert(noise);
          ++num_values;
        }
      }
    }
  }
  // 24 bits: among 360 values a coincidence is unlikely, a forgotten argument makes many.
  EXPECT_GE(values.size(), num_values - 1);
}

TEST(GumbelNoise, HasTheGumbelDistribution) {
  double sum = 0, squares = 0, max = -100;
  constexpr int kDraws = 200000;
  for (int i = 0; i < kDraws; ++i) {
    const double noise = GumbelNoise(5, 0, i / 1000, i % 1000);
    sum += noise;
    squares += noise * noise;
    max = std::max(max, noise);
  }
  const double mean = sum / kDraws;
  EXPECT_NEAR(mean, 0.5772, 0.01);
  EXPECT_NEAR(squares / kDraws - mean * mean, 1.6449, 0.03);
  EXPECT_LT(max, 17.3288);
  // The largest value there is: pruning relies on it.
  const double largest = -ContractLog(-ContractLog((16777215 + 0.5) * 0x1p-24));
  EXPECT_LT(largest, 17.3288);
  EXPECT_GT(largest, 17.3286);
}

// --- Greedy --------------------------------------------------------------------------------------

TEST(Sampler, GreedyTakesTheLowestOfTheLargest) {
  EXPECT_EQ(ChooseOnce({}, {1, 3, 2, 3}).id, 1);
  EXPECT_EQ(ChooseOnce({}, {-5, -4, -4}).id, 1);
  EXPECT_EQ(ChooseOnce({}, {-0.0f, 0.0f}).id, 0) << "zeros are equal";
  EXPECT_EQ(ChooseOnce(AtTemperature(9e-6f), {1, 3, 2, 3}).id, 1) << "below the threshold";
  SamplingParams params;
  params.top_k = 1;
  params.top_p = 0.1f;
  params.min_p = 0.9f;
  params.seed = 77;
  EXPECT_EQ(ChooseOnce(params, {1, 3, 2, 3}).id, 1) << "filters and seed do not matter";
}

TEST(Sampler, RowsWithNanOrInfinityAreBad) {
  for (float bad : {kNan, kInf, -kInf}) {
    for (size_t at : {0, 3, 7}) {
      std::vector<float> logits(8, 1.0f);
      logits[at] = bad;
      for (float temperature : {0.0f, 1.0f}) {
        EXPECT_TRUE(ChooseOnce(AtTemperature(temperature), logits).bad);
        EXPECT_TRUE(ChooseOnce(AtTemperature(temperature), logits, 0, 2).bad)
            << "in a padded id as well: the row is not to be trusted";
        SamplingParams biased = AtTemperature(temperature);
        biased.logit_bias = {{static_cast<TokenId>(at), -1e6f}};
        EXPECT_TRUE(ChooseOnce(biased, logits).bad) << "a ban does not hide it";
      }
    }
  }
  EXPECT_FALSE(ChooseOnce({}, {3e38f, -3e38f, 1e-40f}).bad);
}

// cases.md 49: rows of the output matrix without a text are never chosen.
TEST(Sampler, PaddedIdsAreNeverChosen) {
  std::vector<float> logits(16, 0.0f);
  for (int id = 10; id < 16; ++id) logits[id] = 50.0f;
  logits[4] = 1.0f;
  EXPECT_EQ(ChooseOnce({}, logits, 0, 10).id, 4);
  SamplingParams penalised;
  penalised.frequency_penalty = 1;
  EXPECT_EQ(ChooseOnce(penalised, logits, 0, 10).id, 4);
  for (int64_t pos = 0; pos < 300; ++pos) {
    const RowChoice choice = ChooseOnce(AtTemperature(2.0f), logits, pos, 10);
    ASSERT_FALSE(choice.bad);
    ASSERT_LT(choice.id, 10);
  }
}

// --- Penalties -----------------------------------------------------------------------------------

// The choice after `history`, of which the first `num_prompt` are the prompt.
TokenId After(const SamplingParams& params, const std::vector<float>& logits,
              const std::vector<TokenId>& history, int64_t num_prompt) {
  Sampler sampler(params, logits.size(), logits.size(), &Judge());
  return sampler.Choose(logits.data(), history.size(), history, num_prompt).id;
}

TEST(Sampler, RepetitionPenaltyDividesOrMultiplies) {
  SamplingParams params;
  params.repetition_penalty = 2;
  EXPECT_EQ(After(params, {4, 3}, {0}, 0), 1) << "4 / 2 < 3";
  EXPECT_EQ(After(params, {4, 3}, {0}, 1), 1) << "prompt tokens count";
  EXPECT_EQ(After(params, {4, 1}, {0}, 0), 0);
  EXPECT_EQ(After(params, {4, 3}, {}, 0), 0);
  EXPECT_EQ(After(params, {-1, -1.5f}, {0}, 0), 1) << "-1 * 2 < -1.5";
  EXPECT_EQ(After(params, {4, 1.9f}, {0, 0, 0}, 0), 0) << "once, however often it came";
  params.repetition_penalty = 0.5f;
  EXPECT_EQ(After(params, {4, 3}, {1}, 0), 1) << "below 1 rewards";
}

TEST(Sampler, PresenceAndFrequencyCountGeneratedTokens) {
  SamplingParams presence;
  presence.presence_penalty = 1.5f;
  EXPECT_EQ(After(presence, {4, 3}, {0}, 0), 1);
  EXPECT_EQ(After(presence, {4, 3}, {0}, 1), 0) << "not those of the prompt";
  EXPECT_EQ(After(presence, {4, 2}, {0, 0, 0}, 0), 0) << "once";
  EXPECT_EQ(After(presence, {4, 3}, {0, 0}, 1), 1) << "in both: it was generated";
  SamplingParams frequency;
  frequency.frequency_penalty = 0.6f;
  EXPECT_EQ(After(frequency, {4, 3}, {0}, 0), 0);
  EXPECT_EQ(After(frequency, {4, 3}, {0, 0}, 0), 1) << "each time";
  EXPECT_EQ(After(frequency, {4, 3}, {0, 0}, 1), 0);
  frequency.frequency_penalty = -0.6f;
  EXPECT_EQ(After(frequency, {4, 3}, {1, 1}, 0), 1);
}

TEST(Sampler, BiasComesBeforeRepetition) {
  SamplingParams params;
  params.repetition_penalty = 2;
  params.logit_bias = {{0, 3.0f}};
  // (-2 + 3) / 2 is 0.5; the other way round, -2 * 2 + 3 would be -1.
  EXPECT_EQ(After(params, {-2, 0.4f, 0.6f}, {0}, 0), 2);
  EXPECT_EQ(After(params, {-2, 0.4f, 0.3f}, {0}, 0), 0);
  params.logit_bias = {{1, 1.0f}, {1, 1.0f}};
  EXPECT_EQ(After(params, {1.5f, 0}, {}, 0), 1) << "entries of one id add up";
}

TEST(Sampler, IgnoresHistoryAndBiasOutsideItsIds) {
  SamplingParams params;
  params.presence_penalty = 1;
  params.logit_bias = {{7, 100.0f}, {-1, 100.0f}, {1000000, 100.0f}};
  Sampler sampler(params, 8, 4, &Judge());
  const std::vector<float> logits = {1, 3, 2, 0, 9, 9, 9, 9};
  const std::vector<TokenId> history = {5, 7, -1, 1000000};
  EXPECT_EQ(sampler.Choose(logits.data(), 4, history, 0).id, 1);
}

TEST(Sampler, SaysWhetherItReadsHistory) {
  const auto needs = [](const SamplingParams& p) {
    return Sampler(p, 8, 8, &Judge()).NeedsHistory();
  };
  EXPECT_FALSE(needs({}));
  EXPECT_FALSE(needs(AtTemperature(1)));
  SamplingParams params;
  params.repetition_penalty = 1.1f;
  EXPECT_TRUE(needs(params));
  params = {};
  params.presence_penalty = -1;
  EXPECT_TRUE(needs(params));
  params = {};
  params.frequency_penalty = 1;
  EXPECT_TRUE(needs(params));
}

TEST(Sampler, BansByBias) {
  SamplingParams params;
  for (TokenId id = 0; id < 8; ++id)
    if (id != 5) params.logit_bias.emplace_back(id, -1e6f);
  std::vector<float> logits = {9, 8, 7, 6, 5, -4, 3, 2};
  EXPECT_EQ(ChooseOnce(params, logits).id, 5);
  params.temperature = 1;
  for (int64_t pos = 0; pos < 200; ++pos) EXPECT_EQ(ChooseOnce(params, logits, pos).id, 5);
}

// Finite logits near the limit of floats: scaling and penalties overflow. It once read id 0 of an
// empty list (min_p compares with NaN) and let -inf win over +inf.
TEST(Sampler, OverflowIsNoNan) {
  const std::vector<float> logits = {-3e38f, 1.0f, 3e38f, 2.9e38f};
  SamplingParams params = AtTemperature(0.01f);
  params.min_p = 0.5f;
  for (int64_t pos = 0; pos < 50; ++pos) {
    const RowChoice choice = ChooseOnce(params, logits, pos);
    ASSERT_FALSE(choice.bad);
    ASSERT_GE(choice.id, 2);
  }
  params.top_p = 0.9f;
  params.top_k = 3;
  EXPECT_GE(ChooseOnce(params, logits).id, 2);
  SamplingParams greedy;
  greedy.repetition_penalty = 1e-3f;
  EXPECT_EQ(After(greedy, logits, {2}, 0), 2) << "3e38 / 0.001 is the best, not no number";
  greedy.repetition_penalty = 1e3f;
  EXPECT_EQ(After(greedy, {-3e38f, -2e38f}, {0, 1}, 0), 0) << "both at the limit: the lower id";
}

// --- Parameters (cases.md 49, 50) ----------------------------------------------------------------

TEST(CheckSampling, TakesTheDocumentedRanges) {
  EXPECT_TRUE(CheckSampling({}, 100).ok());
  SamplingParams p;
  p.temperature = 100;
  p.top_k = 1000000000000;
  p.top_p = 1e-6f;
  p.min_p = 1;
  p.repetition_penalty = 1000;
  p.presence_penalty = -100;
  p.frequency_penalty = 100;
  p.seed = ~uint64_t{0};
  p.logit_bias = {{0, 1e6f}, {99, -1e6f}};
  EXPECT_TRUE(CheckSampling(p, 100).ok()) << CheckSampling(p, 100);
}

TEST(CheckSampling, NamesTheFieldAndItsRange) {
  const auto refused = [](const char* field, const auto& set, std::vector<float> values) {
    for (float value : values) {
      SamplingParams p;
      set(&p, value);
      const absl::Status status = CheckSampling(p, 100);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field << " " << value;
      EXPECT_EQ(status.message().find(field), 0u) << status;
      EXPECT_NE(status.message().find("expected"), std::string::npos) << status;
    }
  };
  refused("temperature", [](auto* p, float v) { p->temperature = v; },
          {-1, -1e-9f, 100.5f, 999999, kInf, kNan});
  refused("top_k", [](auto* p, float v) { p->top_k = static_cast<int64_t>(v); }, {-1, 9e18f});
  refused("top_p", [](auto* p, float v) { p->top_p = v; }, {-1, 0, 1.001f, kInf, kNan});
  refused("min_p", [](auto* p, float v) { p->min_p = v; }, {-1, -1e-9f, 1.001f, kInf, kNan});
  refused("repetition_penalty", [](auto* p, float v) { p->repetition_penalty = v; },
          {0, -1, 1e-5f, 1001, kInf, kNan});
  refused("presence_penalty", [](auto* p, float v) { p->presence_penalty = v; },
          {-101, 101, -kInf, kNan});
  refused("frequency_penalty", [](auto* p, float v) { p->frequency_penalty = v; },
          {-101, 101, kInf, kNan});
  refused("logit_bias value",
          [](auto* p, float v) {
            p->logit_bias = {{5, v}};
          },
          {-2e6f, 2e6f, kInf, -kInf, kNan});
  refused("logit_bias id",
          [](auto* p, float v) {
            p->logit_bias = {{1, 1.0f}, {static_cast<TokenId>(v), 0.0f}};
          },
          {-1, 100, 101, 2e9f});
}

#if defined(__x86_64__)
// A library built with fast-math flushes denormals in the whole process; the choice must not
// change.
TEST(Sampler, SetsItsOwnFloatingPointMode) {
  const std::vector<float> logits = {0.0f, 1e-40f, 0.0f};
  for (const KernelTable* table : AllKernelTables()) {
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | 0x8040);  // FTZ and DAZ
    Sampler sampler({}, 3, 3, table);
    const TokenId id = sampler.Choose(logits.data(), 0, {}, 0).id;
    const unsigned after = _mm_getcsr();
    _mm_setcsr(saved);
    EXPECT_EQ(id, 1) << table->name;
    EXPECT_EQ(after & 0x8040, 0x8040u) << "the caller's mode is put back";
  }
}
#endif

}  // namespace
}  // namespace vericache
