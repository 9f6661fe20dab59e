#include "scheduler/draft_controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace vericache {
namespace {

constexpr uint32_t kDraftKvOnly = ModeBit(DraftMode::kPlain) | ModeBit(DraftMode::kDraftKv);

RoundCosts Costs(double token_s, double verify_s, double row_s, double fetch_s = 0) {
  RoundCosts costs;
  costs.token_s.fill(token_s);
  costs.verify_s = verify_s;
  costs.row_s = row_s;
  costs.fetch_s = fetch_s;
  return costs;
}

RoundLimits Allow(uint32_t modes, int max_draft_len = kMaxDraftLen) {
  RoundLimits limits;
  limits.modes = modes;
  limits.max_draft_len = max_draft_len;
  return limits;
}

// Agreement by mode as a fixed period, not by chance: every n-th token of the text disagrees.
struct World {
  std::array<int, kNumDraftModes> period{};  // 0: never agrees; n: n - 1 of n agree
  std::array<double, kNumDraftModes> true_token_s{};
  int64_t text_pos = 0;

  // Runs the round the controller has planned; returns its seconds.
  double Run(DraftController* controller, const RoundCosts& costs) {
    const DraftChoice choice = controller->choice();
    const int mode = static_cast<int>(choice.mode);
    int drafted = 0;
    if (UsesDraftKv(choice.mode)) {
      while (controller->KeepDrafting()) {
        controller->OnDrafted(-1);
        ++drafted;
      }
    } else {
      drafted = choice.draft_len;
    }
    int accepted = 0;
    while (accepted < drafted && period[mode] > 0 &&
           (text_pos + accepted) % period[mode] != period[mode] - 1) {
      ++accepted;
    }
    const double seconds = costs.RoundSeconds(choice.mode, drafted);
    controller->OnRound({drafted, accepted, accepted + 1, seconds, costs.token_s[mode] * drafted,
                         costs.PlainSeconds()});
    text_pos += accepted + 1;
    return seconds;
  }
};

TEST(DraftController, NeverLosesMoreThanTheAccountAllows) {
  for (const double token_s : {0.1, 0.5, 1.0, 3.0}) {
    for (const double row_s : {0.0, 0.1, 1.0}) {
      for (const int period : {0, 2, 5}) {
        SharedAcceptance shared;
        ControllerOptions options;
        DraftController controller(options, &shared);
        World world;
        world.period.fill(period);
        const RoundCosts costs = Costs(token_s, 1.0, row_s);
        double spent_s = 0;
        while (world.text_pos < 500) {
          controller.Choose(costs, Allow((1u << kNumDraftModes) - 1));
          spent_s += world.Run(&controller, costs);
          const double plain_s = static_cast<double>(world.text_pos);
          // The first rounds of a mode measure it: two tokens, taken to cost no more than plain
          // ones. Where they do, that is lost once for each mode.
          const double first_s = 5 * 2 * std::max(0.0, token_s - 1);
          ASSERT_LE(spent_s,
                    (1 + options.max_loss) * plain_s + options.credit_tokens + first_s + 1e-6)
              << "token " << token_s << " row " << row_s << " period " << period;
        }
      }
    }
  }
}

TEST(DraftController, DraftsLongWhereThatPays) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  World world;
  world.period.fill(200);
  const RoundCosts costs = Costs(0.1, 1.0, 0.02);
  double spent_s = 0;
  while (world.text_pos < 2000) {
    controller.Choose(costs, Allow(kDraftKvOnly));
    spent_s += world.Run(&controller, costs);
  }
  EXPECT_GT(2000 / spent_s, 5.5);  // a token costs 0.12 at best, plain decoding 1
  EXPECT_EQ(controller.choice().mode, DraftMode::kDraftKv);
  EXPECT_GT(controller.choice().draft_len, 20);
}

