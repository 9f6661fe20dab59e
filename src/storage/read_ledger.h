// The books of a read queue: which reads wait, which are in flight, who waits for them.
//
// Readers submit, wait and cancel; I/O threads take one chunk after the other, read it as they can,
// and hand the result back. All rules are here, once for every backend: order, splitting, short
// reads, errors, the rate limit, planned faults, statistics.
//
//   Submit ──split──> waiting ──Take──> in flight ──Complete──> ticket done
//                        ^                  │
//                        └── short read ────┘
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "storage/fault_plan.h"
#include "storage/read_queue.h"
#include "storage/spill_file.h"
#include "storage/token_bucket.h"

namespace vericache {

class ReadLedger {
 public:
  // A read of one system call.
  struct Chunk {
    const SpillFile* file = nullptr;
    uint64_t offset = 0;
    uint8_t* dest = nullptr;
    size_t bytes = 0;        // still wanted
    size_t issue_bytes = 0;  // to be read now: `bytes`, or less by plan
    ReadTicket* ticket = nullptr;
    int64_t start_ns = 0;  // not before, by plan
    bool planned = false;  // the fault plan was asked
    int error = 0;         // errno by plan
  };
  // What Take says if there is no chunk now.
  static constexpr int64_t kNothing = INT64_MAX;
  static constexpr int64_t kStop = -1;

  // `wake` is called, without a lock, after reads were added or put in another order.
  ReadLedger(const ReadQueueOptions& options, std::function<void()> wake);

  // For readers: see ReadQueue.
  absl::Status Submit(absl::Span<const ReadRequest> requests, ReadTicket* ticket);
  absl::Status Wait(ReadTicket* ticket);
  bool Done(const ReadTicket& ticket) const;
  void CancelAll(absl::Span<ReadTicket> tickets);
  TicketTimes Times(const ReadTicket& ticket) const;
  ReadStats stats() const;

  // For I/O threads. Returns 0 and a chunk; or the nanoseconds after which to ask again; or
  // kNothing: ask again when woken; or kStop: nothing will come any more.
  int64_t Take(Chunk* chunk);
  // The same, asleep until there is one. False: stop.
  bool TakeBlocking(Chunk* chunk);
  // Every chunk taken is handed back once. `result`: bytes read, or -errno.
  void Complete(const Chunk& chunk, int64_t result);

  // From now on Take says kStop; what waits is cancelled.
  void Stop();

 private:
  using Lock = std::unique_lock<std::mutex>;
  // REQUIRES for all below: mutex_ is held.
  int64_t TakeLocked(int64_t now_ns, Chunk* chunk);
  void CompleteLocked(const Chunk& chunk, int64_t result);
  // One chunk of `ticket` has left the books.
  void Finish(ReadTicket* ticket, const absl::Status& status);
  void TakeBack(ReadTicket* ticket);
  static bool IsDone(const ReadTicket& ticket) {
    return ticket.num_waiting_ + ticket.num_in_flight_ == 0;
  }

  const size_t read_bytes_;
  const std::shared_ptr<FaultPlan> faults_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::condition_variable work_;  // for TakeBlocking
  std::deque<Chunk> waiting_;
  size_t num_in_flight_ = 0;
  bool stop_ = false;
  TokenBucket bucket_;
  ReadStats stats_;
  int64_t busy_since_ns_ = 0;
};

}  // namespace vericache
