// Row i of a pass == the row alone, bit for bit: for every way to cut the same rows into passes,
// every thread count, every ISA and any neighbours. The reference is one token at a time, scalar.
#include <cstring>

#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"

namespace vericache {
namespace {

struct Shape {
  const char* name;
  TinyModelOptions options;
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  const auto add = [&](const char* name, const char* arch, TensorType type, TensorType down,
                       int heads, int kv_heads, int dim) {
    TinyModelOptions o;
    o.architecture = arch;
    o.type = type;
    o.down_type = down;
    o.num_heads = heads;
    o.num_kv_heads = kv_heads;
    o.head_dim = dim;
    shapes.push_back({name, o});
  };
  add("f32", "llama", TensorType::kF32, TensorType::kF32, 4, 2, 32);
  add("f16_mha", "llama", TensorType::kF16, TensorType::kF16, 4, 4, 64);
  add("bf16_odd_dim", "qwen2", TensorType::kBF16, TensorType::kF16, 3, 1, 80);
  add("q8_0", "qwen2", TensorType::kQ8_0, TensorType::kQ4_1, 7, 1, 64);
  add("q5_0", "qwen2", TensorType::kQ5_0, TensorType::kQ6_K, 6, 2, 64);
  add("q4_1", "llama", TensorType::kQ4_1, TensorType::kQ8_0, 9, 3, 64);
  add("q4_k", "qwen2", TensorType::kQ4_K, TensorType::kQ6_K, 12, 2, 128);
  add("q6_k", "llama", TensorType::kQ6_K, TensorType::kQ4_K, 8, 2, 32);
  return shapes;
}

class ForwardInvariance : public testing::TestWithParam<Shape> {
 protected:
  static void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b,
                             const std::string& what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i)
      ASSERT_EQ(std::memcmp(&a[i], &b[i], 4), 0)
          << what << ": value " << i << ": " << a[i] << " against " << b[i];
  }
};

TEST_P(ForwardInvariance, AnyChunkingThreadsAndIsaGiveTheReferenceBits) {
  const auto file = OpenBytes(TinyModelBytes(GetParam().options));
  const std::vector<TokenId> tokens = RandomPrompt(150, GetParam().options.vocab_size, 3);
  const std::vector<float> reference = Harness(file, "scalar", 1).AllLogits(tokens, 1);
  for (const KernelTable* table : AllKernelTables()) {
    for (int threads : {1, 2, 3}) {
      Harness harness(file, table->name, threads);
      for (int64_t chunk : {1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 150}) {
        // The slow tables do a few shapes of pass; the fast one does all.
        if (table->name != std::string("avx2") && (chunk != 65 || threads != 2)) continue;
        if (threads != 2 && chunk != 5 && chunk != 33) continue;
        ExpectSameBits(harness.AllLogits(tokens, chunk), reference,
                       std::string(table->name) + " threads " + std::to_string(threads) +
                           " chunk " + std::to_string(chunk));
      }
    }
  }
}

// Contexts of several attention segments, where long rows meet short ones in one tile.
TEST_P(ForwardInvariance, HoldsAcrossAttentionSegments) {
  TinyModelOptions options = GetParam().options;
  options.num_layers = 1;
  const auto file = OpenBytes(TinyModelBytes(options));
  const std::vector<TokenId> tokens = RandomPrompt(2120, options.vocab_size, 5);
  const std::vector<float> one = Harness(file, "", 1).AllLogits(tokens, 1);
  for (int threads : {1, 2}) {
    Harness harness(file, "", threads);
    for (int64_t chunk : {33, 512, 2000})
      ExpectSameBits(harness.AllLogits(tokens, chunk), one, "chunk " + std::to_string(chunk));
  }
}

// One pass with rows of many sequences at different positions.
TEST_P(ForwardInvariance, NeighboursInTheBatchDoNotShow) {
  const auto file = OpenBytes(TinyModelBytes(GetParam().options));
  Harness harness(file, "", 2);
  std::vector<RunTask> tasks;
  std::vector<RunKnobs> knobs;
  for (int i = 0; i < 7; ++i) {
    RunTask task;
    task.prompt = RandomPrompt(1 + i * 29, GetParam().options.vocab_size, 100 + i);
    task.max_tokens = 9 + i * 3;
    if (i % 2 == 1) {
      task.sampling.temperature = 0.9f;
      task.sampling.seed = 40 + i;
    }
    tasks.push_back(task);
    RunKnobs k;
    k.draft = i % 3 == 0 ? "off" : i % 3 == 1 ? "snapkv:0.3+int4" : "sink:0.2+int8";
    k.draft_len = i % 2 == 0 ? 5 : 0;
    k.chunk = 1 + i * 13;
    knobs.push_back(k);
  }
  Harness reference(file, "scalar", 1);
  const std::vector<RunResult> together = harness.RunBatch(tasks, knobs);
  for (size_t i = 0; i < tasks.size(); ++i) {
    RunKnobs plain;
    plain.chunk = 1;
    EXPECT_EQ(together[i], reference.Run(tasks[i], plain)) << "sequence " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ForwardInvariance, testing::ValuesIn(Shapes()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace vericache