// Drafts that nearly always agree pay, unless choosing the draft KV anew eats the gain: then the
// price is the draft KV's alone, and a look-up that agrees as well is taken.
TEST(DraftController, ChoosingAnewIsADraftKvRoundsOwnPrice) {
  const uint32_t modes = kDraftKvOnly | ModeBit(DraftMode::kNgram);
  for (const double choose_s : {0.0, 20.0}) {
    SharedAcceptance shared;
    DraftController controller({}, &shared);
    World world;
    world.period.fill(8);
    RoundCosts costs = Costs(0.2, 1.0, 0.2);
    costs.token_s[static_cast<int>(DraftMode::kNgram)] = 0.25;
    costs.choose_s = choose_s;
    while (world.text_pos < 600) {
      controller.Choose(costs, Allow(modes));
      world.Run(&controller, costs);
    }
    controller.Choose(costs, Allow(modes));
    const DraftMode best = choose_s > 0 ? DraftMode::kNgram : DraftMode::kDraftKv;
    const auto& rates = controller.choice().mode_tokens_per_s;
    EXPECT_EQ(*std::max_element(rates.begin(), rates.end()), rates[static_cast<int>(best)])
        << choose_s;
    EXPECT_GT(rates[static_cast<int>(best)], rates[0]) << choose_s;
    EXPECT_DOUBLE_EQ(costs.PlainSeconds(), 1.0);
  }
}

TEST(DraftController, FallsBackToPlainDecodingAndProbesNowAndThen) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  World world;  // nothing ever agrees
  const RoundCosts costs = Costs(0.3, 1.0, 0.1);
  int num_plain = 0, num_probes = 0;
  for (int i = 0; i < 2000; ++i) {
    const DraftChoice& choice = controller.Choose(costs, Allow(kDraftKvOnly));
    num_plain += choice.mode == DraftMode::kPlain;
    num_probes += choice.reason == ChoiceReason::kProbe;
    world.Run(&controller, costs);
  }
  EXPECT_GT(num_plain, 1900);
  EXPECT_GT(num_probes, 2);
  EXPECT_LT(controller.spent_s(), 1.02 * controller.plain_s());
}

TEST(DraftController, FindsTheModeThatHasBecomeGood) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  World world;
  const RoundCosts costs = Costs(0.1, 1.0, 0.02);
  const uint32_t modes = kDraftKvOnly | ModeBit(DraftMode::kNgram);
  world.period[1] = 4;
  for (int i = 0; i < 300; ++i) {
    controller.Choose(costs, Allow(modes));
    world.Run(&controller, costs);
  }
  EXPECT_EQ(controller.choice().mode, DraftMode::kDraftKv);
  world.period[2] = 100;  // the text now repeats the prompt
  for (int i = 0; i < 600; ++i) {
    controller.Choose(costs, Allow(modes));
    world.Run(&controller, costs);
  }
  EXPECT_EQ(controller.choice().mode, DraftMode::kNgram);
}

// A look-up that finds something every third time and is right then: worth asking, and the rounds
// in which it finds nothing say nothing about how long its drafts should be.
TEST(DraftController, LooksUpEvenIfItOftenFindsNothing) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  const RoundCosts costs = Costs(0.1, 1.0, 0.05);
  int num_lookups = 0, num_found = 0, longest = 0;
  for (int i = 0; i < 300; ++i) {
    const DraftChoice choice = controller.Choose(costs, Allow(ModeBit(DraftMode::kNgram)));
    RoundOutcome outcome;
    if (choice.mode == DraftMode::kNgram && ++num_lookups % 3 == 0) {
      outcome.num_drafted = outcome.num_accepted = choice.draft_len;
      longest = std::max(longest, choice.draft_len);
      ++num_found;
    }
    outcome.num_emitted = outcome.num_accepted + 1;
    outcome.plain_step_s = costs.PlainSeconds();
    outcome.seconds = costs.RoundSeconds(choice.mode, outcome.num_drafted);
    controller.OnRound(outcome);
  }
  EXPECT_GT(num_lookups, 250);
  EXPECT_GT(num_found, 80);
  EXPECT_GE(longest, 16);
  EXPECT_LT(controller.spent_s(), 0.7 * controller.plain_s());
}

