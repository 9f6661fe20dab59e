// A replay tells the rounds that real drafting and verification have, one by one, for every kind of
// draft KV but `verify`, of which it tells about as many; and recording an answer gives the K/V
// that decoding it gave.
#include "engine/replay.h"

#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "engine/scorers.h"
#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"

namespace vericache {
namespace {

TinyModelOptions Model(const std::string& architecture) {
  TinyModelOptions options;
  options.architecture = architecture;
  options.type = TensorType::kQ5_0;
  options.vocab_size = 160;
  options.seed = 5;
  return options;
}

// Rounds of real decoding: tokens emitted by each.
std::vector<int> RealRounds(Harness* harness, const RunTask& task, const RunKnobs& knobs,
                            std::vector<TokenId>* tokens) {
  auto s = harness->MakeSequence(task, knobs);
  Prefill prefill(&harness->model(), &harness->forward(), &harness->pool());
  EXPECT_TRUE(prefill.Run(s.get(), {}).ok());
  RoundRunner rounds(&harness->model(), &harness->forward(), &harness->pool());
  Sequence* one = s.get();
  while (!one->done()) rounds.Run({&one, 1});
  std::vector<int> emitted;
  for (const RoundStats& round : one->rounds) emitted.push_back(round.emitted);
  *tokens = one->tokens;
  return emitted;
}

ReplayedRounds Replay(Harness* harness, const RunTask& task, const RunKnobs& knobs,
                      const std::vector<TokenId>& tokens) {
  auto s = harness->MakeSequence(task, knobs);
  Prefill prefill(&harness->model(), &harness->forward(), &harness->pool());
  EXPECT_TRUE(prefill.Compute(s.get(), {}).ok());
  EXPECT_TRUE(prefill.ScorePrompt(s.get(), {}).ok());
  DraftReplay replay(&harness->model(), &harness->forward(), &harness->pool());
  const auto answer = replay.Record(*s, tokens, 32, {});
  EXPECT_TRUE(answer.ok());
  const auto rounds = replay.Run(*answer, knobs.draft_len, s.get(), nullptr);
  EXPECT_TRUE(rounds.ok());
  return *rounds;
}

bool ChoosesInThePass(std::string_view spec) {
  return spec.starts_with("verify") && spec.find("vegas") == spec.npos;
}

void CheckSpec(Harness* harness, const char* spec, float temperature) {
  SCOPED_TRACE(spec);
  RunTask task;
  task.prompt = RandomPrompt(330, 160, 9);
  task.max_tokens = 90;
  task.eos = 17;
  task.sampling.temperature = temperature;
  task.sampling.seed = 3;
  for (int draft_len : {1, 7, 40}) {
    RunKnobs knobs;
    knobs.draft = spec;
    knobs.draft_len = draft_len;
    std::vector<TokenId> tokens;
    const std::vector<int> real = RealRounds(harness, task, knobs, &tokens);
    const ReplayedRounds replayed = Replay(harness, task, knobs, tokens);
    if (ChoosesInThePass(spec)) {
      // Rows that were drafted wrongly have a vote there; a replay has none of them.
      const auto tokens_of = [](const std::vector<int>& run_lengths) {
        return std::accumulate(run_lengths.begin(), run_lengths.end(), 0);
      };
      EXPECT_EQ(tokens_of(replayed.run_lengths), tokens_of(real));
      EXPECT_NEAR(std::ssize(replayed.run_lengths), std::ssize(real), 0.25 * std::ssize(real));
    } else {
      EXPECT_EQ(replayed.run_lengths, real) << "draft length " << draft_len;
    }
    EXPECT_GE(replayed.num_compared, replayed.num_agreed);
    EXPECT_GE(replayed.kl_sum, 0);
    EXPECT_LE(replayed.kept_sum, 1.6 * static_cast<double>(real.size()));
  }
}

TEST(Replay, HasTheRoundsOfRealDecoding) {
  Harness llama(OpenBytes(TinyModelBytes(Model("llama"))), "", 2);
  Harness qwen(OpenBytes(TinyModelBytes(Model("qwen2"))), "", 2);
  for (const char* spec :
       {"int4", "int2", "k4v2", "rot3", "sink:0.2+int4", "snapkv:0.2", "verify:0.25+int4",
        "verify:0.1,window=8", "verify:0.2,score=vegas", "verify:0.25,floor=0.1,chunk=64",
        "kvzip:0.3,chunk=64+int4", "expected:0.2+int4", "h2o:0.2", "quest:0.2,whole=1+int4",
        "snapkv:0.1,keep=1+int2"}) {
    CheckSpec(&llama, spec, 0);
    CheckSpec(&qwen, spec, 0.8f);
  }
}

// The whole draft kept in f16 is the full KV: nothing is ever rejected, nothing diverges much.
TEST(Replay, FindsNoFaultInAWholeCopy) {
  Harness harness(OpenBytes(TinyModelBytes(Model("llama"))), "", 2);
  RunTask task;
  task.prompt = RandomPrompt(200, 160, 4);
  task.max_tokens = 60;
  RunKnobs knobs;
  knobs.draft = "f16";
  knobs.draft_len = 9;
  std::vector<TokenId> tokens;
  RealRounds(&harness, task, knobs, &tokens);
  const ReplayedRounds rounds = Replay(&harness, task, knobs, tokens);
  EXPECT_EQ(rounds.num_agreed, rounds.num_compared);
  EXPECT_GT(rounds.num_kl, 40);
  EXPECT_LT(rounds.kl_sum / static_cast<double>(rounds.num_kl), 1e-3);
}

}  // namespace
}  // namespace vericache
