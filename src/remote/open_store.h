// From what a user wrote to a store: folders, Redis, S3, one or several as tiers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "remote/s3_credentials.h"
#include "storage/blob_store.h"

namespace vericache {

struct StoreOptions {
  bool read_only = false;
  uint64_t max_folder_bytes = 0;  // budget of each folder; 0: what its volume has free
  Environment environment;        // for credentials
  std::function<void(std::string_view)> on_notice;  // one line, from any thread
};

// `text`: as ParseStoreList(). A remote store that does not answer is no error: the start does not
// need it, and it is told. ERRORS: kInvalidArgument; those of FileBlobStore::Open().
absl::StatusOr<std::unique_ptr<BlobStore>> OpenStore(std::string_view text,
                                                     const StoreOptions& options);

// Everything that OpenStore() would refuse without opening anything.
absl::Status CheckStores(std::string_view text);

// The first folder in the list, or "".
std::string FolderIn(std::string_view text);

}  // namespace vericache
