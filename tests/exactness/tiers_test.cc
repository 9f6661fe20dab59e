// Full KV on disk gives the bits of full KV in RAM: for any share that stays hot, any staging, any
// draft, many requests at once, and when the disk fails for one of them.
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "storage/fault_plan.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"

namespace vericache {
namespace {

constexpr const char* kSpecs[] = {"off",
                                  "int4",
                                  "sink:0.2",
                                  "snapkv:0.25+int4",
                                  "verify:0.25+int4",
                                  "verify:0.1,window=8",
                                  "verify:0.2,floor=0.1,chunk=64+int4",
                                  "verify:0.1,score=vegas+int8",
                                  "verify:0.3,keep=1",
                                  "kvzip:0.3,window=8,chunk=64+int4",
                                  "expected:0.3,window=8+k4v2",
                                  "h2o:0.3",
                                  "quest:0.2,whole=1"};

TinyModelOptions SmallModel(int num_layers) {
  TinyModelOptions options;
  options.type = TensorType::kQ5_0;
  options.head_dim = 32;
  options.vocab_size = 160;
  options.num_layers = num_layers;
  return options;
}

RunTask Task(int64_t num_prompt, int64_t max_tokens, uint64_t seed) {
  RunTask task;
  task.prompt = RandomPrompt(num_prompt, 160, seed);
  task.max_tokens = max_tokens;
  if (seed % 2 == 1) {
    task.sampling.temperature = 0.8f;
    task.sampling.seed = seed;
  }
  return task;
}

TEST(Tiers, SpilledKvGivesTheSameBits) {
  Harness harness(OpenBytes(TinyModelBytes(SmallModel(3))), "", 2);
  uint64_t state = 4;
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(NextRandom(&state) % n); };
  int64_t bytes_read = 0, rejected = 0;
  for (int cell = 0; cell < 78; ++cell) {
    const RunTask task = Task(1 + pick(1400), 1 + pick(90), cell);
    const RunResult want = harness.Run(task, {});
    RunKnobs knobs;
    knobs.draft = kSpecs[cell % std::size(kSpecs)];
    knobs.draft_len = static_cast<int>(pick(4) == 0 ? 0 : 1 + pick(40));
    knobs.chunk = 16 + pick(400);
    const double layers = pick(2) == 0 ? 1.0 : 1.0 + static_cast<double>(pick(5)) / 2;
    knobs.tier =
        harness.MakeTier(1500, layers, pick(2) == 0 ? ReadBackend::kAuto : ReadBackend::kPread);
    knobs.hot_blocks = pick(3) == 0 ? pick(12) : 0;
    if (pick(2) == 0)
      knobs.adversary = [](DraftToken token, int64_t pos) {
        return pos % 7 == 3 ? DraftToken{static_cast<int32_t>(pos % 160)} : token;
      };
    const RunResult got = harness.Run(task, knobs);
    ASSERT_TRUE(got == want) << "cell " << cell << ": " << knobs.draft << " hot "
                             << knobs.hot_blocks << " error " << got.error;
    bytes_read += got.bytes_read;
    rejected += got.drafted - got.accepted;
    ASSERT_EQ(knobs.tier->pool().num_used(), 0) << "a block leaked";
    ASSERT_EQ(knobs.tier->staging().num_free(), knobs.tier->staging().num_slots());
  }
  EXPECT_GT(bytes_read, 10 << 20);
  EXPECT_GT(rejected, 100);
}

TEST(Tiers, RequestsShareOneTier) {
  Harness harness(OpenBytes(TinyModelBytes(SmallModel(4))), "", 2);
  const std::shared_ptr<KvTier> tier = harness.MakeTier(1024, 2 * 6);
  std::vector<RunTask> tasks;
  std::vector<RunKnobs> knobs;
  for (int i = 0; i < 6; ++i) {
    tasks.push_back(Task(100 + 150 * i, 40 + 5 * i, i));
    RunKnobs k;
    k.draft = kSpecs[2 * i % std::size(kSpecs)];
    k.draft_len = 3 + 4 * i;
    if (i != 3) k.tier = tier;  // one is in RAM
    k.hot_blocks = i;
    knobs.push_back(k);
  }
  const std::vector<RunResult> got = harness.RunBatch(tasks, knobs);
  for (size_t i = 0; i < tasks.size(); ++i)
    EXPECT_TRUE(got[i] == harness.Run(tasks[i], {})) << i << ": " << got[i].error;
}

// The disk fails in the middle: the request that needs it ends with an error, the others give the
// same bits, nothing leaks.
TEST(Tiers, AFailingDiskFailsItsRequestAlone) {
  Harness harness(OpenBytes(TinyModelBytes(SmallModel(3))), "", 2);
  const RunTask task = Task(700, 60, 2), other = Task(500, 60, 3);
  const RunResult want = harness.Run(task, {}), want_other = harness.Run(other, {});
  int failed = 0, survived = 0;
  for (int64_t nth = 1; nth < 400; nth = nth * 3 / 2 + 1) {
    for (const bool writes : {false, true}) {
      FaultOptions faults;
      faults.seed = nth;
      faults.short_reads_per_1000 = 200;
      faults.short_writes_per_1000 = 200;
      (writes ? faults.enospc_from_write : faults.eio_at_read) = nth;
      const auto plan = std::make_shared<FaultPlan>(faults);
      RunKnobs spilled, healthy;
      spilled.draft = healthy.draft = "verify:0.25+int4";
      spilled.draft_len = healthy.draft_len = 5;
      // Its first page, which a tier writes to see whether the folder is good, must succeed.
      if (writes && nth == 1) continue;
      spilled.tier = harness.MakeTier(1024, 2, ReadBackend::kAuto, plan);
      healthy.tier = harness.MakeTier(1024, 2);
      const std::vector<RunResult> got = harness.RunBatch({task, other}, {spilled, healthy});
      EXPECT_TRUE(got[1] == want_other) << got[1].error;
      if (got[0].finish == FinishReason::kError) {
        ++failed;
        EXPECT_FALSE(got[0].error.ok());
        EXPECT_FALSE(got[0].error.message().empty());
        // What was emitted before is right.
        ASSERT_LE(got[0].tokens.size(), want.tokens.size());
        EXPECT_TRUE(std::equal(got[0].tokens.begin(), got[0].tokens.end(), want.tokens.begin()));
      } else {
        ++survived;
        EXPECT_TRUE(got[0] == want);
      }
      EXPECT_EQ(spilled.tier->pool().num_used(), 0);
      EXPECT_EQ(spilled.tier->staging().num_free(), spilled.tier->staging().num_slots());
    }
  }
  EXPECT_GT(failed, 4);
  EXPECT_GT(survived, 0);
}

// Too little staging for one KV head of a layer is an error of the request, not of the process.
TEST(Tiers, StagingThatIsTooSmallIsAnError) {
  Harness harness(OpenBytes(TinyModelBytes(SmallModel(3))), "", 1);
  RunKnobs knobs;
  knobs.draft = "int4";
  knobs.tier = harness.MakeTier(3000, 0.4);
  const RunResult got = harness.Run(Task(2500, 20, 2), knobs);
  EXPECT_EQ(got.finish, FinishReason::kError);
  EXPECT_EQ(got.error.code(), absl::StatusCode::kResourceExhausted) << got.error;
}

// A pass keeps what it reads as far as more blocks may be hot than are, and does not read that
// again. After a failed one nothing is kept.
TEST(Tiers, PassesWarmWhatMayBeHot) {
  Harness harness(OpenBytes(TinyModelBytes(SmallModel(3))), "", 2);
  const RunTask task = Task(500, 60, 2);
  const RunResult want = harness.Run(task, {});
  for (const bool fails : {false, true}) {
    FaultOptions faults;
    if (fails) faults.eio_at_read = 2;
    RunKnobs knobs;
    knobs.tier = harness.MakeTier(1024, 2, ReadBackend::kAuto, std::make_shared<FaultPlan>(faults));
    std::unique_ptr<Sequence> s = harness.MakeSequence(task, knobs);
    Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
    ASSERT_TRUE(prefill.Run(s.get(), {}).ok());
    ASSERT_EQ(s->full.num_cold_blocks(), 7);
    RoundRunner runner(&harness.model(), &harness.forward(), &harness.pool());
    Sequence* running = s.get();
    s->full.set_hot_blocks(3);
    runner.Run({&running, 1});
    EXPECT_EQ(s->full.num_cold_blocks(), fails ? 7 : 4);
    if (fails) {
      EXPECT_EQ(s->finish, FinishReason::kError);
      continue;
    }
    const int64_t first = s->full.stream_totals().bytes;
    runner.Run({&running, 1});
    EXPECT_EQ(7 * (s->full.stream_totals().bytes - first), 4 * first) << "four of seven blocks";
    // Fewer again: they are spilled, and more once more.
    s->full.set_hot_blocks(1);
    ASSERT_TRUE(s->full.Spill().ok());
    EXPECT_EQ(s->full.num_cold_blocks(), 6);
    s->full.set_hot_blocks(100);
    while (!s->done()) runner.Run({&running, 1});
    EXPECT_EQ(s->full.num_cold_blocks(), 0);
    EXPECT_EQ(s->chain.Hex(), want.hash);
  }
}

// Blocks of rows that were rejected are given back.
TEST(Tiers, RejectedRowsHoldNoBlock) {
  Harness harness(OpenBytes(TinyModelBytes(SmallModel(3))), "", 2);
  RunKnobs knobs;
  knobs.tier = harness.MakeTier(1024, 2);
  knobs.draft = "int4";
  knobs.draft_len = 200;
  knobs.adversary = [](DraftToken, int64_t pos) {
    return DraftToken{static_cast<int32_t>(pos % 160)};
  };
  std::unique_ptr<Sequence> s = harness.MakeSequence(Task(70, 300, 2), knobs);
  Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
  ASSERT_TRUE(prefill.Run(s.get(), {}).ok());
  RoundRunner runner(&harness.model(), &harness.forward(), &harness.pool());
  Sequence* running = s.get();
  for (int i = 0; i < 3; ++i) runner.Run({&running, 1});
  ASSERT_LT(s->full.num_tokens(), 128);
  EXPECT_EQ(s->full.num_blocks(), 2);
}

// A sequence that has to give up all of its memory between rounds, the block that is being written
// included, goes on with the same bits.
TEST(Tiers, NothingInRamBetweenRounds) {
  Harness harness(OpenBytes(TinyModelBytes(SmallModel(3))), "", 2);
  const RunTask task = Task(300, 90, 2);
  const RunResult want = harness.Run(task, {});
  RunKnobs knobs;
  knobs.draft = "verify:0.25+int4";
  knobs.draft_len = 5;
  knobs.tier = harness.MakeTier(1024, 2);
  auto s = harness.MakeSequence(task, knobs);
  Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
  ASSERT_TRUE(prefill.Run(s.get(), {}).ok());
  RoundRunner rounds(&harness.model(), &harness.forward(), &harness.pool());
  Sequence* running = s.get();
  while (!s->done()) {
    ASSERT_TRUE(s->full.SpillAll().ok());
    EXPECT_EQ(s->full.num_ram_blocks(), 0);
    EXPECT_EQ(knobs.tier->pool().num_used(), 0);
    rounds.Run({&running, 1});
  }
  EXPECT_EQ(std::vector<TokenId>(s->tokens.begin() + 300, s->tokens.end()), want.tokens);
  EXPECT_EQ(s->chain.Hex(), want.hash);
}

// A fork at a position inside a spilled block reads that block back and copies it.
TEST(Tiers, ForkInsideASpilledBlock) {
  Harness harness(OpenBytes(TinyModelBytes(SmallModel(3))), "", 2);
  RunTask task = Task(500, 30, 2);
  RunKnobs knobs;
  knobs.tier = harness.MakeTier(1024, 2);
  auto first = harness.MakeSequence(task, knobs);
  Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
  ASSERT_TRUE(prefill.Run(first.get(), {}).ok());
  ASSERT_EQ(first->full.num_cold_blocks(), 7);
  for (const int64_t common : {64, 100, 447, 448, 499}) {
    RunTask changed = task;
    for (int64_t pos = common; pos < 500; ++pos) changed.prompt[pos] = (pos * 7) % 160;
    const RunResult want = harness.Run(changed, {});
    auto second = harness.MakeSequence(changed, knobs);
    second->full = first->full.Fork(common);
    ASSERT_TRUE(prefill.Run(second.get(), {}).ok());
    RoundRunner rounds(&harness.model(), &harness.forward(), &harness.pool());
    Sequence* s = second.get();
    while (!s->done()) rounds.Run({&s, 1});
    EXPECT_EQ(s->chain.Hex(), want.hash) << common;
    EXPECT_EQ(first->full.num_tokens(), 500);
  }
}

}  // namespace
}  // namespace vericache