// The expectation counts the rounds in which nothing is found: one in four has a draft, of which
// all is right.
TEST(DraftController, ExpectsWhatLookUpsFind) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  const RoundCosts costs = Costs(0, 1.0, 0.05);
  RoundLimits limits = Allow(ModeBit(DraftMode::kNgram));
  limits.fixed_draft_len = 8;
  int num_lookups = 0;
  for (int i = 0; i < 400; ++i) {
    const DraftChoice choice = controller.Choose(costs, limits);
    RoundOutcome outcome;
    if (choice.mode == DraftMode::kNgram && ++num_lookups % 4 == 0)
      outcome.num_drafted = outcome.num_accepted = choice.draft_len;
    outcome.num_emitted = outcome.num_accepted + 1;
    outcome.plain_step_s = costs.PlainSeconds();
    outcome.seconds = costs.RoundSeconds(choice.mode, outcome.num_drafted);
    controller.OnRound(outcome);
  }
  const DraftChoice choice = controller.Choose(costs, limits);
  ASSERT_EQ(choice.mode, DraftMode::kNgram);
  EXPECT_GT(choice.expected_emitted, 2);  // 9 in a quarter of the rounds, 1 in the others: 3
  EXPECT_LT(choice.expected_emitted, 4);
}

// Rows are dear and nothing is found for long: it goes on asking, as asking costs nothing, and
// notices when the text begins to repeat itself.
TEST(DraftController, GoesOnLookingUpWhereItCostsNothing) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  const RoundCosts costs = Costs(0, 1.0, 0.6);
  int num_tried = 0, num_lookups = 0;
  for (int i = 0; i < 500; ++i) {
    const DraftChoice choice = controller.Choose(costs, Allow(ModeBit(DraftMode::kNgram)));
    RoundOutcome outcome;
    num_tried += choice.mode == DraftMode::kNgram && i < 300;
    if (choice.mode == DraftMode::kNgram && i >= 300) {
      outcome.num_drafted = outcome.num_accepted = choice.draft_len;
      ++num_lookups;
    }
    outcome.num_emitted = outcome.num_accepted + 1;
    outcome.plain_step_s = costs.PlainSeconds();
    outcome.seconds = costs.RoundSeconds(choice.mode, outcome.num_drafted);
    controller.OnRound(outcome);
  }
  EXPECT_GT(num_tried, 20);
  EXPECT_GT(num_lookups, 100);
}

// The costs of rows are a guess that rules look-up out until it has run once, and at first there is
// nothing to find.
TEST(DraftController, AsksAgainUntilCostsAreMeasured) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  int num_found = 0;
  for (int i = 0; i < 200; ++i) {
    const RoundCosts costs = Costs(0, 1.0, num_found > 0 ? 0.1 : 1.0);
    const DraftChoice choice = controller.Choose(costs, Allow(ModeBit(DraftMode::kNgram)));
    RoundOutcome outcome;
    if (choice.mode == DraftMode::kNgram && i >= 50) {
      outcome.num_drafted = outcome.num_accepted = choice.draft_len;
      ++num_found;
    }
    outcome.num_emitted = outcome.num_accepted + 1;
    outcome.plain_step_s = 1.0;
    outcome.seconds = 1.0 + 0.1 * outcome.num_drafted;
    controller.OnRound(outcome);
  }
  EXPECT_GT(num_found, 100);
}

// Nothing is ever found: that costs nothing, and other modes are not kept from their turn.
TEST(DraftController, AnEmptyLookUpIsNotTriedForEver) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  World world;
  world.period[1] = 50;
  const RoundCosts costs = Costs(0.1, 1.0, 0.02);
  int num_lookups = 0;
  for (int i = 0; i < 300; ++i) {
    const DraftChoice choice =
        controller.Choose(costs, Allow(kDraftKvOnly | ModeBit(DraftMode::kNgram)));
    if (choice.mode != DraftMode::kNgram) {
      world.Run(&controller, costs);
      continue;
    }
    ++num_lookups;
    RoundOutcome outcome;
    outcome.num_emitted = 1;
    outcome.seconds = outcome.plain_step_s = costs.PlainSeconds();
    controller.OnRound(outcome);
  }
  EXPECT_GE(num_lookups, 1);
  EXPECT_LT(num_lookups, 30);
}

