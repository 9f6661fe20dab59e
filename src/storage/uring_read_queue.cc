// The thread sleeps in one place, in the ring, and is woken by a finished read, by the time at
// which the next read may start, or by an eventfd whose poll lies in the ring like a read.
#include "storage/uring_read_queue.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/ledger_read_queue.h"

namespace vericache {
namespace {

constexpr size_t kBufferBytesMax = size_t{1} << 30;  // the kernel's limit for one buffer
constexpr uint64_t kWakeData = UINT64_MAX - 1;       // liburing keeps UINT64_MAX for itself

absl::Status Forbidden(const char* what, int code) {
  return absl::UnavailableError(absl::StrCat("io_uring cannot be used here (", what, ": ",
                                             std::strerror(code), "); use pread"));
}

class UringQueue : public LedgerReadQueue {
 public:
  explicit UringQueue(const ReadQueueOptions& options)
      : LedgerReadQueue(options, [this] { Wake(); }),
        depth_(options.depth),
        staging_(options.staging),
        staging_bytes_(options.staging_bytes),
        chunks_(options.depth) {
    for (int i = 0; i < depth_; ++i) free_.push_back(i);
  }

  ~UringQueue() override {
    if (thread_.joinable()) {
      ledger_.Stop();
      thread_.join();
    }
    if (has_ring_) io_uring_queue_exit(&ring_);
    if (event_fd_ >= 0) (void)close(event_fd_);
  }

  absl::Status Start() {
    event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event_fd_ < 0) return Forbidden("eventfd", errno);
    const int error = io_uring_queue_init(static_cast<unsigned>(depth_) + 1, &ring_, 0);
    if (error < 0) return Forbidden("set-up", -error);
    has_ring_ = true;
    // Older kernels wait for a time by an extra ring entry, which Run does not count on.
    if ((ring_.features & IORING_FEAT_EXT_ARG) == 0) return Forbidden("kernel", ENOSYS);
    RegisterStaging();
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error& e) {
      return Forbidden("thread", e.code().value());
    }
    return absl::OkStatus();
  }

  const char* backend() const override {
    return registered_ ? "io_uring, registered buffers" : "io_uring";
  }

 private:
  void Wake() {
    const uint64_t one = 1;
    (void)!write(event_fd_, &one, sizeof(one));  // full = somebody has woken it already
  }

  // Not allowed (RLIMIT_MEMLOCK) is no error: the kernel then maps the pages for every read.
  void RegisterStaging() {
    if (staging_ == nullptr || staging_bytes_ == 0) return;
    std::vector<iovec> pieces;
    for (size_t begin = 0; begin < staging_bytes_; begin += kBufferBytesMax) {
      pieces.push_back({staging_.get() + begin, std::min(kBufferBytesMax, staging_bytes_ - begin)});
    }
    registered_ = io_uring_register_buffers(&ring_, pieces.data(), pieces.size()) == 0;
  }

  // Index of the registered buffer that holds all of a chunk, or -1.
  int BufferOf(const ReadLedger::Chunk& chunk) const {
    if (!registered_) return -1;
    const auto begin = reinterpret_cast<uintptr_t>(staging_.get());
    const auto dest = reinterpret_cast<uintptr_t>(chunk.dest);
    if (dest < begin || dest - begin >= staging_bytes_) return -1;
    const size_t offset = dest - begin;
    if (chunk.issue_bytes > staging_bytes_ - offset) return -1;
    const size_t idx = offset / kBufferBytesMax;
    return idx == (offset + chunk.issue_bytes - 1) / kBufferBytesMax ? static_cast<int>(idx) : -1;
  }

  // There is always an entry: the ring has one for each slot and one for the poll.
  void PrepareRead(int slot) {
    const ReadLedger::Chunk& chunk = chunks_[slot];
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    const auto bytes = static_cast<unsigned>(chunk.issue_bytes);
    if (const int buffer = BufferOf(chunk); buffer >= 0) {
      io_uring_prep_read_fixed(entry, chunk.file->fd(), chunk.dest, bytes, chunk.offset, buffer);
    } else {
      io_uring_prep_read(entry, chunk.file->fd(), chunk.dest, bytes, chunk.offset);
    }
    io_uring_sqe_set_data64(entry, static_cast<uint64_t>(slot));
  }

  void PreparePoll() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    io_uring_prep_poll_add(entry, event_fd_, POLLIN);
    io_uring_sqe_set_data64(entry, kWakeData);
  }

  void Reap() {
    io_uring_cqe* done = nullptr;
    while (io_uring_peek_cqe(&ring_, &done) == 0) {
      const uint64_t data = io_uring_cqe_get_data64(done);
      const int64_t result = done->res;
      io_uring_cqe_seen(&ring_, done);
      if (data == kWakeData) {
        uint64_t count = 0;
        (void)!read(event_fd_, &count, sizeof(count));
        PreparePoll();
        continue;
      }
      const int slot = static_cast<int>(data);
      free_.push_back(slot);
      ledger_.Complete(chunks_[slot], result);
    }
  }

  void Run() {
    PreparePoll();
    for (;;) {
      int64_t wait_ns = ReadLedger::kNothing;
      while (!free_.empty()) {
        const int slot = free_.back();
        wait_ns = ledger_.Take(&chunks_[slot]);
        if (wait_ns != 0) break;
        free_.pop_back();
        PrepareRead(slot);
      }
      const bool idle = static_cast<int>(free_.size()) == depth_;
      if (wait_ns == ReadLedger::kStop && idle) return;
      const bool timed = wait_ns > 0 && wait_ns != ReadLedger::kNothing;
      __kernel_timespec timeout{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
      io_uring_cqe* done = nullptr;
      const int result =
          io_uring_submit_and_wait_timeout(&ring_, &done, 1, timed ? &timeout : nullptr, nullptr);
      // Entries that were not taken stay in the ring and are submitted in the next turn.
      if (result == -EAGAIN || result == -ENOMEM || result == -EBUSY) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      Reap();
    }
  }

  const int depth_;
  const std::shared_ptr<uint8_t[]> staging_;
  const size_t staging_bytes_;
  io_uring ring_{};
  bool has_ring_ = false;
  bool registered_ = false;
  int event_fd_ = -1;
  std::vector<ReadLedger::Chunk> chunks_;  // [depth], in flight unless in free_
  std::vector<int> free_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReadQueue>> MakeUringQueue(const ReadQueueOptions& options) {
  auto queue = std::make_unique<UringQueue>(options);
  if (absl::Status status = queue->Start(); !status.ok()) return status;
  return queue;
}

}  // namespace vericache
