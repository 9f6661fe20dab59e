#include "storage/read_queue.h"

#include "absl/strings/str_cat.h"
#include "storage/pread_read_queue.h"
#include "storage/spill_file.h"
#include "storage/uring_read_queue.h"

namespace vericache {
namespace {

constexpr int kMaxDepth = 256;
constexpr size_t kMaxReadBytes = size_t{1} << 30;  // below what one system call reads

absl::Status Check(const ReadQueueOptions& options) {
  if (options.depth < 1 || options.depth > kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat("the depth of a read queue must be 1 to ",
                                                   kMaxDepth, ", not ", options.depth));
  }
  if (options.read_bytes < kSpillAlign || options.read_bytes > kMaxReadBytes ||
      options.read_bytes % kSpillAlign != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the size of a read must be a multiple of ",
                                                   kSpillAlign, " up to ", kMaxReadBytes, ", not ",
                                                   options.read_bytes));
  }
  if (options.bytes_per_second < 0) {
    return absl::InvalidArgumentError("the read limit must not be negative; 0 = none");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReadQueue>> MakeReadQueue(const ReadQueueOptions& options) {
  if (absl::Status status = Check(options); !status.ok()) return status;
  if (options.backend == ReadBackend::kPread) return MakePreadQueue(options);
  auto queue = MakeUringQueue(options);
  if (queue.ok() || options.backend == ReadBackend::kIoUring) return queue;
  return MakePreadQueue(options);
}

}  // namespace vericache
