#include "storage/pread_read_queue.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "storage/ledger_read_queue.h"

namespace vericache {
namespace {

constexpr int kMaxThreads = 4;

class PreadQueue : public LedgerReadQueue {
 public:
  explicit PreadQueue(const ReadQueueOptions& options) : LedgerReadQueue(options, [] {}) {}

  ~PreadQueue() override {
    ledger_.Stop();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Start(int num_threads) {
    try {
      for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
    } catch (const std::system_error&) {
      if (threads_.empty()) return absl::UnavailableError("cannot start a thread for reading KV");
    }
    return absl::OkStatus();
  }

  const char* backend() const override { return "pread"; }

 private:
  void Run() {
    ReadLedger::Chunk chunk;
    while (ledger_.TakeBlocking(&chunk)) {
      const ssize_t n =
          pread(chunk.file->fd(), chunk.dest, chunk.issue_bytes, static_cast<off_t>(chunk.offset));
      ledger_.Complete(chunk, n < 0 ? -errno : n);
    }
  }

  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReadQueue>> MakePreadQueue(const ReadQueueOptions& options) {
  auto queue = std::make_unique<PreadQueue>(options);
  if (absl::Status status = queue->Start(std::min(options.depth, kMaxThreads)); !status.ok()) {
    return status;
  }
  return queue;
}

}  // namespace vericache
