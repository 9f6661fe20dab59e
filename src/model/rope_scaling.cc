#include "model/rope_scaling.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/status_macros.h"
#include "base/text.h"
#include "model/rope.h"

namespace vericache {
namespace {

constexpr int64_t kMaxContext = 1 << 28;  // angles stay in the range of ContractSinCos
constexpr std::string_view kPrefix = "rope.scaling.";
// Keys that are read, or that change nothing.
constexpr std::array<std::string_view, 10> kKnownKeys = {"type",
                                                         "factor",
                                                         "original_context_length",
                                                         "finetuned",
                                                         "attn_factor",
                                                         "yarn_attn_factor",
                                                         "yarn_beta_fast",
                                                         "yarn_beta_slow",
                                                         "yarn_ext_factor",
                                                         "yarn_log_multiplier"};

class ScalingKeys {
 public:
  ScalingKeys(const GgufFile& file, std::string_view arch)
      : file_(file), prefix_(StrCat(arch, ".", kPrefix)) {}

  std::string Name(std::string_view key) const { return StrCat(prefix_, key); }
  bool Has(std::string_view key) const { return file_.FindValue(Name(key)) != nullptr; }

  // Left as it is where the file has no such key.
  absl::Status Positive(std::string_view key, double* value) const {
    if (!Has(key)) return absl::OkStatus();
    VC_ASSIGN_OR_RETURN(*value, file_.GetFloat(Name(key)));
    if (*value > 0 && std::isfinite(*value)) return absl::OkStatus();
    return Invalid(key, *value, "a number above 0");
  }
  // Another value than `neutral` would change angles in a way that we do not compute.
  absl::Status Neutral(std::string_view key, double neutral) const {
    VC_ASSIGN_OR_RETURN(const double value, file_.GetFloatOr(Name(key), neutral));
    if (value == neutral) return absl::OkStatus();
    return absl::UnimplementedError(
        StrCat(file_.path(), ": ", Name(key), " of ", value, " is not supported"));
  }
  absl::Status OnlyKnown() const {
    for (const auto& [name, value] : file_.metadata()) {
      if (!name.starts_with(prefix_)) continue;
      const std::string_view key = std::string_view(name).substr(prefix_.size());
      if (std::find(kKnownKeys.begin(), kKnownKeys.end(), key) == kKnownKeys.end())
        return absl::UnimplementedError(
            StrCat(file_.path(), ": ", name, ": this setting is not supported"));
    }
    return absl::OkStatus();
  }
  absl::Status Invalid(std::string_view key, double value, std::string_view expected) const {
    return absl::InvalidArgumentError(
        StrCat(file_.path(), ": ", Name(key), " is ", value, ", expected ", expected));
  }

 private:
  const GgufFile& file_;
  const std::string prefix_;
};

// A factor without a type means linear.
absl::Status ReadType(const GgufFile& file, const ScalingKeys& keys, bool has_factor,
                      RopeScaling* type) {
  std::string_view name = has_factor ? "linear" : "none";
  if (keys.Has("type")) {
    VC_ASSIGN_OR_RETURN(name, file.GetString(keys.Name("type")));
  }
  for (RopeScaling known : {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kYarn}) {
    if (name != RopeScalingName(known)) continue;
    *type = known;
    return absl::OkStatus();
  }
  return absl::UnimplementedError(StrCat(file.path(), ": ", keys.Name("type"), ": rope scaling \"",
                                         name, "\" is not supported"));
}

absl::Status ReadYarn(const ScalingKeys& keys, ModelConfig* config) {
  VC_RETURN_IF_ERROR(keys.Positive("attn_factor", &config->rope_attn_factor));
  VC_RETURN_IF_ERROR(keys.Positive("yarn_attn_factor", &config->yarn_attn_factor));
  VC_RETURN_IF_ERROR(keys.Positive("yarn_beta_fast", &config->yarn_beta_fast));
  VC_RETURN_IF_ERROR(keys.Positive("yarn_beta_slow", &config->yarn_beta_slow));
  VC_RETURN_IF_ERROR(keys.Neutral("yarn_ext_factor", 1));
  return keys.Neutral("yarn_log_multiplier", 0);
}

// The context that a scaling makes of the original one.
absl::Status ExtendContext(ModelConfig* config) {
  const double length = std::floor(static_cast<double>(config->orig_context) * config->rope_scale);
  if (!(length <= static_cast<double>(kMaxContext)))
    return absl::InvalidArgumentError(StrCat("a rope scale of ", config->rope_scale, " makes ",
                                             length, " tokens of context of ", config->orig_context,
                                             ", more than ", kMaxContext));
  config->context_length = static_cast<int64_t>(length);
  return absl::OkStatus();
}

absl::Status CheckYarn(const ModelConfig& config) {
  const YarnRange range = YarnRangeOf(config);
  if (range.low <= range.high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("YaRN has no range of dimensions to scale with a rope base of ", config.rope_theta,
             ", an original context of ", config.orig_context, " and betas of ",
             config.yarn_beta_fast, " and ", config.yarn_beta_slow));
}

void ResetScaling(ModelConfig* config) {
  const ModelConfig plain;
  config->rope_scaling = RopeScaling::kNone;
  config->rope_scale = 1.0;
  config->rope_attn_factor = plain.rope_attn_factor;
  config->yarn_attn_factor = plain.yarn_attn_factor;
  config->yarn_beta_fast = plain.yarn_beta_fast;
  config->yarn_beta_slow = plain.yarn_beta_slow;
}

}  // namespace

std::string_view RopeScalingName(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kYarn:
      return "yarn";
    case RopeScaling::kNone:
      break;
  }
  return "none";
}

