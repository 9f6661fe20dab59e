// The Hub's answer to "what is in this repository": JSON, hostile like anything from the network.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace vericache {

struct RemoteFile {
  std::string path;    // in the repository
  int64_t bytes = -1;  // -1: not said
  std::string sha256;  // in hex; empty: not said
};

// One page of /api/models/{repo}/tree/{revision}: the files, folders left out.
// ERRORS: kFailedPrecondition if this is no such page.
absl::StatusOr<std::vector<RemoteFile>> ParseTreePage(const std::string& json);

// The URL of the next page in a Link header (`<URL>; rel="next"`), or "".
std::string NextPageUrl(const std::string& link_header);

// True for 64 hex digits.
bool IsSha256Hex(const std::string& text);

// Chooses `wanted` among `files`, or the only GGUF file where `wanted` is empty.
// ERRORS: kNotFound, kInvalidArgument (several): they list the GGUF files there are.
absl::StatusOr<RemoteFile> ChooseFile(const std::string& repo, const std::string& wanted,
                                      const std::vector<RemoteFile>& files);

}  // namespace vericache
