// What a user calls a model, taken apart: a short name, or a repository and a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace vericache {

struct ModelReference {
  std::string repo;        // "OWNER/REPO"
  std::string file;        // path in the repository; empty: its only GGUF file
  std::string local_name;  // file name to save under; empty: that of `file`
  std::string sha256;      // of the file, in hex, where we know it ourselves; empty: ask the Hub
};

// ERRORS: kInvalidArgument, saying what is accepted.
absl::StatusOr<ModelReference> ParseModelReference(const std::string& text);

// The last part of a path.
std::string BaseName(const std::string& path);
// True for "x.gguf" in any case.
bool HasGgufSuffix(const std::string& name);
// Percent-encoded for a URL, slashes kept.
std::string EncodePath(const std::string& path);

}  // namespace vericache
