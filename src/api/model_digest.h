// SHA-256 of a model file, remembered, so that a start does not read a gigabyte.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace vericache {

// What changes when a file's contents do: every write sets both times, and the inode's time (ctime)
// cannot be set back by those who may write the file.
struct FileIdentity {
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;

  bool operator==(const FileIdentity&) const = default;
};

// ERRORS: kNotFound.
absl::StatusOr<FileIdentity> IdentityOfFile(const std::string& path);

enum class DigestNotes { kReadOnly, kReadWrite };

// Hex SHA-256 of `path`, from a note in `folder` if the file is still the one it speaks of. A file
// changed within the last seconds is read whatever a note says: clocks tick slower than disks
// write. An adversary who can write into `folder`, set the clock or write the raw device can make a
// note lie; `folder` must be trusted like the model itself. ERRORS: kNotFound, kUnavailable;
// kDataLoss: the file changed while it was read.
absl::StatusOr<std::string> RememberedModelDigest(const std::string& path,
                                                  const std::string& folder, DigestNotes notes);

}  // namespace vericache
