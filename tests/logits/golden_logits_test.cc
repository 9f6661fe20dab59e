// Right, not only consistent: logits of tiny models of both families against Hugging Face
// transformers in float32 (tests/golden/model; how they were made: README.md there).
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"

namespace vericache {
namespace {

struct Golden {
  const char* name;
  double tolerance;   // against the float32 run whose K/V were rounded to f16, as ours are
  double rms = 1e-3;  // of all differences
};

// Quantised weights come with int8 activations, which transformers does not have: there the
// differences look like noise of the logits (standard deviation 2), so their mean square is what a
// wrong scale or offset would show in.
constexpr Golden kGoldens[] = {{"llama_tied", 2e-3},     {"llama_head_dim", 2e-3},
                               {"llama3_untied", 2e-3},  {"qwen2_untied", 2e-3},
                               {"qwen2_tied", 2e-3},     {"qwen2_yarn", 2e-3},
                               {"llama_q8_0", 0.6, 0.12}};

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

class GoldenLogits : public testing::TestWithParam<Golden> {
 protected:
  std::string Path(const char* suffix) const {
    return std::string("tests/golden/model/") + GetParam().name + suffix;
  }
};

TEST_P(GoldenLogits, MatchTransformers) {
  const nlohmann::json golden = ReadJson(Path(".golden.json"));
  auto file = GgufFile::Open(Path(".gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  Harness harness(std::move(*file), "", 2);
  const int64_t vocab = harness.model().config.vocab_size;
  int num_values = 0;
  double worst = 0, squares = 0;
  for (const nlohmann::json& prompt : golden["prompts"]) {
    const std::vector<TokenId> ids = prompt["ids"];
    const std::vector<float> logits = harness.AllLogits(ids, 64);
    ASSERT_EQ(static_cast<int64_t>(logits.size()), static_cast<int64_t>(ids.size()) * vocab);
    for (size_t i = 0; i < prompt["positions"].size(); ++i) {
      const int64_t pos = prompt["positions"][i];
      const std::vector<double> expected = prompt["logits_kv16"][i];
      ASSERT_EQ(static_cast<int64_t>(expected.size()), vocab);
      for (int64_t id = 0; id < vocab; ++id, ++num_values) {
        const double diff = std::fabs(logits[pos * vocab + id] - expected[id]);
        worst = std::max(worst, diff);
        squares += diff * diff;
        ASSERT_LE(diff, GetParam().tolerance) << "position " << pos << " id " << id;
      }
    }
    for (size_t pos = 0; pos < ids.size(); ++pos) {
      if (prompt["margin_kv16"][pos].get<double>() <= 2 * GetParam().tolerance) continue;
      const auto row = logits.begin() + pos * vocab;
      EXPECT_EQ(std::max_element(row, row + vocab) - row, prompt["argmax_kv16"][pos].get<int>());
    }
  }
  EXPECT_GT(num_values, 1000);
  const double rms = std::sqrt(squares / num_values);
  EXPECT_LE(rms, GetParam().rms);
  std::printf("%s: %d logits, largest difference %.2g, rms %.2g\n", GetParam().name, num_values,
              worst, rms);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenLogits, testing::ValuesIn(kGoldens),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace vericache
