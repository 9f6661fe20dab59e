#include "model/config.h"

#include <array>
#include <cmath>
#include <string_view>

#include "base/status_macros.h"
#include "base/text.h"
#include "kernels/kernels.h"
#include "model/rope_scaling.h"

namespace vericache {
namespace {

struct Family {
  std::string_view architecture;
  RopePairs rope_pairs;
};
// The families the forward pass computes.
constexpr std::array<Family, 2> kFamilies = {{
    {"llama", RopePairs::kAdjacent},
    {"qwen2", RopePairs::kNeox},
}};

// Reads "<arch>.<key>" with bounds, so that later arithmetic on sizes cannot overflow.
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view arch) : file_(file), arch_(arch) {}

  std::string Name(std::string_view key) const { return StrCat(arch_, ".", key); }

  absl::Status Int(std::string_view key, int64_t max, int* out) const {
    VC_ASSIGN_OR_RETURN(const int64_t value, file_.GetInt(Name(key)));
    return Bounded(key, value, max, out);
  }
  absl::Status IntOr(std::string_view key, int64_t fallback, int64_t max, int* out) const {
    VC_ASSIGN_OR_RETURN(const int64_t value, file_.GetIntOr(Name(key), fallback));
    return Bounded(key, value, max, out);
  }
  absl::Status Refuse(std::string_view key, std::string_view what) const {
    return absl::UnimplementedError(
        StrCat(file_.path(), ": ", Name(key), ": ", what, " is not supported"));
  }

 private:
  absl::Status Bounded(std::string_view key, int64_t value, int64_t max, int* out) const {
    if (value < 1 || value > max)
      return absl::InvalidArgumentError(
          StrCat(file_.path(), ": ", Name(key), " is ", value, ", expected 1 to ", max));
    *out = static_cast<int>(value);
    return absl::OkStatus();
  }
  const GgufFile& file_;
  std::string_view arch_;
};

absl::Status ReadRope(const GgufFile& file, const Keys& keys, ModelConfig* config) {
  VC_ASSIGN_OR_RETURN(config->rope_theta, file.GetFloatOr(keys.Name("rope.freq_base"), 10000.0));
  // Below 1 frequencies would grow and angles leave the range of ContractSinCos.
  if (!(config->rope_theta >= 1) || !std::isfinite(config->rope_theta))
    return absl::InvalidArgumentError(StrCat(file.path(), ": ", keys.Name("rope.freq_base"), " is ",
                                             config->rope_theta,
                                             ", expected a number of at least 1"));
  VC_RETURN_IF_ERROR(
      keys.IntOr("rope.dimension_count", config->head_dim, config->head_dim, &config->rotary_dim));
  if (config->rotary_dim % 2 != 0) return keys.Refuse("rope.dimension_count", "an odd number");
  return ReadRopeScaling(file, config->architecture, config);
}

// head_count_kv may be one number or one per layer; all layers must agree.
absl::Status ReadKvHeads(const GgufFile& file, const Keys& keys, ModelConfig* config) {
  const std::string key = keys.Name("attention.head_count_kv");
  const GgufValue* value = file.FindValue(key);
  if (value != nullptr && value->type == GgufValueType::kArray) {
    VC_ASSIGN_OR_RETURN(const std::vector<int64_t> heads, file.GetInts(key));
    for (int64_t h : heads)
      if (h != heads[0]) return keys.Refuse("attention.head_count_kv", "a number that varies");
    if (heads.empty() || heads[0] < 1 || heads[0] > config->num_heads)
      return absl::InvalidArgumentError(StrCat(file.path(), ": ", key, " is out of range"));
    config->num_kv_heads = static_cast<int>(heads[0]);
  } else {
    VC_RETURN_IF_ERROR(keys.IntOr("attention.head_count_kv", config->num_heads, config->num_heads,
                                  &config->num_kv_heads));
  }
  if (config->num_heads % config->num_kv_heads != 0)
    return absl::InvalidArgumentError(StrCat(file.path(), ": ", config->num_heads,
                                             " heads do not divide into ", config->num_kv_heads,
                                             " KV heads"));
  // The attention scratch holds this many query rows of one KV head.
  if (config->heads_per_kv_head() > kMaxAttnRows)
    return keys.Refuse("attention.head_count_kv",
                       StrCat("a group of ", config->heads_per_kv_head(), " heads per KV head"));
  return absl::OkStatus();
}

