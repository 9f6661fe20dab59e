// Where models lie and how a command gets one into memory.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/args.h"
#include "cli/progress.h"
#include "vericache/engine.h"

namespace vericache::cli {

// $XDG_CACHE_HOME/vericache/models, by default ~/.cache/vericache/models.
// ERRORS: kFailedPrecondition: neither variable is set.
absl::StatusOr<std::string> ModelsFolder();

// The file meant by a path or a name. ERRORS: kNotFound, saying what there is.
absl::StatusOr<std::string> FindModel(const std::string& name_or_path);

// Loads what -m names, with a bar, and tells model, context, threads, kernels and what the prefix
// store holds on stderr.
absl::StatusOr<std::unique_ptr<Engine>> LoadEngine(const ModelFlags& flags,
                                                   const PrefixFlags& prefix = {},
                                                   const std::string& draft_model = "");

ProgressWish WishOf(const ModelFlags& flags);

// What a variable of the environment holds, "" where it is not set: for credentials of stores.
std::string EnvironmentOf(const std::string& name);

}  // namespace vericache::cli
