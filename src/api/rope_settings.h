// Rope settings between callers, receipts, sessions and the model (internal to src/api).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/config.h"
#include "vericache/options.h"

namespace vericache {

// Every setting that turns positions into angles, with all its bits; rope factors are in the model
// file. Part of prefix keys and session files: it must not change for what it could say before.
std::string RopeText(const ModelConfig& config);

// As flags, for messages.
std::string RopeFlags(const RopeOptions& rope);

// Gives `config`, as `file` says it, the rope settings that are wanted. Returns them with nothing
// left open, or RopeOptions() where all angles are those of the file's own settings.
// ERRORS: those of ApplyRopeOverride() and CheckSlidingWindow().
absl::StatusOr<RopeOptions> ApplyRope(const RopeOptions& wanted, const GgufFile& file,
                                      ModelConfig* config);

}  // namespace vericache