absl::Status ReadVocabSize(const GgufFile& file, const Keys& keys, ModelConfig* config) {
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr)
    return absl::InvalidArgumentError(StrCat(file.path(), ": tensor token_embd.weight is missing"));
  config->vocab_size = embedding->rows();
  VC_ASSIGN_OR_RETURN(const int64_t stated,
                      file.GetIntOr(keys.Name("vocab_size"), config->vocab_size));
  if (stated < 1 || stated > config->vocab_size || config->vocab_size > (1 << 24))
    return absl::InvalidArgumentError(StrCat(file.path(), ": ", keys.Name("vocab_size"), " is ",
                                             stated, " but token_embd.weight has ",
                                             config->vocab_size, " rows"));
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadKeys(const GgufFile& file) {
  ModelConfig config;
  VC_ASSIGN_OR_RETURN(const std::string_view arch, file.GetString("general.architecture"));
  const Family* family = nullptr;
  for (const Family& f : kFamilies)
    if (f.architecture == arch) family = &f;
  if (family == nullptr)
    return absl::UnimplementedError(StrCat(file.path(), ": architecture \"", arch,
                                           "\" is not supported (supported: llama, qwen2)"));
  config.architecture = arch;
  config.rope_pairs = family->rope_pairs;
  if (file.FindValue("general.name") != nullptr) {
    VC_ASSIGN_OR_RETURN(const std::string_view name, file.GetString("general.name"));
    config.name = name;
  }
  const Keys keys(file, arch);
  int context = 0;
  VC_RETURN_IF_ERROR(keys.Int("block_count", 1024, &config.num_layers));
  VC_RETURN_IF_ERROR(keys.Int("context_length", 1 << 28, &context));
  config.context_length = context;
  VC_RETURN_IF_ERROR(keys.Int("embedding_length", 1 << 18, &config.hidden_size));
  VC_RETURN_IF_ERROR(keys.Int("feed_forward_length", 1 << 20, &config.intermediate_size));
  VC_RETURN_IF_ERROR(keys.Int("attention.head_count", 1024, &config.num_heads));
  VC_RETURN_IF_ERROR(ReadKvHeads(file, keys, &config));
  VC_RETURN_IF_ERROR(keys.IntOr("attention.key_length", config.hidden_size / config.num_heads, 1024,
                                &config.head_dim));
  int value_length = 0;
  VC_RETURN_IF_ERROR(keys.IntOr("attention.value_length", config.head_dim, 1024, &value_length));
  if (value_length != config.head_dim)
    return keys.Refuse("attention.value_length", "a value size other than the key size");
  VC_ASSIGN_OR_RETURN(const double eps,
                      file.GetFloat(keys.Name("attention.layer_norm_rms_epsilon")));
  if (!(eps >= 0) || eps > 1)
    return absl::InvalidArgumentError(
        StrCat(file.path(), ": ", keys.Name("attention.layer_norm_rms_epsilon"), " is ", eps));
  config.rms_eps = static_cast<float>(eps);
  VC_RETURN_IF_ERROR(ReadRope(file, keys, &config));
  VC_ASSIGN_OR_RETURN(const int64_t experts, file.GetIntOr(keys.Name("expert_count"), 0));
  if (experts != 0) return keys.Refuse("expert_count", "a mixture of experts");
  // Multipliers and clamps of other families under this architecture's name: not computed here.
  for (const char* key : {"attention.scale", "logit_scale", "residual_scale", "embedding_scale",
                          "attention.clamp_kqv", "attn_logit_softcapping"})
    if (file.FindValue(keys.Name(key)) != nullptr) return keys.Refuse(key, "this setting");
  VC_RETURN_IF_ERROR(CheckSlidingWindow(file, config));
  VC_RETURN_IF_ERROR(ReadVocabSize(file, keys, &config));
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  absl::StatusOr<ModelConfig> config = ReadKeys(file);
  // The reader's kNotFound for an absent key would look like a missing file.
  if (absl::IsNotFound(config.status()))
    return absl::InvalidArgumentError(config.status().message());
  return config;
}

}  // namespace vericache
