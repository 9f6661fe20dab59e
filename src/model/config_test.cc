#include "model/config.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "gguf/writer.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

// One metadata value; `Absent` leaves a key out.
struct Absent {};
using Value = std::variant<Absent, uint32_t, int32_t, uint64_t, float, bool, std::string,
                           std::vector<int32_t>>;

// A whole model's metadata as a list that a test changes before it is written.
class Fixture {
 public:
  explicit Fixture(std::string arch = "llama") : arch_(std::move(arch)) {
    Set("general.architecture", arch_);
    SetArch("block_count", uint32_t{2});
    SetArch("context_length", uint32_t{2048});
    SetArch("embedding_length", uint32_t{64});
    SetArch("feed_forward_length", uint32_t{96});
    SetArch("attention.head_count", uint32_t{4});
    SetArch("attention.head_count_kv", uint32_t{2});
    SetArch("attention.layer_norm_rms_epsilon", 1e-5f);
  }
  Fixture& Set(const std::string& key, Value value) {
    for (auto& entry : entries_)
      if (entry.first == key) return entry.second = std::move(value), *this;
    entries_.emplace_back(key, std::move(value));
    return *this;
  }
  Fixture& SetArch(const std::string& key, Value value) {
    return Set(arch_ + "." + key, std::move(value));
  }
  Fixture& Rows(int64_t rows) { return rows_ = rows, *this; }

  absl::StatusOr<ModelConfig> Read() const {
    GgufWriter writer;
    for (const auto& [key, value] : entries_) Add(key, value, &writer);
    if (rows_ > 0)
      writer.AddTensor("token_embd.weight", TensorType::kF32, {1, rows_},
                       std::string(4 * rows_, '\0'));
    const std::string bytes = writer.ToBytes();
    const auto file = GgufFile::FromMemory(
        absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), "m");
    if (!file.ok()) return file.status();
    return ReadModelConfig(**file);
  }

 private:
  static void Add(const std::string& key, const Value& value, GgufWriter* writer) {
    if (const auto* u32 = std::get_if<uint32_t>(&value)) writer->AddUint32(key, *u32);
    if (const auto* i32 = std::get_if<int32_t>(&value)) writer->AddInt32(key, *i32);
    if (const auto* u64 = std::get_if<uint64_t>(&value)) writer->AddUint64(key, *u64);
    if (const auto* f32 = std::get_if<float>(&value)) writer->AddFloat32(key, *f32);
    if (const auto* flag = std::get_if<bool>(&value)) writer->AddBool(key, *flag);
    if (const auto* text = std::get_if<std::string>(&value)) writer->AddString(key, *text);
    if (const auto* ints = std::get_if<std::vector<int32_t>>(&value)) writer->AddInt32s(key, *ints);
  }
  std::string arch_;
  std::vector<std::pair<std::string, Value>> entries_;
  int64_t rows_ = 40;
};

// The read fails with `code`, in one line that holds `part`.
void ExpectRefused(const Fixture& fixture, absl::StatusCode code, const std::string& part) {
  const auto config = fixture.Read();
  ASSERT_FALSE(config.ok()) << "accepted, although wrong: " << part;
  EXPECT_EQ(config.status().code(), code) << config.status();
  EXPECT_NE(config.status().message().find(part), std::string::npos) << config.status();
  EXPECT_EQ(config.status().message().find('\n'), std::string::npos) << config.status();
}
void ExpectInvalid(const Fixture& fixture, const std::string& part) {
  ExpectRefused(fixture, absl::StatusCode::kInvalidArgument, part);
}
void ExpectUnsupported(const Fixture& fixture, const std::string& part) {
  ExpectRefused(fixture, absl::StatusCode::kUnimplemented, part);
}

TEST(Config, ReadsEveryKey) {
  Fixture fixture("qwen2");
  fixture.Set("general.name", std::string("Tiny"))
      .SetArch("attention.key_length", uint32_t{32})
      .SetArch("attention.value_length", uint32_t{32})
      .SetArch("rope.freq_base", 1e6f)
      .SetArch("rope.dimension_count", uint32_t{16})
      .SetArch("vocab_size", uint32_t{40});
  const auto config = fixture.Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "qwen2");
  EXPECT_EQ(config->name, "Tiny");
  EXPECT_EQ(config->num_layers, 2);
  EXPECT_EQ(config->num_heads, 4);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->heads_per_kv_head(), 2);
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_EQ(config->intermediate_size, 96);
  EXPECT_EQ(config->vocab_size, 40);
  EXPECT_EQ(config->context_length, 2048);
  EXPECT_EQ(config->rms_eps, 1e-5f);
  EXPECT_EQ(config->rope_pairs, RopePairs::kNeox);
  EXPECT_EQ(config->rope_theta, 1e6);
  EXPECT_EQ(config->rotary_dim, 16);
  EXPECT_EQ(config->rope_scale, 1.0);
  EXPECT_EQ(config->kv_shape().num_layers, 2);
  EXPECT_EQ(config->kv_shape().num_kv_heads, 2);
  EXPECT_EQ(config->kv_shape().head_dim, 32);
}

