// Contract 1 is frozen: these hashes of logits may never change. A change that moves one of them is
// contract 2 and needs a new contract id (docs/exactness.md), whatever its reason.
#include <string>

#include "base/tensor_type.h"
#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"

namespace vericache {
namespace {

struct Frozen {
  TensorType type;
  const char* architecture;
  int num_heads, num_kv_heads, head_dim;
  const char* logits_hash;  // of 24 tokens, greedy, after 1,100 tokens: two attention segments
};

constexpr Frozen kFrozen[] = {
    {TensorType::kF32, "llama", 4, 2, 32,
     "481d3f65e7b598de2562297ab330c1e9b114fcbc7d07630b6272c1f2f48daf78"},
    {TensorType::kF16, "qwen2", 4, 4, 24,
     "ce7e47e9e185403a304929af249fdf9e254f355b9840d8f90affb426ca3f0230"},
    {TensorType::kBF16, "llama", 6, 2, 40,
     "ee3787839b50e534db6861c7dddccf9b6ddd9447145e4bbd71ad727dc6b30853"},
    {TensorType::kQ8_0, "qwen2", 7, 1, 64,
     "f8ae95e9781a18a8f004df5f2042b27dbfd8bdd8420190085194ed8cab430795"},
    {TensorType::kQ5_0, "llama", 3, 1, 64,
     "b8bc67c23574f954f9b95218fad1da17b4ea1006aa39f38892bbcf76a7b7476b"},
    {TensorType::kQ4_1, "qwen2", 8, 2, 16,
     "60d8e1fe8f5c198ebca4026052d12c56decb71c2a7b3f64495b7c2cb9d3814b9"},
    {TensorType::kQ4_K, "llama", 6, 1, 128,
     "9c8eca61d45c936f66e051f8bceb1a2735742494f7195e50a1654495868aff81"},
    {TensorType::kQ6_K, "qwen2", 4, 2, 64,
     "709736a5488264c52a88477c09b9f66eb1b82f3d0a63eb47893a6909cd709f95"},
};

class FrozenContract : public testing::TestWithParam<Frozen> {};

TEST_P(FrozenContract, LogitsHash) {
  const Frozen& frozen = GetParam();
  TinyModelOptions options;
  options.type = frozen.type;
  options.architecture = frozen.architecture;
  options.num_heads = frozen.num_heads;
  options.num_kv_heads = frozen.num_kv_heads;
  options.head_dim = frozen.head_dim;
  options.scale = 4.0f;
  Harness harness(OpenBytes(TinyModelBytes(options)), "", 2);
  RunTask task;
  task.prompt = RandomPrompt(1100, options.vocab_size, 7);
  task.max_tokens = 24;
  const RunResult plain = harness.Run(task, {});
  EXPECT_EQ(plain.tokens.size(), 24u);
  EXPECT_EQ(plain.hash, frozen.logits_hash);
}

// YaRN came after the freeze and is frozen from its first day on.
TEST(FrozenContractYarn, LogitsHash) {
  for (const char* isa : {"", "scalar"}) {
    auto file = GgufFile::Open("tests/golden/model/qwen2_yarn.gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    Harness harness(std::move(*file), isa, 2);
    RunTask task;
    task.prompt = RandomPrompt(1100, 288, 7);
    task.max_tokens = 24;
    EXPECT_EQ(harness.Run(task, {}).hash,
              "ccfbdc5929963b316908e4dbc51dfaf3c508cebd01bda21c3c7f4a88b048a544")
        << isa;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FrozenContract, testing::ValuesIn(kFrozen), [](const auto& info) {
  return std::string(InfoOf(info.param.type).name);
});

}  // namespace
}  // namespace vericache
