// Defects of the engine that tests of one class could not show; each test opens with what went
// wrong.
#include <cfenv>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"

namespace vericache {
namespace {

TinyModelOptions Smallest() {
  TinyModelOptions options;
  options.num_layers = 1;
  options.num_heads = options.num_kv_heads = 1;
  options.head_dim = 16;
  options.hidden_size = 16;
  options.intermediate_size = 16;
  options.vocab_size = 48;
  return options;
}

// The drafter put one row of every sequence into one pass and died at more than kMaxPassRows.
TEST(EngineRegress, MoreSequencesThanRowsOfAPass) {
  Harness harness(OpenBytes(TinyModelBytes(Smallest())), "", 1);
  const int64_t num_sequences = kMaxPassRows + 3;
  std::vector<RunTask> tasks(num_sequences);
  std::vector<RunKnobs> knobs(num_sequences);
  for (int64_t i = 0; i < num_sequences; ++i) {
    tasks[i].prompt = RandomPrompt(2 + i % 3, 48, i % 5);
    tasks[i].max_tokens = 5;
    knobs[i].draft = "f16";
    knobs[i].draft_len = 2;
  }
  const std::vector<RunResult> results = harness.RunBatch(tasks, knobs);
  for (int64_t i = 0; i < num_sequences; i += i < 20 ? 1 : 401) {
    knobs[i].draft = "off";
    EXPECT_EQ(results[i], harness.Run(tasks[i], knobs[i])) << i;
  }
  EXPECT_EQ(results.back().tokens.size(), 5u);
}

// More rows wait for logits than one turn of the verifier takes.
TEST(EngineRegress, LogitsInTurns) {
  Harness harness(OpenBytes(TinyModelBytes(Smallest())), "", 1);
  std::vector<RunTask> tasks(40);
  std::vector<RunKnobs> knobs(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    tasks[i].prompt = RandomPrompt(5 + i, 48, i);
    tasks[i].max_tokens = 40;
    knobs[i].draft = "f16";
    knobs[i].draft_len = 5 + static_cast<int>(i % 20);
  }
  const std::vector<RunResult> results = harness.RunBatch(tasks, knobs);
  for (size_t i = 0; i < tasks.size(); ++i) {
    // A sequence that waits for its turn loses none of its round.
    const RunResult alone = harness.Run(tasks[i], knobs[i]);
    EXPECT_EQ(results[i].rounds, alone.rounds) << i;
    EXPECT_EQ(results[i].accepted, alone.accepted) << i;
    knobs[i].draft = "off";
    EXPECT_EQ(results[i], harness.Run(tasks[i], knobs[i])) << i;
  }
}

// A turn that ended in prefill (max_tokens 0 or 1, or a stop at once) left the session's draft KV
// behind its full KV; the saved session could not be loaded.
TEST(EngineRegress, ADraftFollowsATurnThatEndsInPrefill) {
  Harness harness(OpenBytes(TinyModelBytes(Smallest())), "", 1);
  const Model& model = harness.model();
  for (const char* draft : {"f16", "snapkv:0.5", "sink:0.5"}) {
    for (int64_t max_tokens : {0, 1, 2}) {
      RunTask task;
      task.prompt = RandomPrompt(50, 48, 1);
      task.max_tokens = 3;
      RunKnobs knobs;
      knobs.draft = draft;
      Prefill prefill(&model, &harness.forward(), &harness.pool());
      const std::unique_ptr<Sequence> first = harness.MakeSequence(task, knobs);
      ASSERT_TRUE(prefill.Run(first.get(), {}).ok());
      ASSERT_TRUE(first->draft.has_value());

      task.prompt.push_back(7);
      task.prompt.push_back(8);
      task.max_tokens = max_tokens;
      const std::unique_ptr<Sequence> second = harness.MakeSequence(task, knobs);
      second->full = first->full.Fork();
      second->draft.emplace(first->draft->Copy());
      ASSERT_TRUE(prefill.Run(second.get(), {}).ok());
      EXPECT_EQ(second->full.num_tokens(), 52);
      ASSERT_TRUE(second->draft.has_value());
      EXPECT_EQ(second->draft->num_tokens(), 52) << draft << " max_tokens " << max_tokens;
      EXPECT_EQ(second->done(), max_tokens < 2);
    }
  }
}

// Rope angles and embedding rows are computed outside the thread pool, in the caller's rounding
// mode: an application that sets another one got other bits.
TEST(EngineRegress, TheCallersRoundingModeDoesNotShow) {
  TinyModelOptions options = Smallest();
  options.type = TensorType::kQ4_1;
  options.hidden_size = options.intermediate_size = options.head_dim = 32;
  const std::string bytes = TinyModelBytes(options);
  const std::vector<TokenId> prompt = RandomPrompt(40, 48, 3);
  const auto run = [&](int mode) {
    const int saved = std::fegetround();
    std::fesetround(mode);
    Harness harness(OpenBytes(bytes), "", 1);
    std::vector<float> logits = harness.AllLogits(prompt, 7);
    RunTask task;
    task.prompt = prompt;
    task.sampling.temperature = 0.7f;
    task.sampling.top_p = 0.9f;
    RunKnobs knobs;
    knobs.draft = "snapkv:0.5+int8";
    const RunResult result = harness.Run(task, knobs);
    std::fesetround(saved);
    return std::pair(logits, result);
  };
  const auto want = run(FE_TONEAREST);
  for (int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    const auto got = run(mode);
    EXPECT_TRUE(got.first == want.first) << mode;
    EXPECT_TRUE(got.second == want.second) << mode;
  }
}

}  // namespace
}  // namespace vericache
