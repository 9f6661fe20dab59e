// One unlinked file for K/V that does not fit into RAM.
//
// The file has no name (O_TMPFILE; where a file system lacks it, a name that is removed at once),
// so its space is free again when the last owner goes, and also after a crash. It is sparse: only
// what was written takes room. Read with a ReadQueue (storage/read_queue.h).
// The page cache stays out of it: O_DIRECT where the file system has it, else written and read
// pages are dropped again. What is cached twice would break the memory budget.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace vericache {

class FaultPlan;

// Offsets, sizes and addresses of all reads and writes are multiples of this.
inline constexpr size_t kSpillAlign = 4096;

class SpillFile {
 public:
  // `faults` is for tests and may be null.
  // ERRORS: kNotFound: no such folder; kPermissionDenied: cannot write there; kResourceExhausted:
  //         no room for a single page; kUnavailable: anything else the system says.
  static absl::StatusOr<std::shared_ptr<SpillFile>> Create(
      const std::string& folder, std::shared_ptr<FaultPlan> faults = nullptr);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Writes all of `bytes` bytes; the file grows as needed.
  // ERRORS: kInvalidArgument: something is not aligned, or beyond 2^62; kResourceExhausted: the
  //         disk (or a quota, or the file size limit) is full; kDataLoss: the device failed (EIO);
  //         kUnavailable: anything else. After an error the range holds anything.
  // COST:   one synchronous write; long ones are faster (512 KiB and more).
  // THREADS: safe for ranges that do not overlap.
  absl::Status Write(uint64_t offset, const uint8_t* data, size_t bytes);

  // Gives the room of a range back; it reads as zeros afterwards. Best effort: where the file
  // system cannot, the range keeps its room until the file goes.
  // REQUIRES: nothing reads or writes the range at the same time.
  void Free(uint64_t offset, uint64_t bytes);

  // Drops what the page cache holds of a range that was read. Nothing to do with O_DIRECT.
  void DropCache(uint64_t offset, size_t bytes) const;

  uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }
  // Room the file takes on disk now, by the file system's own account. 0 if it does not say.
  uint64_t bytes_on_disk() const;
  bool direct() const { return direct_; }  // O_DIRECT
  const std::string& folder() const { return folder_; }
  int fd() const { return fd_; }  // for ReadQueue alone

 private:
  SpillFile(int fd, bool direct, std::string folder, std::shared_ptr<FaultPlan> faults);
  absl::Status TryWrite();  // the first page: is there room, does O_DIRECT work?
  absl::Status WriteError(int code, uint64_t offset, size_t bytes) const;

  const int fd_;
  bool direct_;
  const std::string folder_;
  const std::shared_ptr<FaultPlan> faults_;
  std::atomic<uint64_t> bytes_written_{0};
};

}  // namespace vericache
