#include "scheduler/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace vericache {
namespace {

// A machine the model's terms cannot copy: the larger of two limits, twice.
double MachineSeconds(const PassShape& shape) {
  const double weights_s = std::max(0.02, 0.0015 * shape.num_rows + 0.0012 * shape.logit_rows);
  const double kv_s = std::max(0.6e-6 * shape.full_tokens, 0.9e-6 * shape.attention);
  return 0.0005 + weights_s + kv_s + 1e-10 * shape.draft_bytes;
}

PassShape Draft(int rows) {
  PassShape shape;
  for (int i = 0; i < rows; ++i) shape.AddDraft(1, 9000000);
  return shape;
}

PassShape Verify(int rows, int64_t context) {
  PassShape shape;
  shape.AddFull(rows, context, rows);
  return shape;
}

PassShape Prefill(int rows, int64_t context) {
  PassShape shape;
  shape.AddFull(rows, context, 0);
  return shape;
}

void Teach(CostModel* model, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    for (const int rows : {1, 2, 4}) model->ObservePass(Draft(rows), MachineSeconds(Draft(rows)));
    const int64_t context = 8000 + 37 * i;
    for (const int rows : {1, 9, 17, 33}) {
      model->ObservePass(Verify(rows, context), MachineSeconds(Verify(rows, context)));
    }
    model->ObservePass(Prefill(128, 4000), MachineSeconds(Prefill(128, 4000)));
  }
}

TEST(CostModel, PredictsPassesItHasNotSeenWithin15Percent) {
  CostModel model(PassGuess::Of(1.0), 1e9);  // a first guess 50 times too high
  Teach(&model, 20);
  for (const PassShape& shape :
       {Draft(3), Verify(5, 9000), Verify(25, 8500), Verify(17, 12000), Prefill(100, 4500)}) {
    EXPECT_NEAR(model.PassSeconds(shape) / MachineSeconds(shape), 1, 0.15)
        << shape.num_rows << " rows";
  }
  EXPECT_LT(model.relative_error(), 0.15);
}

TEST(CostModel, OnePassOfEachKindIsEnoughToTellDraftFromPlain) {
  CostModel model(PassGuess::Of(0.02), 1e9);
  for (int i = 0; i < 3; ++i) model.ObservePass(Verify(1, 16000), 0.1);
  model.ObservePass(Draft(1), 0.025);
  model.ObservePass(Verify(3, 16000), 0.1);
  EXPECT_NEAR(model.PassSeconds(Draft(1)), 0.025, 0.0025);
  EXPECT_NEAR(model.PassSeconds(Verify(1, 16000)), 0.1, 0.01);
  EXPECT_NEAR(model.PassSeconds(Verify(3, 16000)), 0.1, 0.01);
}

// Four requests that only draft and verify: what plain steps would cost has to come out of rounds
// that choose their draft KV anew, on a machine half as fast as the guess and noisy.
TEST(CostModel, RoundsTellWhatPlainStepsCost) {
  PassGuess guess;
  guess.pass_s = 0.008;
  guess.output_s = 0.004;
  guess.row_s = 1e-3;
  guess.logit_row_s = 3e-4;
  guess.full_token_s = 1e-8;
  guess.attention_s = 4e-7;
  guess.draft_byte_s = 1e-10;
  guess.chosen_token_s = 6e-7;
  const auto machine = [](const PassShape& s) {
    return 2 * (0.012 + 1e-3 * s.num_rows + 3e-4 * s.logit_rows + 4.5e-7 * s.attention +
                8e-7 * s.chosen_tokens + 1e-10 * s.draft_bytes);
  };
  CostModel model(guess, 1e9);
  constexpr double kNoise[] = {0.95, 1.12, 1.0, 0.9, 1.3, 1.02, 0.97};
  for (int i = 0; i < 40; ++i) {
    PassShape shape;
    for (int request = 0; request < 4; ++request) {
      if ((i + request) % 3 != 0) {
        shape.AddDraft(1, 6000000);
        continue;
      }
      shape.AddFull(8 + (5 * i + request) % 9, 16000, 8);
      shape.chosen_tokens += 16000;
    }
    model.ObservePass(shape, machine(shape) * kNoise[i % 7]);
  }
  PassShape plain;
  for (int request = 0; request < 4; ++request) plain.AddFull(1, 16000, 1);
  EXPECT_NEAR(model.PassSeconds(plain) / machine(plain), 1, 0.25);
  PassShape chosen;
  chosen.chosen_tokens = 16000;
  EXPECT_NEAR(model.ExtraSeconds(plain, chosen) / machine(chosen), 0.5, 0.3);
}

