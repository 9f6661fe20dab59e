// Where model files come from and where they lie: START HERE for `vericache pull` and `-m NAME`.
//
// Pulls one GGUF file from the Hugging Face Hub (or a server that speaks its API) into the models
// folder. A file gets its name only after its SHA-256 is right, so that what is there is whole.
// Reads no environment variables: the command line passes HF_TOKEN and HF_ENDPOINT in.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace vericache {

inline constexpr char kDefaultHubEndpoint[] = "https://huggingface.co";

struct PullOptions {
  // "OWNER/REPO", "OWNER/REPO/FILE.gguf", either with "hf:" before it, or a short name.
  std::string model;
  std::string models_dir;  // made if missing
  std::string endpoint = kDefaultHubEndpoint;
  std::string token;    // sent to the endpoint's own host and to no other; empty: none
  std::string ca_file;  // certificates to trust; empty: the system's

  int connect_timeout_ms = 5000;
  int stall_timeout_s = 30;  // no byte for so long: the connection is given up and tried again
  int num_retries_max = 5;   // in a row without a new byte; then the pull fails
  int retry_delay_ms = 500;  // doubles from one retry to the next, up to 16 times

  // Called often, from this thread, with the bytes on disk and those of the whole file.
  std::function<void(int64_t bytes_done, int64_t bytes_total)> on_progress;
  // One line worth telling: "going on at 12 of 98 MB", "HTTP 503, trying again in 1 s".
  std::function<void(const std::string& line)> on_note;
};

// Downloads the file and returns its path in the models folder: NAME.gguf for a short name, else
// the file's own name. A file that is there already, with the right digest, is not fetched again.
//
// Interrupted, cut off or out of disk space, it leaves FILE.part (and FILE.part.sha256, which says
// what the part is a part of); the next call goes on from there if the Hub still has that file.
// ERRORS: one line each, saying what to do. kInvalidArgument: no such reference, or a repository
//         with several GGUF files (they are listed); kNotFound: no such repository or file;
//         kPermissionDenied: private or gated; kUnavailable: not reachable, or broken off too
//         often; kResourceExhausted: the disk is full; kDataLoss: wrong digest (the part is
//         deleted); kAlreadyExists: another file has that name; kAborted: another pull is writing
//         it; kFailedPrecondition: what answered is not a Hub.
// THREADS: safe for different models_dir; for one file the second caller gets kAborted.
// SOURCE: Hub API documentation: /api/models/{repo}/tree/{revision}, /{repo}/resolve/...
absl::StatusOr<std::string> PullModel(const PullOptions& options);

// The path meant by `-m NAME_OR_PATH`: a path that exists or contains a '/', else NAME or
// NAME.gguf in the models folder.
// ERRORS: kNotFound, listing what the models folder holds and how to get a model.
absl::StatusOr<std::string> ResolveModel(const std::string& name_or_path,
                                         const std::string& models_dir);

// File names (without folder) of the models in the folder, sorted; empty if there is none.
std::vector<std::string> ListModels(const std::string& models_dir);

// The short names `PullModel` knows, in the order to show them.
std::vector<std::string> ShortModelNames();

}  // namespace vericache
