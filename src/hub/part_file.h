// A download in progress on disk: FILE.part, and FILE.part.sha256, which names the digest of the
// whole file that the part belongs to.
//
// The final name appears by a rename after the digest of what is really on the disk was found
// right; nothing half-written is ever under it. A part whose note is missing or names another
// digest belongs to another version of the file and is started anew.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace vericache {

class PartFile {
 public:
  // Opens or creates the part of `target` and locks it against other processes.
  // REQUIRES: bytes_total >= 0; sha256 is 64 lower-case hex digits.
  // ERRORS: kAborted: another process is downloading this file; kResourceExhausted: not enough
  //         room for the rest; kPermissionDenied, kUnavailable: the folder cannot be written.
  static absl::StatusOr<PartFile> Open(const std::string& target, int64_t bytes_total,
                                       const std::string& sha256);
  PartFile(PartFile&& other) noexcept;
  PartFile& operator=(PartFile&&) = delete;
  ~PartFile();  // keeps what is there for the next time, unless it is empty

  int64_t bytes_done() const { return bytes_done_; }
  int64_t bytes_total() const { return bytes_total_; }

  absl::Status Append(absl::Span<const char> bytes);
  // Throws away what is there: the server cannot go on in the middle.
  absl::Status Restart();
  // Checks size and digest and gives the file its name.
  // ERRORS: kDataLoss: not the file it should be; the part is deleted.
  absl::Status Finish();

 private:
  PartFile(int fd, const std::string& target, int64_t bytes_total, const std::string& sha256);
  absl::Status ReadState();
  absl::Status CheckRoom() const;
  absl::Status WriteError(const std::string& what) const;  // from errno
  void Remove();

  int fd_;
  const std::string target_, part_path_, note_path_;
  const int64_t bytes_total_;
  const std::string sha256_;
  int64_t bytes_done_ = 0;
  bool owned_ = false;  // locked, and still under its own name
};

}  // namespace vericache