TEST(DraftController, SmallGainsDoNotMakeItSwitch) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  World world;
  world.period.fill(20);
  RoundCosts costs = Costs(0.1, 1.0, 0.02);
  const uint32_t modes = kDraftKvOnly | ModeBit(DraftMode::kDraftModel);
  for (int i = 0; i < 200; ++i) {
    controller.Choose(costs, Allow(modes));
    world.Run(&controller, costs);
  }
  const DraftMode settled = controller.choice().mode;
  int num_switches = 0;
  for (int i = 0; i < 200; ++i) {
    costs.token_s[1] = i % 2 == 0 ? 0.1 : 0.101;
    costs.token_s[3] = i % 2 == 0 ? 0.101 : 0.1;
    const DraftChoice& choice = controller.Choose(costs, Allow(modes));
    num_switches += choice.mode != settled && choice.reason != ChoiceReason::kProbe;
    world.Run(&controller, costs);
  }
  EXPECT_EQ(num_switches, 0);
}

TEST(DraftController, KeepsToTheLimits) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  World world;
  world.period.fill(100);
  const RoundCosts costs = Costs(0.01, 1.0, 0.001);
  for (int i = 0; i < 300; ++i) {
    const int max_len = i % 9;
    const DraftChoice& choice = controller.Choose(costs, Allow(kDraftKvOnly, max_len));
    EXPECT_LE(choice.draft_len, max_len);
    EXPECT_EQ(choice.draft_len == 0, choice.mode == DraftMode::kPlain);
    world.Run(&controller, costs);
  }
  const DraftChoice& choice = controller.Choose(costs, Allow(ModeBit(DraftMode::kPlain)));
  EXPECT_EQ(choice.mode, DraftMode::kPlain);
  EXPECT_EQ(choice.reason, ChoiceReason::kNoDraft);
}

TEST(DraftController, AFixedLengthIsKeptWhateverHappens) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  World world;  // nothing ever agrees
  RoundLimits limits = Allow(kDraftKvOnly);
  limits.fixed_draft_len = 7;
  for (int i = 0; i < 50; ++i) {
    const DraftChoice& choice = controller.Choose(Costs(1, 1, 1), limits);
    EXPECT_EQ(choice.draft_len, 7);
    EXPECT_EQ(choice.reason, ChoiceReason::kFixed);
    world.Run(&controller, Costs(1, 1, 1));
    EXPECT_EQ(controller.num_drafted(), 7);
  }
  limits.fixed_draft_len = 0;
  EXPECT_EQ(controller.Choose(Costs(1, 1, 1), limits).mode, DraftMode::kPlain);
}

TEST(DraftController, LowConfidenceEndsADraft) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  World world;
  world.period.fill(50);
  const RoundCosts costs = Costs(0.2, 1.0, 0.05);
  for (int i = 0; i < 100; ++i) {
    controller.Choose(costs, Allow(kDraftKvOnly));
    world.Run(&controller, costs);
  }
  for (int i = 0; i < 200; ++i) {
    shared.ObserveConfidence(DraftMode::kDraftKv, 0.05, false);
    shared.ObserveConfidence(DraftMode::kDraftKv, 0.95, true);
  }
  controller.Choose(costs, Allow(kDraftKvOnly));
  while (controller.choice().draft_len < 8) {
    world.Run(&controller, costs);
    controller.Choose(costs, Allow(kDraftKvOnly));
  }
  controller.OnDrafted(0.95);
  EXPECT_TRUE(controller.KeepDrafting());
  controller.OnDrafted(0.05);
  EXPECT_FALSE(controller.KeepDrafting());
}

