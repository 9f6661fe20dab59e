// Asynchronous reads from SpillFiles into memory of the caller.
//
// One queue has one I/O thread (io_uring) or a few (pread) and serves any number of readers. A
// reader groups its reads under a ticket and waits for the ticket. Reads start in the order they
// were submitted, except that those somebody waits for go first: the rest is only prefetch.
//
// The kernel never writes into memory it should not: Wait, Cancel and the queue's destructor
// return only when no read of theirs is in flight.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace vericache {

class FaultPlan;
class SpillFile;

struct ReadRequest {
  const SpillFile* file = nullptr;  // must live until the ticket is done
  uint64_t offset = 0;              // this, `dest` and `bytes` are multiples of kSpillAlign
  uint8_t* dest = nullptr;          // [bytes]
  size_t bytes = 0;
};

// A group of reads. Belongs to the reader, is filled in by the queue under its lock.
// REQUIRES: lives until Wait, Cancel or Done says that it is done.
class ReadTicket {
 public:
  ReadTicket() = default;
  ReadTicket(const ReadTicket&) = delete;
  ReadTicket& operator=(const ReadTicket&) = delete;

 private:
  friend class ReadLedger;
  size_t num_waiting_ = 0;    // reads not yet handed to the kernel
  size_t num_in_flight_ = 0;  // reads the kernel works on
  bool cancelled_ = false;
  absl::Status status_;  // the first error
  int64_t submit_ns_ = 0;
  int64_t complete_ns_ = 0;
  std::condition_variable done_;
};

// Times are of the steady clock.
struct TicketTimes {
  int64_t submit_ns = 0;    // first Submit; 0 = never
  int64_t complete_ns = 0;  // end of the last read; 0 = not done
};

struct ReadStats {
  int64_t bytes = 0;      // delivered
  int64_t num_reads = 0;  // system calls or ring entries
  int64_t num_waits = 0;  // calls of Wait that had to sleep
  int64_t wait_ns = 0;    // and how long, over all threads
  int64_t busy_ns = 0;    // time in which at least one read was wanted or in flight
};

class ReadQueue {
 public:
  // Cancels what has not started and waits for what is in flight. Nobody may be inside a call.
  virtual ~ReadQueue() = default;

  // Adds reads to a ticket; returns at once. More may be added at any time; errors stay.
  // ERRORS: kInvalidArgument: something is not aligned or null; kCancelled: the ticket was
  //         cancelled or the queue ends. Nothing was added.
  // THREADS: this and all calls below are safe at the same time for different tickets.
  virtual absl::Status Submit(absl::Span<const ReadRequest> requests, ReadTicket* ticket) = 0;

  // Sleeps until all reads of the ticket have ended; they go first from now on.
  // ERRORS: the ticket's first: kDataLoss: the device failed or the file is too short;
  //         kCancelled: by Cancel or by the end of the queue; kUnavailable: anything else. A
  //         failed read fails its own ticket and no other. Its memory then holds anything.
  virtual absl::Status Wait(ReadTicket* ticket) = 0;

  // True if nothing of the ticket is waiting or in flight.
  virtual bool Done(const ReadTicket& ticket) const = 0;

  // Takes back what has not started, waits for the rest. The ticket's status becomes kCancelled
  // if anything was taken back. Prompt: at most `depth` reads are waited for.
  virtual void CancelAll(absl::Span<ReadTicket> tickets) = 0;
  void Cancel(ReadTicket* ticket) { CancelAll(absl::MakeSpan(ticket, 1)); }

  virtual TicketTimes Times(const ReadTicket& ticket) const = 0;
  virtual ReadStats stats() const = 0;
  // "io_uring, registered buffers", "io_uring" or "pread".
  virtual const char* backend() const = 0;
};

enum class ReadBackend { kAuto, kIoUring, kPread };

struct ReadQueueOptions {
  ReadBackend backend = ReadBackend::kAuto;  // io_uring; pread where it is forbidden
  // Measured by read_queue_bench on a virtual disk: 64 KiB x 8 give 1.6 GB/s, 512 KiB x 8 2.1 to
  // 2.4, larger or deeper 2.2 to 2.8. Small reads cost processor time that compute needs: 0.1 s a
  // GB at 64 KiB, 0.03 at 512 KiB. What is in flight delays a cancellation: 4 MiB are 2 ms.
  int depth = 8;                          // reads in flight, [1, 256]; pread: threads, at most 4
  size_t read_bytes = size_t{512} << 10;  // longer requests are split; a multiple of kSpillAlign
  int64_t bytes_per_second = 0;           // a device no faster than this; 0 = no limit
  // Memory most reads go to (StagingPool::memory()), registered with the kernel once if it allows
  // that: RLIMIT_MEMLOCK may not. Other destinations work as well. May be null.
  std::shared_ptr<uint8_t[]> staging;
  size_t staging_bytes = 0;
  std::shared_ptr<FaultPlan> faults;  // for tests; may be null
};

// ERRORS: kInvalidArgument: an option is out of range; kUnavailable: kIoUring was asked for and the
//         system forbids it, or no thread or ring could be made.
absl::StatusOr<std::unique_ptr<ReadQueue>> MakeReadQueue(const ReadQueueOptions& options);

}  // namespace vericache
