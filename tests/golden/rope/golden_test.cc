// YaRN angles against Hugging Face transformers (make_golden.py beside this file says how the table
// was made): to one rounding of fp32 where its arithmetic is done in fp64, and to its own error
// where it is done in fp32.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/rope.h"
#include "model/rope_scaling.h"

namespace vericache {
namespace {

ModelConfig ConfigOf(const nlohmann::json& golden) {
  const nlohmann::json& parameters = golden["parameters"];
  ModelConfig config;
  config.rope_theta = golden["rope_theta"];
  config.rotary_dim = golden["rotary_dim"];
  config.rope_scaling = RopeScaling::kYarn;
  config.rope_scale = parameters["factor"];
  config.orig_context = parameters["original_max_position_embeddings"];
  config.yarn_attn_factor = parameters.value("attention_factor", 0.0);
  config.yarn_beta_fast = parameters.value("beta_fast", 32.0);
  config.yarn_beta_slow = parameters.value("beta_slow", 1.0);
  return config;
}

// Compares a row of cosines and sines; tolerance(pair) is absolute.
template <typename Tolerance>
void ExpectRow(const Rope& rope, const nlohmann::json& row, const Tolerance& tolerance) {
  const int64_t position = row["position"];
  const std::vector<double> cos = row["cos"], sin = row["sin"];
  ASSERT_EQ(static_cast<int>(cos.size()), rope.half_dim());
  ASSERT_EQ(static_cast<int>(sin.size()), rope.half_dim());
  std::vector<float> got_cos(cos.size()), got_sin(sin.size());
  rope.AnglesOf(position, got_cos.data(), got_sin.data());
  for (size_t i = 0; i < cos.size(); ++i) {
    EXPECT_NEAR(got_cos[i], cos[i], tolerance(i)) << "position " << position << " pair " << i;
    EXPECT_NEAR(got_sin[i], sin[i], tolerance(i)) << "position " << position << " pair " << i;
  }
}

TEST(GoldenRope, YarnAnglesAreThoseOfTransformers) {
  std::ifstream in("tests/golden/rope/rope.golden.json");
  const nlohmann::json goldens = nlohmann::json::parse(in);
  ASSERT_EQ(goldens["cases"].size(), 6u);
  for (const auto& [name, golden] : goldens["cases"].items()) {
    SCOPED_TRACE(name);
    const Rope rope(ConfigOf(golden), {});
    const std::vector<double> frequencies = golden["inverse_frequencies"];
    for (const nlohmann::json& row : golden["float64"])
      ExpectRow(rope, row, [](size_t) { return 0x1p-23; });  // one step of fp32 between 1 and 2
    // A frequency in fp32 is off by up to 4 roundings, an angle by as much times the position.
    for (const nlohmann::json& row : golden["float32"]) {
      const double position = row["position"];
      ExpectRow(rope, row,
                [&](size_t i) { return 0x1p-22 + 4 * 0x1p-24 * position * frequencies[i]; });
    }
  }
}

// What the mean of the whole table would hide: the attention factor, and each kind of pair.
TEST(GoldenRope, PairsAreTrainedMixedOrScaled) {
  ModelConfig config;
  config.rope_theta = 1e6;
  config.rotary_dim = 64;
  config.context_length = 32768;
  const Rope plain(config, {});
  ASSERT_TRUE(ApplyRopeOverride({"yarn", 4.0, 0}, &config).ok());
  EXPECT_EQ(config.context_length, 131072);
  const YarnRange range = YarnRangeOf(config);
  EXPECT_EQ(range.low, 11);
  EXPECT_EQ(range.high, 20);
  const Rope yarn(config, {});
  std::vector<float> cos(32), sin(32), plain_cos(32), plain_sin(32);
  yarn.AnglesOf(100, cos.data(), sin.data());
  plain.AnglesOf(100, plain_cos.data(), plain_sin.data());
  const double factor = 0.1 * std::log(4.0) + 1.0;
  for (int i = 0; i <= 11; ++i) EXPECT_NEAR(cos[i], plain_cos[i] * factor, 2e-7) << i;
  plain.AnglesOf(25, plain_cos.data(), plain_sin.data());
  for (int i = 20; i < 32; ++i) EXPECT_NEAR(sin[i], plain_sin[i] * factor, 2e-7) << i;
}

// Factors of the file (Llama 3.1) divide what the scaling gives, as in llama.cpp.
TEST(GoldenRope, FactorsOfTheFileComeOnTop) {
  ModelConfig config;
  config.rope_theta = 1e4;
  config.rotary_dim = 4;
  config.context_length = 4096;
  ASSERT_TRUE(ApplyRopeOverride({"yarn", 2.0, 0}, &config).ok());
  const Rope plain(config, {}), divided(config, {1.0F, 8.0F});
  float cos[2], sin[2], plain_cos[2], plain_sin[2];
  divided.AnglesOf(800, cos, sin);
  plain.AnglesOf(800, plain_cos, plain_sin);
  EXPECT_EQ(cos[0], plain_cos[0]);
  plain.AnglesOf(100, plain_cos, plain_sin);
  EXPECT_EQ(cos[1], plain_cos[1]);
  EXPECT_EQ(sin[1], plain_sin[1]);
}

}  // namespace
}  // namespace vericache
