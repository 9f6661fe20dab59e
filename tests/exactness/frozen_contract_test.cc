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
    {TensorType::kF32, "llama", 4, 2, 32, ""},    {TensorType::kF16, "qwen2", 4, 4, 24, ""},
    {TensorType::kBF16, "llama", 6, 2, 40, ""},   {TensorType::kQ8_0, "qwen2", 7, 1, 64, ""},
    {TensorType::kQ5_0, "llama", 3, 1, 64, ""},   {TensorType::kQ4_1, "qwen2", 8, 2, 16, ""},
    {TensorType::kQ4_K, "llama", 6, 1, 128, ""},  {TensorType::kQ6_K, "qwen2", 4, 2, 32, ""},
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

INSTANTIATE_TEST_SUITE_P(All, FrozenContract, testing::ValuesIn(kFrozen), [](const auto& info) {
  return std::string(InfoOf(info.param.type).name);
});

}  // namespace
}  // namespace vericache
