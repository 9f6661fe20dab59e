// Stored prefixes from outside an engine: listed, removed, measured, checked. No model is needed.
//
// What `vericache prefix` does (docs/remote_prefixes.md). To store one: Engine::PushPrefix().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace vericache {

// Whether a prefix store is written right, as far as can be told without opening it; and how it may
// be printed, without passwords. ERRORS: kInvalidArgument, which never repeats a password.
absl::Status CheckPrefixStore(std::string_view store);
std::string PrefixStoreName(std::string_view store);

struct PrefixStoreOptions {
  std::string store;  // as EngineOptions::prefix_store
  bool read_only = true;
  std::function<std::string(const std::string& name)> environment;  // as EngineOptions has it
  std::function<void(std::string_view text)> on_notice;
};

struct StoredDraft {
  std::string spec;
  int64_t num_tokens = 0;
  uint64_t num_bytes = 0;
};

struct StoredPrefix {
  std::string id;  // hex, names it in `prefix rm`
  std::string model_name, model_digest, kv_format, label;
  int64_t num_tokens = 0;
  uint64_t full_bytes = 0;  // of full KV; blocks that prefixes share count in each
  std::vector<StoredDraft> drafts;
  int64_t created_s = 0;  // seconds since 1970
  int64_t age_s = 0;      // since it was created, or last used where the store keeps that
  std::vector<std::string> tiers;
};

struct PrefixTier {
  std::string name;
  int64_t num_prefixes = 0, num_blobs = 0;
  uint64_t num_bytes = 0;
  int64_t unlisted_blobs = 0;  // that no prefix names: older versions', or a record is gone
  uint64_t unlisted_bytes = 0;
  std::string error;  // why there are no figures
};

// Which prefixes to remove: those that fit all that is said.
struct PrefixFilter {
  std::vector<std::string> ids;  // whole, or beginnings of at least 4 digits that fit one
  std::string model;             // name, or digest or its beginning
  int64_t older_than_s = -1;     // -1: of any age
  bool everything = false;       // without it an empty filter is refused
};

struct PrefixRemoval {
  std::vector<StoredPrefix> prefixes;
  int64_t num_blobs = 0;  // that no prefix left needs
  uint64_t num_bytes = 0;
};

struct PrefixCheckTier {
  std::string name;
  int64_t num_blobs = 0, sound = 0, damaged = 0;
  uint64_t num_bytes = 0;
  int64_t incomplete_prefixes = 0;  // whose blobs are not all there
  int64_t repaired = 0;             // blobs removed by a repair
  std::string error;                // it could not be read to its end
};

class PrefixAdmin {
 public:
  // ERRORS: those of a prefix store that an engine is given.
  static absl::StatusOr<std::unique_ptr<PrefixAdmin>> Open(const PrefixStoreOptions& options);
  ~PrefixAdmin();

  using Progress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

  // Of all tiers, newest first. ERRORS: no tier could be read.
  absl::StatusOr<std::vector<StoredPrefix>> List();
  std::vector<PrefixTier> Stat();
  enum class Removing { kDryRun, kReally };
  // ERRORS: kInvalidArgument (nothing or several things fit an id), kFailedPrecondition (read
  //         only), those of the stores.
  absl::StatusOr<PrefixRemoval> Remove(const PrefixFilter& filter, Removing removing);
  enum class Checking { kOnlyLook, kRepair };
  // Reads every blob of every tier. kRepair removes what is damaged and records of what is
  // incomplete, nothing else.
  std::vector<PrefixCheckTier> Check(Checking checking, const Progress& progress);

 private:
  struct Impl;
  explicit PrefixAdmin(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace vericache