TEST(CostModel, APausedMachineDoesNotSpoilIt) {
  CostModel model(PassGuess::Of(0.02), 1e9);
  Teach(&model, 10);
  const double before_s = model.PassSeconds(Verify(17, 8200));
  model.ObservePass(Verify(17, 8200), 30.0);
  model.ObservePass(Draft(1), 10.0);
  EXPECT_NEAR(model.PassSeconds(Verify(17, 8200)) / before_s, 1, 0.02);
  EXPECT_NEAR(model.PassSeconds(Draft(1)) / MachineSeconds(Draft(1)), 1, 0.15);
}

// Relative errors make a long outlier light and a short one heavy: this is the one that needs care.
TEST(CostModel, APassMeasuredFarTooShortDoesNotSpoilIt) {
  CostModel model(PassGuess::Of(0.02), 1e9);
  Teach(&model, 10);
  model.ObservePass(Verify(17, 8200), MachineSeconds(Verify(17, 8200)) / 30);
  EXPECT_NEAR(model.PassSeconds(Verify(17, 8200)) / MachineSeconds(Verify(17, 8200)), 1, 0.2);
  EXPECT_NEAR(model.PassSeconds(Draft(1)) / MachineSeconds(Draft(1)), 1, 0.2);
}

TEST(CostModel, FollowsAMachineThatBecomesSlower) {
  CostModel model(PassGuess::Of(0.02), 1e9);
  Teach(&model, 10);
  for (int i = 0; i < 600; ++i) {
    model.ObservePass(Draft(1), 2 * MachineSeconds(Draft(1)));
    model.ObservePass(Verify(17, 8200), 2 * MachineSeconds(Verify(17, 8200)));
  }
  EXPECT_NEAR(model.PassSeconds(Draft(1)) / MachineSeconds(Draft(1)), 2, 0.2);
}

TEST(CostModel, MoreWorkNeverCostsLess) {
  CostModel model(PassGuess::Of(0.02), 1e9);
  Teach(&model, 5);
  double last_s = 0;
  for (int rows = 1; rows < 300; ++rows) {
    const double now_s = model.PassSeconds(Verify(rows, 8000));
    EXPECT_GE(now_s, last_s);
    last_s = now_s;
  }
  EXPECT_GE(model.ExtraSeconds(Draft(2), Verify(4, 100)), 0);
}

TEST(CostModel, LinkSpeedIsMeasured) {
  CostModel model(PassGuess::Of(0.02), 1e9);
  EXPECT_DOUBLE_EQ(model.FetchSeconds(1000000000), 1.0);
  EXPECT_EQ(model.FetchSeconds(0), 0);
  for (int i = 0; i < 30; ++i) model.ObserveFetch(100000000, 1.0);
  EXPECT_NEAR(model.link_bytes_per_s(), 1e8, 1);
}

TEST(CostModel, IgnoresWhatIsNoMeasurement) {
  CostModel model(PassGuess::Of(0.02), 1e9);
  Teach(&model, 3);
  const double before_s = model.PassSeconds(Draft(1));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()}) {
    model.ObservePass(Draft(1), bad);
    model.ObserveFetch(100, bad);
  }
  model.ObservePass(PassShape{}, 1.0);
  model.ObserveFetch(0, 1.0);
  EXPECT_EQ(model.PassSeconds(Draft(1)), before_s);
  EXPECT_DOUBLE_EQ(model.link_bytes_per_s(), 1e9);
}

// With cold caches the first pass says nothing about the next; without, it is learned at once.
TEST(CostModel, AColdFirstPassIsNotBelieved) {
  PassShape shape;
  shape.AddFull(1, 1000, 1);
  CostModel cold(PassGuess::Of(0.02), 1e9);
  const double guess = cold.PassSeconds(shape);
  cold.ObservePass(shape, 10 * guess);
  EXPECT_DOUBLE_EQ(cold.PassSeconds(shape), guess);
  cold.ObservePass(shape, 10 * guess);  // the second one is no accident
  EXPECT_GT(cold.PassSeconds(shape), 5 * guess);

  CostModel warm(PassGuess::Of(0.02), 1e9);
  warm.ObservePass(shape, 1.8 * guess);
  EXPECT_NEAR(warm.PassSeconds(shape), 1.8 * guess, 0.1 * guess);
}

}  // namespace
}  // namespace vericache