TEST(DraftController, WhereTheTransferIsThePriceLowConfidenceCostsNothing) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  RoundCosts costs = Costs(0.01, 0.1, 0.001, /*fetch_s=*/10);
  costs.alone = false;  // others keep the machine busy: a round takes its transfer
  const DraftChoice& choice = controller.Choose(costs, Allow(kDraftKvOnly));
  ASSERT_GT(choice.draft_len, 2);
  controller.OnDrafted(0.3);
  EXPECT_TRUE(controller.KeepDrafting());
}

TEST(DraftController, ExplainsItself) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  World world;
  world.period.fill(10);
  const RoundCosts costs = Costs(0.1, 1.0, 0.05);
  for (int i = 0; i < 50; ++i) {
    controller.Choose(costs, Allow(kDraftKvOnly));
    world.Run(&controller, costs);
  }
  const DraftChoice& choice = controller.Choose(costs, Allow(kDraftKvOnly));
  EXPECT_NEAR(choice.tokens_per_s, choice.expected_emitted / choice.round_s, 1e-9);
  EXPECT_NEAR(choice.round_s, costs.RoundSeconds(choice.mode, choice.draft_len), 1e-6);
  EXPECT_DOUBLE_EQ(choice.plain_tokens_per_s, 1.0);
  EXPECT_NEAR(choice.agreement, 0.93, 0.07);
  EXPECT_LT(choice.loss_s, 0);  // it has gained
  EXPECT_GT(choice.mode_tokens_per_s[1], choice.mode_tokens_per_s[0]);
  EXPECT_STREQ(DraftModeName(choice.mode), "draft-kv");
  EXPECT_STREQ(ChoiceReasonName(choice.reason), "fastest");
}

// Another process takes the machine during one round: drafting must not stay forbidden for it.
TEST(DraftController, OneSlowPassIsForgiven) {
  for (const double slow : {10.0, 1000.0}) {
    SharedAcceptance shared;
    DraftController controller({}, &shared);
    const RoundCosts costs = Costs(0.002, 0.02, 0.001);
    World world;
    world.period[static_cast<int>(DraftMode::kDraftKv)] = 1000;
    for (int round = 0; round < 20; ++round) {
      controller.Choose(costs, Allow(kDraftKvOnly));
      world.Run(&controller, costs);
    }
    const DraftChoice choice = controller.Choose(costs, Allow(kDraftKvOnly));
    ASSERT_EQ(choice.mode, DraftMode::kDraftKv);
    const int len = choice.draft_len;
    controller.OnRound({len, len, len + 1, slow * choice.round_s, slow * 0.002 * len, 0.02});
    int drafted = 0;
    for (int round = 0; round < 20; ++round) {
      drafted += controller.Choose(costs, Allow(kDraftKvOnly)).mode == DraftMode::kDraftKv;
      world.Run(&controller, costs);
    }
    EXPECT_GT(drafted, 15) << slow;
  }
}

// A plain round is what the account compares with: however slow, it is no loss.
TEST(DraftController, SlowPlainRoundsAreNoLoss) {
  SharedAcceptance shared;
  DraftController controller({}, &shared);
  const RoundCosts costs = Costs(0.05, 0.02, 0.02);  // drafting never pays
  for (int round = 0; round < 50; ++round) {
    const DraftChoice choice = controller.Choose(costs, Allow(kDraftKvOnly));
    if (choice.mode != DraftMode::kPlain) {
      controller.OnRound({choice.draft_len, 0, 1, choice.round_s, 0.05, 0.02});
      continue;
    }
    const double spent = controller.spent_s(), plain = controller.plain_s();
    controller.OnRound({0, 0, 1, 0.2, 0, 0.02});
    EXPECT_NEAR(controller.spent_s() - spent, controller.plain_s() - plain, 1e-12);
  }
}

}  // namespace
}  // namespace vericache
