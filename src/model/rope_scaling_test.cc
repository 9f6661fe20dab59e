#include "model/rope_scaling.h"

#include <limits>
#include <string>

#include "gguf/writer.h"
#include "gtest/gtest.h"
#include "model/rope.h"

namespace vericache {
namespace {

ModelConfig Trained(int64_t context) {
  ModelConfig config;
  config.context_length = context;
  config.rotary_dim = 64;
  config.rope_theta = 1e6;
  return config;
}

// Fails, and leaves the config as it was.
void ExpectRefused(const RopeOverride& wanted, ModelConfig config, const std::string& part) {
  const int64_t context = config.context_length;
  const RopeScaling scaling = config.rope_scaling;
  const absl::Status status = ApplyRopeOverride(wanted, &config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
  EXPECT_NE(status.message().find(part), std::string::npos) << status;
  EXPECT_EQ(config.context_length, context);
  EXPECT_EQ(config.rope_scaling, scaling);
}

TEST(RopeOverride, ScalesTheContext) {
  ModelConfig config = Trained(32768);
  ASSERT_TRUE(ApplyRopeOverride({}, &config).ok());
  EXPECT_EQ(config.context_length, 32768);
  ASSERT_TRUE(ApplyRopeOverride({"yarn", 4, 0}, &config).ok());
  EXPECT_EQ(config.rope_scaling, RopeScaling::kYarn);
  EXPECT_EQ(config.rope_scale, 4);
  EXPECT_EQ(config.orig_context, 32768);
  EXPECT_EQ(config.context_length, 131072);
  config = Trained(2048);
  ASSERT_TRUE(ApplyRopeOverride({"linear", 2.5, 1001}, &config).ok());
  EXPECT_EQ(config.rope_scaling, RopeScaling::kLinear);
  EXPECT_EQ(config.context_length, 2502);
}

// The file's scaling goes, its original context stays.
TEST(RopeOverride, TakesThePlaceOfTheFilesScaling) {
  ModelConfig file = Trained(8192);
  file.rope_scaling = RopeScaling::kYarn;
  file.rope_scale = 4;
  file.orig_context = 2048;
  file.rope_attn_factor = 0.5;
  file.yarn_attn_factor = 1.25;
  file.yarn_beta_fast = 48;
  ModelConfig config = file;
  ASSERT_TRUE(ApplyRopeOverride({"none", 0, 0}, &config).ok());
  EXPECT_EQ(config.rope_scaling, RopeScaling::kNone);
  EXPECT_EQ(config.rope_scale, 1);
  EXPECT_EQ(config.context_length, 2048);
  config = file;
  ASSERT_TRUE(ApplyRopeOverride({"yarn", 8, 0}, &config).ok());
  EXPECT_EQ(config.context_length, 16384);
  EXPECT_EQ(config.rope_attn_factor, 1.0);
  EXPECT_EQ(config.yarn_attn_factor, 0);
  EXPECT_EQ(config.yarn_beta_fast, 32);
  // A scaled context alone does not say what it was scaled from.
  file = Trained(8192);
  file.rope_scaling = RopeScaling::kLinear;
  file.rope_scale = 4;
  ExpectRefused({"yarn", 8, 0}, file, "original context");
  ASSERT_TRUE(ApplyRopeOverride({"yarn", 8, 2048}, &file).ok());
  EXPECT_EQ(file.context_length, 16384);
}

TEST(RopeOverride, AScaleOfOneIsNone) {
  for (const char* type : {"linear", "yarn"}) {
    ModelConfig config = Trained(512);
    ASSERT_TRUE(ApplyRopeOverride({type, 1, 0}, &config).ok());
    EXPECT_EQ(config.rope_scaling, RopeScaling::kNone);
    EXPECT_EQ(config.context_length, 512);
  }
}

TEST(RopeOverride, RefusesNonsense) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ExpectRefused({"", 4, 0}, Trained(512), "needs a rope scaling");
  ExpectRefused({"", 0, 512}, Trained(512), "needs a rope scaling");
  ExpectRefused({"longrope", 4, 0}, Trained(512), "'longrope'");
  ExpectRefused({"none", 4, 0}, Trained(512), "none has no scale");
  for (double bad : {0.0, 0.5, -4.0, inf, nan}) {
    ExpectRefused({"yarn", bad, 0}, Trained(512), "at least 1");
    ExpectRefused({"linear", bad, 0}, Trained(512), "at least 1");
  }
  ExpectRefused({"yarn", 4, -1}, Trained(512), "original context");
  ExpectRefused({"yarn", 4, int64_t{1} << 29}, Trained(512), "original context");
  ExpectRefused({"linear", 1e12, 0}, Trained(512), "268435456");
  ExpectRefused({"yarn", 4, 3}, Trained(512), "range");
}

TEST(RopeOverride, AContextMayNotOutgrowASlidingWindow) {
  GgufWriter writer;
  writer.AddUint32("qwen2.attention.sliding_window", 512);
  const std::string bytes = writer.ToBytes();
  const auto file = GgufFile::FromMemory(
      absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), "m");
  ASSERT_TRUE(file.ok()) << file.status();
  ModelConfig config = Trained(512);
  config.architecture = "qwen2";
  EXPECT_TRUE(CheckSlidingWindow(**file, config).ok()) << "it never slides";
  ASSERT_TRUE(ApplyRopeOverride({"yarn", 4, 0}, &config).ok());
  EXPECT_EQ(CheckSlidingWindow(**file, config).code(), absl::StatusCode::kUnimplemented);
  config.architecture = "llama";
  EXPECT_TRUE(CheckSlidingWindow(**file, config).ok());
}

// What YaRN needs of ContractLog must not depend on how the thread rounds.
TEST(Rope, FrequenciesAreFiniteAndFall) {
  for (int64_t context : {64, 2048, 32768, 1 << 24}) {
    ModelConfig config = Trained(context);
    ASSERT_TRUE(ApplyRopeOverride({"yarn", 16, 0}, &config).ok());
    const YarnRange range = YarnRangeOf(config);
    EXPECT_GE(range.low, 0);
    EXPECT_LE(range.low, range.high);
    const Rope rope(config, {});
    std::vector<float> cos(32), sin(32);
    rope.AnglesOf(1, cos.data(), sin.data());
    // Angles within a quarter turn: a larger sine is a larger frequency.
    for (int i = 1; i < 32; ++i) EXPECT_LT(sin[i], sin[i - 1]) << context << " pair " << i;
    EXPECT_GT(sin[31], 0);
  }
}

}  // namespace
}  // namespace vericache
