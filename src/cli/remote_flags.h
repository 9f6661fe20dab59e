// The flags of a serving node that drafts for verifiers elsewhere (docs/remote_drafting.md).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/args.h"
#include "vericache/remote.h"

namespace vericache::cli {

struct RemoteFlags {
  std::vector<std::string> urls;
  std::string key_file, ca_file;
  float timeout_s = static_cast<float>(ConnectOptions().timeout_s);

  void Declare(Flags* flags);
  bool wanted() const { return !urls.empty(); }
  // ERRORS: a URL or a key file that is none.
  absl::StatusOr<std::vector<std::unique_ptr<RemoteVerifier>>> Connect() const;
};

// Keys of requests, one a line. ERRORS: kInvalidArgument where the file holds none.
absl::StatusOr<std::vector<std::string>> ReadKeyFile(const std::string& path);

// A line for stderr.
std::string RemoteSummary(const RemoteStats& stats);

}  // namespace vericache::cli