TEST(Config, DerivesDefaults) {
  Fixture fixture;
  fixture.SetArch("attention.head_count_kv", Absent());
  const auto config = fixture.Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->name, "");
  EXPECT_EQ(config->rope_pairs, RopePairs::kAdjacent);
  EXPECT_EQ(config->num_kv_heads, 4) << "without the key every head has its own K and V";
  EXPECT_EQ(config->head_dim, 16) << "hidden_size / num_heads";
  EXPECT_EQ(config->rotary_dim, 16) << "head_dim";
  EXPECT_EQ(config->rope_theta, 10000.0);
  EXPECT_EQ(config->vocab_size, 40) << "rows of token_embd.weight";
}

TEST(Config, RefusesUnknownArchitectureByName) {
  ExpectUnsupported(Fixture("gemma3"), "\"gemma3\"");
  ExpectUnsupported(Fixture("Llama"), "\"Llama\"");
  ExpectUnsupported(Fixture(""), "supported: llama, qwen2");
  ExpectInvalid(Fixture().Set("general.architecture", Absent()), "general.architecture");
  ExpectInvalid(Fixture().Set("general.architecture", uint32_t{1}), "general.architecture");
  ExpectInvalid(Fixture().Set("general.name", uint32_t{1}), "general.name");
}

TEST(Config, NamesMissingAndWrongIntegers) {
  const struct {
    const char* key;
    uint64_t max;
  } cases[] = {{"block_count", 1024},
               {"context_length", 1 << 28},
               {"embedding_length", 1 << 18},
               {"feed_forward_length", 1 << 20},
               {"attention.head_count", 1024}};
  for (const auto& [key, max] : cases) {
    const std::string name = std::string("llama.") + key;
    ExpectInvalid(Fixture().SetArch(key, Absent()), name);
    ExpectInvalid(Fixture().SetArch(key, std::string("2")), name);
    ExpectInvalid(Fixture().SetArch(key, 2.0f), name);
    ExpectInvalid(Fixture().SetArch(key, true), name);
    ExpectInvalid(Fixture().SetArch(key, uint32_t{0}), name);
    ExpectInvalid(Fixture().SetArch(key, int32_t{-1}), name);
    ExpectInvalid(Fixture().SetArch(key, max + 1), name);
    ExpectInvalid(Fixture().SetArch(key, ~uint64_t{0}), name);
  }
}

TEST(Config, AcceptsIntegersOfAnyWidth) {
  for (const Value& two : {Value(uint32_t{2}), Value(int32_t{2}), Value(uint64_t{2})}) {
    const auto config = Fixture().SetArch("block_count", two).Read();
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->num_layers, 2);
  }
}

TEST(Config, ChecksKvHeads) {
  const std::string key = "attention.head_count_kv";
  for (const Value& bad : {Value(uint32_t{0}), Value(uint32_t{5}), Value(int32_t{-2}), Value(2.0f),
                           Value(std::string("2"))})
    ExpectInvalid(Fixture().SetArch(key, bad), "llama." + key);
  ExpectInvalid(Fixture().SetArch(key, uint32_t{3}), "4 heads do not divide into 3 KV heads");
  EXPECT_EQ(Fixture().SetArch(key, std::vector<int32_t>{2, 2}).Read()->num_kv_heads, 2);
  ExpectUnsupported(Fixture().SetArch(key, std::vector<int32_t>{2, 4}), "llama." + key);
  ExpectInvalid(Fixture().SetArch(key, std::vector<int32_t>{}), "llama." + key);
  ExpectInvalid(Fixture().SetArch(key, std::vector<int32_t>{0, 0}), "llama." + key);
  ExpectInvalid(Fixture().SetArch(key, std::vector<int32_t>{8, 8}), "llama." + key);
}

// The attention scratch is sized for kMaxAttnRows rows; a larger group would write behind it.
TEST(Config, RefusesGroupsLargerThanTheAttentionTile) {
  Fixture fixture;
  fixture.SetArch("embedding_length", uint32_t{2048}).SetArch("attention.head_count_kv", 1u);
  EXPECT_TRUE(Fixture(fixture).SetArch("attention.head_count", 128u).Read().ok());
  ExpectUnsupported(fixture.SetArch("attention.head_count", 256u), "256 heads per KV head");
}

