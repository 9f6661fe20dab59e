#include "api/rope_settings.h"

#include <cstring>

#include "base/status_macros.h"
#include "base/text.h"
#include "model/rope_scaling.h"

namespace vericache {
namespace {

// All its bits, so that no two settings look alike.
std::string BitsOf(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return StrCat(absl::Hex(bits));
}

}  // namespace

std::string RopeText(const ModelConfig& c) {
  std::string text = StrCat("pairs=", static_cast<int>(c.rope_pairs), " dim=", c.rotary_dim,
                            " theta=", BitsOf(c.rope_theta), " scale=", BitsOf(c.rope_scale));
  if (c.rope_scaling != RopeScaling::kYarn) return text;
  return StrCat(text, " yarn orig=", c.orig_context, " attn=", BitsOf(c.yarn_attn_factor), ",",
                BitsOf(c.rope_attn_factor), " betas=", BitsOf(c.yarn_beta_fast), ",",
                BitsOf(c.yarn_beta_slow));
}

std::string RopeFlags(const RopeOptions& rope) {
  if (rope.scaling.empty()) return "no --rope-scaling";
  std::string text = StrCat("--rope-scaling ", rope.scaling);
  if (rope.scale != 0) text = StrCat(text, " --rope-scale ", rope.scale);
  if (rope.orig_context != 0) text = StrCat(text, " --rope-orig-context ", rope.orig_context);
  return text;
}

absl::StatusOr<RopeOptions> ApplyRope(const RopeOptions& wanted, const GgufFile& file,
                                      ModelConfig* config) {
  const std::string own = RopeText(*config);
  VC_RETURN_IF_ERROR(
      ApplyRopeOverride({wanted.scaling, wanted.scale, wanted.orig_context}, config));
  VC_RETURN_IF_ERROR(CheckSlidingWindow(file, *config));
  if (RopeText(*config) == own) return RopeOptions();
  RopeOptions rope;
  rope.scaling = std::string(RopeScalingName(config->rope_scaling));
  if (config->rope_scaling != RopeScaling::kNone) rope.scale = config->rope_scale;
  rope.orig_context = config->orig_context;
  return rope;
}

}  // namespace vericache
