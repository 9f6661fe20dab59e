// Positions beyond the trained context: how the model file, or the caller, scales rope.
//
// YaRN is arXiv 2309.00071 as Hugging Face transformers computes it; docs/exactness.md has every
// step. SOURCE of the keys: llama.cpp's gguf constants (rope.scaling.*).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "gguf/reader.h"
#include "model/config.h"

namespace vericache {

std::string_view RopeScalingName(RopeScaling scaling);  // "none", "linear", "yarn"

// Reads rope.scaling.* and rope.scale_linear, and makes the context as long as they allow.
// REQUIRES: rope_theta, rotary_dim and context_length are set.
// ERRORS: kUnimplemented: a type or a key that changes angles in a way we do not compute, by name;
//         kInvalidArgument, kNotFound: a missing or senseless value, by key.
absl::Status ReadRopeScaling(const GgufFile& file, std::string_view arch, ModelConfig* config);

// What a caller wants instead of the file's scaling.
struct RopeOverride {
  std::string type;          // "none", "linear", "yarn"; "": the file's own scaling stays
  double scale = 0;          // at least 1; 0 only where there is nothing to scale
  int64_t orig_context = 0;  // 0: what the file says
};

// Takes nothing from the file's scaling but the original context: constants are YaRN's usual ones.
// ERRORS: kInvalidArgument: senseless values; a file whose original context is not known.
absl::Status ApplyRopeOverride(const RopeOverride& wanted, ModelConfig* config);

// A context may not be longer than a window that attention slides in, which is not computed here.
// ERRORS: kUnimplemented; kInvalidArgument: the key is no number.
absl::Status CheckSlidingWindow(const GgufFile& file, const ModelConfig& config);

}  // namespace vericache