TEST(Config, ChecksHeadSizes) {
  ExpectInvalid(Fixture().SetArch("attention.key_length", 0u), "llama.attention.key_length");
  ExpectInvalid(Fixture().SetArch("attention.key_length", 1025u), "llama.attention.key_length");
  ExpectInvalid(Fixture().SetArch("attention.value_length", 1025u), "llama.attention.value_length");
  ExpectUnsupported(Fixture().SetArch("attention.value_length", 32u),
                    "llama.attention.value_length");
  // No head size at all: more heads than channels.
  ExpectInvalid(
      Fixture().SetArch("embedding_length", 2u).SetArch("attention.head_count_kv", Absent()),
      "llama.attention.key_length");
}

TEST(Config, ChecksEpsilon) {
  const std::string key = "attention.layer_norm_rms_epsilon";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Value& bad : {Value(Absent()), Value(-1e-5f), Value(2.0f), Value(nan),
                           Value(uint32_t{0}), Value(std::string("x"))})
    ExpectInvalid(Fixture().SetArch(key, bad), "llama." + key);
  EXPECT_EQ(Fixture().SetArch(key, 0.0f).Read()->rms_eps, 0.0f);
}

TEST(Config, ChecksRopeBaseAndDimensions) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Value& bad : {Value(0.0f), Value(-1.0f), Value(0.5f), Value(1e-30f), Value(inf),
                           Value(nan), Value(uint32_t{10000})})
    ExpectInvalid(Fixture().SetArch("rope.freq_base", bad), "llama.rope.freq_base");
  ExpectInvalid(Fixture().SetArch("rope.dimension_count", 18u), "llama.rope.dimension_count");
  ExpectInvalid(Fixture().SetArch("rope.dimension_count", 0u), "llama.rope.dimension_count");
  ExpectUnsupported(Fixture().SetArch("rope.dimension_count", 7u), "llama.rope.dimension_count");
}

TEST(Config, ReadsLinearRopeScalingInAllItsSpellings) {
  EXPECT_EQ(Fixture().SetArch("rope.scaling.type", std::string("none")).Read()->rope_scale, 1.0);
  EXPECT_EQ(Fixture()
                .SetArch("rope.scaling.type", std::string("none"))
                .SetArch("rope.scaling.factor", 4.0f)
                .Read()
                ->rope_scale,
            1.0);
  EXPECT_EQ(Fixture()
                .SetArch("rope.scaling.type", std::string("linear"))
                .SetArch("rope.scaling.factor", 4.0f)
                .Read()
                ->rope_scale,
            4.0);
  // A factor alone was once ignored: every position after the first would have been wrong.
  EXPECT_EQ(Fixture().SetArch("rope.scaling.factor", 4.0f).Read()->rope_scale, 4.0);
  EXPECT_EQ(Fixture().SetArch("rope.scale_linear", 2.0f).Read()->rope_scale, 2.0);
  EXPECT_EQ(Fixture()
                .SetArch("rope.scale_linear", 2.0f)
                .SetArch("rope.scaling.factor", 4.0f)
                .Read()
                ->rope_scale,
            4.0);
}

TEST(Config, RefusesOtherRopeScalingByName) {
  for (const char* type : {"longrope", "su", "dynamic", "Linear", ""})
    ExpectUnsupported(Fixture().SetArch("rope.scaling.type", std::string(type)),
                      "\"" + std::string(type) + "\"");
  ExpectInvalid(Fixture().SetArch("rope.scaling.type", 1u), "llama.rope.scaling.type");
  Fixture linear;
  linear.SetArch("rope.scaling.type", std::string("linear"));
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Value& bad :
       {Value(Absent()), Value(0.0f), Value(0.5f), Value(-2.0f), Value(inf), Value(nan), Value(4u)})
    ExpectInvalid(linear.SetArch("rope.scaling.factor", bad), "llama.rope.scaling.factor");
}

Fixture Yarn() {
  return Fixture()
      .SetArch("rope.scaling.type", std::string("yarn"))
      .SetArch("rope.scaling.factor", 4.0f)
      .SetArch("rope.scaling.original_context_length", 512u);
}

