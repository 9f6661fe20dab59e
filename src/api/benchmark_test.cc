#include "vericache/benchmark.h"

#include <cmath>
#include <memory>
#include <string>

#include "api/synthetic_kv.h"
#include "base/float16.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

constexpr char kModel[] = "tests/golden/model/llama_tied.gguf";

std::unique_ptr<Engine> LoadTiny() {
  EngineOptions options;
  options.model_path = kModel;
  options.num_threads = 2;
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// What a save or a receipt would take is not to be had from synthetic K/V: checked by the compiler.
template <typename T>
concept CanBeSaved = requires(Engine& engine, T& value) {
  engine.SaveSession(value, "");
};
template <typename T>
concept CanGetReceipt = requires(Engine& engine, T& value) {
  engine.MakeReceipt(value, {});
};
static_assert(CanBeSaved<Session> && CanGetReceipt<Completion>);
static_assert(!CanBeSaved<Benchmark> && !CanBeSaved<WorkSample>);
static_assert(!CanGetReceipt<Benchmark> && !CanGetReceipt<WorkSample>);

TEST(SyntheticKv, IsNormalFiniteAndTheSameForAnyThreads) {
  const KvShape shape{.num_layers = 2, .num_kv_heads = 2, .head_dim = 48};
  const KernelTable* kernels = *SelectKernels();
  ThreadPool one(1), three(3);
  FullKv a(shape, kernels), b(shape, kernels), other(shape, kernels);
  ASSERT_TRUE(FillSynthetic(300, 7, &one, &a).ok());
  ASSERT_TRUE(FillSynthetic(300, 7, &three, &b).ok());
  ASSERT_TRUE(FillSynthetic(300, 8, &three, &other).ok());
  ASSERT_EQ(a.num_tokens(), 300);
  double sum = 0, squares = 0, count = 0;
  int64_t num_same = 0;
  for (int64_t block = 0; block < a.num_blocks(); ++block) {
    for (size_t i = 0; i < a.block_bytes() / sizeof(uint16_t); ++i) {
      ASSERT_EQ(a.block(block)[i], b.block(block)[i]);
      num_same += a.block(block)[i] == other.block(block)[i];
      const float value = F16ToF32(a.block(block)[i]);
      ASSERT_LE(std::fabs(value), 6.0f);  // false for a NaN
      sum += value;
      squares += static_cast<double>(value) * value;
      ++count;
    }
  }
  EXPECT_NEAR(sum / count, 0, 0.05);
  EXPECT_NEAR(squares / count, 1, 0.05);
  EXPECT_LT(num_same, count / 20);
}

TEST(Benchmark, RepeatsAndWidthsComputeTheSame) {
  const std::unique_ptr<Engine> engine = LoadTiny();
  auto benchmark = Benchmark::Create(engine.get(), {.num_tokens = 130});
  ASSERT_TRUE(benchmark.ok()) << benchmark.status();
  for (int64_t depth : {0, 63, 64, 130}) {
    const auto prefill = benchmark->Prefill(depth, 20);
    ASSERT_TRUE(prefill.ok()) << prefill.status();
    EXPECT_EQ(benchmark->Prefill(depth, 20)->output_hash, prefill->output_hash);
    const auto decode = benchmark->Decode(depth, 9);
    ASSERT_TRUE(decode.ok()) << decode.status();
    EXPECT_GT(decode->seconds, 0);
    EXPECT_EQ(benchmark->Decode(depth, 9)->output_hash, decode->output_hash);
    // All positions of a verification hold, so it hashes the rows that decoding hashes.
    const auto verify = benchmark->Verify(depth, 9);
    ASSERT_TRUE(verify.ok()) << verify.status();
    EXPECT_EQ(verify->output_hash, decode->output_hash);
    EXPECT_EQ(benchmark->Verify(depth, 1)->output_hash, benchmark->Decode(depth, 1)->output_hash);
    const auto wide = benchmark->Verify(depth, 30);  // wider than what was decoded so far
    ASSERT_TRUE(wide.ok()) << wide.status();
    EXPECT_EQ(wide->output_hash, benchmark->Decode(depth, 30)->output_hash);
  }
  EXPECT_NE(benchmark->Decode(63, 9)->output_hash, benchmark->Decode(64, 9)->output_hash);
}

TEST(Benchmark, DraftsKeepWhatTheSpecSays) {
  const std::unique_ptr<Engine> engine = LoadTiny();
  auto benchmark = Benchmark::Create(engine.get(), {.num_tokens = 128});
  ASSERT_TRUE(benchmark.ok()) << benchmark.status();
  for (const char* spec : {"f16", "sink:0.25", "snapkv:0.5", "int8", "sink:0.75+int4"}) {
    const auto draft = benchmark->Draft(128, spec, 5);
    ASSERT_TRUE(draft.ok()) << draft.status();
    EXPECT_NEAR(draft->kept_fraction, *PredictKeptFraction(spec, engine->info(), 128), 1e-9);
    const auto again = benchmark->Draft(128, spec, 5);
    EXPECT_EQ(again->work.output_hash, draft->work.output_hash) << spec;
    EXPECT_EQ(again->kept_fraction, draft->kept_fraction) << spec;
  }
  EXPECT_EQ(benchmark->Draft(128, "off", 5).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(benchmark->Draft(0, "int8", 5).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Benchmark, RoundsGoAsTheTraceSays) {
  const std::unique_ptr<Engine> engine = LoadTiny();
  auto benchmark = Benchmark::Create(engine.get(), {.num_tokens = 256});
  ASSERT_TRUE(benchmark.ok()) << benchmark.status();
  const std::vector<TraceRound> rounds = {{8, 8}, {8, 3}, {8, 0}, {0, 0}, {1, 1}, {5, 4}};
  const auto plain = benchmark->Decode(256, 22);
  ASSERT_TRUE(plain.ok()) << plain.status();
  for (const char* spec : {"verify:0.25+int4", "sink:0.25+int4", "int8", "snapkv:0.5"}) {
    const auto sample = benchmark->Rounds(256, spec, rounds);
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_EQ(sample->num_tokens, 22) << "accepted tokens, and one more of each round";
    EXPECT_EQ(sample->work.output_hash, plain->output_hash) << spec;
    EXPECT_GT(sample->draft_s, 0);
    EXPECT_GT(sample->verify_s, 0);
    EXPECT_LE(sample->draft_s + sample->verify_s, sample->work.seconds);
  }
  // The longer trace needs more of plain decoding than there is.
  EXPECT_EQ(benchmark->Rounds(256, "int8", {{30, 30}})->num_tokens, 31);
  for (const TraceRound& bad :
       {TraceRound{4, 5}, TraceRound{-1, -1}, TraceRound{4, -1}, TraceRound{100000, 0}})
    EXPECT_EQ(benchmark->Rounds(256, "int8", {bad}).status().code(),
              absl::StatusCode::kInvalidArgument);
  for (const char* spec : {"off", "kvzip:0.3", "int99"})
    EXPECT_EQ(benchmark->Rounds(256, spec, rounds).status().code(),
              absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(benchmark->Rounds(0, "int8", rounds).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(benchmark->Rounds(256, "int8", {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Benchmark, RefusesWhatDoesNotFit) {
  const std::unique_ptr<Engine> engine = LoadTiny();
  const int64_t context = engine->info().context_length;
  EXPECT_EQ(Benchmark::Create(engine.get(), {.num_tokens = context}).status().code(),
            absl::StatusCode::kOutOfRange);
  auto benchmark = Benchmark::Create(engine.get(), {.num_tokens = context - 5});
  ASSERT_TRUE(benchmark.ok()) << benchmark.status();
  EXPECT_TRUE(benchmark->Decode(context - 5, 4).ok());
  for (const auto& status :
       {benchmark->Decode(context - 5, 5).status(), benchmark->Decode(context - 4, 1).status(),
        benchmark->Verify(-1, 1).status(), benchmark->Prefill(0, context).status()})
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  for (const auto& status : {benchmark->Decode(0, 0).status(), benchmark->Verify(0, 0).status(),
                             benchmark->Verify(0, 258).status(), benchmark->Prefill(0, 0).status()})
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST(Benchmark, StopsWhenAskedTo) {
  const std::unique_ptr<Engine> engine = LoadTiny();
  int passes_left = 0;
  auto benchmark = Benchmark::Create(
      engine.get(), {.num_tokens = 64, .keep_going = [&] { return passes_left-- > 0; }});
  ASSERT_TRUE(benchmark.ok()) << benchmark.status();
  for (const auto& status :
       {benchmark->Decode(64, 8).status(), benchmark->Verify(64, 8).status(),
        benchmark->Draft(64, "int8", 8).status(), benchmark->Prefill(64, 8).status()})
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  passes_left = 4;
  EXPECT_EQ(benchmark->Draft(64, "int8", 8).status().code(), absl::StatusCode::kCancelled);
  passes_left = 1000;  // a stopped draft leaves a whole draft KV behind
  const auto draft = benchmark->Draft(64, "int8", 8);
  ASSERT_TRUE(draft.ok()) << draft.status();
  EXPECT_NEAR(draft->kept_fraction, *PredictKeptFraction("int8", engine->info(), 64), 1e-9);
}

// Answers of the engine do not change because it was measured.
TEST(Benchmark, LeavesTheEngineAsItWas) {
  const std::unique_ptr<Engine> engine = LoadTiny();
  Request request;
  request.prompt = "The stone";
  request.max_tokens = 12;
  const auto before = engine->Generate(request);
  ASSERT_TRUE(before.ok()) << before.status();
  auto benchmark = Benchmark::Create(engine.get(), {.num_tokens = 100});
  ASSERT_TRUE(benchmark->Verify(100, 8).ok());
  ASSERT_TRUE(benchmark->Draft(100, "sink:0.5+int4", 8).ok());
  EXPECT_EQ(engine->Generate(request)->logits_hash, before->logits_hash);
}

}  // namespace
}  // namespace vericache
