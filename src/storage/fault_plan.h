// Faults of a disk, planned from one seed, for tests of everything above storage/.
//
// Not a build variant: SpillFile and ReadQueue take a plan as an argument and ask it before every
// system call. Without a plan nothing is asked. One plan may serve several files and queues: "the
// n-th read" then counts over all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>

namespace vericache {

struct FaultOptions {
  uint64_t seed = 0;
  // Shares out of 1,000 system calls.
  int short_reads_per_1000 = 0;  // fewer bytes than asked for, at least one aligned page
  int short_writes_per_1000 = 0;
  int read_errors_per_1000 = 0;  // EIO
  int delays_per_1000 = 0;       // a read starts up to `delay_us_max` later
  int delay_us_max = 0;
  // Counted from 1; 0 = never. From that write on the disk is full until `AllowWrites`.
  int64_t eio_at_read = 0;
  int64_t enospc_from_write = 0;
  int64_t eio_at_write = 0;
};

class FaultPlan {
 public:
  // What one system call is to meet. `error` is an errno and wins over the rest.
  struct Fault {
    int error = 0;
    size_t bytes_max = SIZE_MAX;  // a multiple of kSpillAlign
    int64_t delay_us = 0;
  };

  explicit FaultPlan(const FaultOptions& options) : options_(options), random_(options.seed) {}

  // THREADS: safe. The sequence of answers is a function of the seed and of the order of calls.
  Fault NextRead(size_t bytes);
  Fault NextWrite(size_t bytes);
  void AllowWrites();  // room was made on the disk

  int64_t num_reads() const;
  int64_t num_writes() const;

 private:
  bool Hit(int per_1000);        // REQUIRES: mutex_ is held
  size_t ShortOf(size_t bytes);  // REQUIRES: mutex_ is held

  mutable std::mutex mutex_;
  FaultOptions options_;
  std::mt19937_64 random_;
  int64_t num_reads_ = 0;
  int64_t num_writes_ = 0;
};

}  // namespace vericache