absl::Status ReadRopeScaling(const GgufFile& file, std::string_view arch, ModelConfig* config) {
  const ScalingKeys keys(file, arch);
  std::string factor_key = keys.Name("factor");
  // Old files have only this.
  const std::string old_factor_key = StrCat(arch, ".rope.scale_linear");
  if (file.FindValue(factor_key) == nullptr && file.FindValue(old_factor_key) != nullptr)
    factor_key = old_factor_key;
  VC_RETURN_IF_ERROR(
      ReadType(file, keys, file.FindValue(factor_key) != nullptr, &config->rope_scaling));
  VC_RETURN_IF_ERROR(keys.OnlyKnown());
  VC_ASSIGN_OR_RETURN(config->orig_context, file.GetIntOr(keys.Name("original_context_length"), 0));
  if (keys.Has("original_context_length") &&
      (config->orig_context < 1 || config->orig_context > kMaxContext))
    return keys.Invalid("original_context_length", static_cast<double>(config->orig_context),
                        StrCat("1 to ", kMaxContext));
  if (config->rope_scaling != RopeScaling::kYarn)
    VC_RETURN_IF_ERROR(keys.Neutral("attn_factor", 1));
  if (config->rope_scaling == RopeScaling::kNone) return absl::OkStatus();
  VC_ASSIGN_OR_RETURN(config->rope_scale, file.GetFloat(factor_key));
  if (!(config->rope_scale >= 1) || !std::isfinite(config->rope_scale))
    return absl::InvalidArgumentError(StrCat(file.path(), ": ", factor_key, " is ",
                                             config->rope_scale,
                                             ", expected a number of at least 1"));
  if (config->rope_scaling == RopeScaling::kLinear) return absl::OkStatus();
  VC_RETURN_IF_ERROR(ReadYarn(keys, config));
  // Files say the context before or after the scaling.
  if (config->orig_context == 0) config->orig_context = config->context_length;
  const int64_t stated = config->context_length;
  VC_RETURN_IF_ERROR(ExtendContext(config));
  config->context_length = std::max(config->context_length, stated);
  return CheckYarn(*config);
}

absl::Status CheckSlidingWindow(const GgufFile& file, const ModelConfig& config) {
  const std::string key = StrCat(config.architecture, ".attention.sliding_window");
  VC_ASSIGN_OR_RETURN(const int64_t window, file.GetIntOr(key, 0));
  if (window <= 0 || window >= config.context_length) return absl::OkStatus();
  return absl::UnimplementedError(StrCat(file.path(), ": ", key, " of ", window,
                                         ": sliding-window attention is not supported"));
}

absl::Status ApplyRopeOverride(const RopeOverride& wanted, ModelConfig* config) {
  if (wanted.type.empty()) {
    if (wanted.scale == 0 && wanted.orig_context == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "a rope scale or original context needs a rope scaling: linear or yarn");
  }
  RopeScaling type = RopeScaling::kNone;
  if (wanted.type == "linear") {
    type = RopeScaling::kLinear;
  } else if (wanted.type == "yarn") {
    type = RopeScaling::kYarn;
  } else if (wanted.type != "none") {
    return absl::InvalidArgumentError(
        StrCat("rope scaling is '", wanted.type, "', expected none, linear or yarn"));
  }
  if (type == RopeScaling::kNone && wanted.scale != 0)
    return absl::InvalidArgumentError("rope scaling none has no scale");
  if (type != RopeScaling::kNone && (!(wanted.scale >= 1) || !std::isfinite(wanted.scale)))
    return absl::InvalidArgumentError(StrCat("the rope scale is ", wanted.scale, ", and ",
                                             wanted.type, " needs a number of at least 1"));
  if (wanted.orig_context < 0 || wanted.orig_context > kMaxContext)
    return absl::InvalidArgumentError(StrCat("the original context is ", wanted.orig_context,
                                             " tokens, expected 1 to ", kMaxContext));
  const bool was_scaled = config->rope_scaling != RopeScaling::kNone;
  ModelConfig changed = *config;
  if (wanted.orig_context > 0) changed.orig_context = wanted.orig_context;
  if (changed.orig_context == 0) {
    if (was_scaled)
      return absl::InvalidArgumentError(
          "the model file scales its context already and does not say from what: give the "
          "original context");
    changed.orig_context = changed.context_length;
  }
  ResetScaling(&changed);
  // A scale of 1 is no scaling: the same angles bit for bit, and the same keys.
  if (wanted.scale > 1) {
    changed.rope_scaling = type;
    changed.rope_scale = wanted.scale;
  }
  VC_RETURN_IF_ERROR(ExtendContext(&changed));
  if (changed.rope_scaling == RopeScaling::kYarn) VC_RETURN_IF_ERROR(CheckYarn(changed));
  *config = std::move(changed);
  return absl::OkStatus();
}

}  // namespace vericache