TEST(Config, ReadsYarn) {
  auto config = Yarn().Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_scaling, RopeScaling::kYarn);
  EXPECT_EQ(config->rope_scale, 4.0);
  EXPECT_EQ(config->orig_context, 512);
  EXPECT_EQ(config->context_length, 2048) << "512 * 4, which is what the file says as well";
  EXPECT_EQ(config->yarn_attn_factor, 0) << "by its formula";
  EXPECT_EQ(config->rope_attn_factor, 1.0);
  EXPECT_EQ(config->yarn_beta_fast, 32.0);
  EXPECT_EQ(config->yarn_beta_slow, 1.0);
  config = Yarn()
               .SetArch("rope.scaling.attn_factor", 0.5f)
               .SetArch("rope.scaling.yarn_attn_factor", 1.25f)
               .SetArch("rope.scaling.yarn_beta_fast", 48.0f)
               .SetArch("rope.scaling.yarn_beta_slow", 2.0f)
               .SetArch("rope.scaling.yarn_ext_factor", 1.0f)
               .SetArch("rope.scaling.yarn_log_multiplier", 0.0f)
               .SetArch("rope.scaling.finetuned", true)
               .Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_attn_factor, 0.5);
  EXPECT_EQ(config->yarn_attn_factor, 1.25);
  EXPECT_EQ(config->yarn_beta_fast, 48.0);
  EXPECT_EQ(config->yarn_beta_slow, 2.0);
}

// Files say the context before the scaling (Qwen2.5) or after it.
TEST(Config, YarnReachesOriginalContextTimesScale) {
  EXPECT_EQ(Yarn().SetArch("rope.scaling.original_context_length", Absent()).Read()->context_length,
            8192);
  EXPECT_EQ(Yarn().SetArch("context_length", 512u).Read()->context_length, 2048);
  EXPECT_EQ(Yarn().SetArch("context_length", 4096u).Read()->context_length, 4096);
  ExpectInvalid(Yarn()
                    .SetArch("context_length", 1u << 27)
                    .SetArch("rope.scaling.original_context_length", Absent()),
                "268435456");
}

TEST(Config, ChecksYarn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* key : {"attn_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"}) {
    const std::string name = std::string("rope.scaling.") + key;
    for (const Value& bad : {Value(0.0f), Value(-1.0f), Value(nan), Value(1u)})
      ExpectInvalid(Yarn().SetArch(name, bad), "llama." + name);
  }
  for (const Value& bad : {Value(0u), Value(int32_t{-1}), Value(1u << 29), Value(512.0f)})
    ExpectInvalid(Yarn().SetArch("rope.scaling.original_context_length", bad),
                  "llama.rope.scaling.original_context_length");
  ExpectInvalid(Yarn().SetArch("rope.scaling.factor", Absent()), "llama.rope.scaling.factor");
  // Frequencies that do not fall have no range of pairs.
  ExpectInvalid(Yarn().SetArch("rope.freq_base", 1.0f), "range");
  ExpectInvalid(Yarn().SetArch("rope.scaling.original_context_length", 1u), "range");
  // What would change angles, but is not computed.
  ExpectUnsupported(Yarn().SetArch("rope.scaling.yarn_ext_factor", 0.5f), "yarn_ext_factor");
  ExpectUnsupported(Yarn().SetArch("rope.scaling.yarn_log_multiplier", 0.1f),
                    "yarn_log_multiplier");
  ExpectUnsupported(Yarn().SetArch("rope.scaling.alpha", 1000.0f), "llama.rope.scaling.alpha");
  ExpectUnsupported(
      Fixture().SetArch("rope.scaling.factor", 4.0f).SetArch("rope.scaling.attn_factor", 1.5f),
      "attn_factor");
}

TEST(Config, RefusesMixturesOfExperts) {
  EXPECT_TRUE(Fixture().SetArch("expert_count", 0u).Read().ok());
  ExpectUnsupported(Fixture().SetArch("expert_count", 8u), "llama.expert_count");
  ExpectInvalid(Fixture().SetArch("expert_count", std::string("8")), "llama.expert_count");
}

TEST(Config, RefusesSlidingWindowsThatCanBite) {
  const std::string key = "attention.sliding_window";
  EXPECT_TRUE(Fixture("qwen2").SetArch(key, 0u).Read().ok());
  EXPECT_TRUE(Fixture("qwen2").SetArch(key, 2048u).Read().ok()) << "as long as the context";
  ExpectUnsupported(Fixture("qwen2").SetArch(key, 2047u), "qwen2." + key);
  ExpectInvalid(Fixture("qwen2").SetArch(key, 1.0f), "qwen2." + key);
}

TEST(Config, ChecksVocabularyAgainstTheEmbedding) {
  ExpectInvalid(Fixture().Rows(0), "token_embd.weight is missing");
  EXPECT_EQ(Fixture().SetArch("vocab_size", 33u).Read()->vocab_size, 40)
      << "rows beyond the vocabulary are padding; the matrix keeps them";
  for (const Value& bad :
       {Value(41u), Value(0u), Value(int32_t{-1}), Value(std::string("40")), Value(40.0f)})
    ExpectInvalid(Fixture().SetArch("vocab_size", bad), "llama.vocab_size");
}

}  // namespace
}  // namespace vericache
