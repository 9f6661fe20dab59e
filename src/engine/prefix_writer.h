// Writes prefixes to a store behind the requests' backs.
//
// One thread, a queue with a limit: when the store is slower than the requests, prefixes are left
// out, and no request waits. The destructor writes what is queued.
// The K/V of a record are shared with live sequences, which tell by the number of owners whether a
// block may be written in place. So records go back to the caller's thread to be destroyed.
// THREADS: one caller.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/stored_prefixes.h"

namespace vericache {

inline constexpr size_t kMaxQueuedPrefixes = 64;

class PrefixWriter {
 public:
  // `prefixes` must outlive *this.
  explicit PrefixWriter(StoredPrefixes* prefixes);
  ~PrefixWriter();

  // False: the queue is full, the record is left out.
  bool Push(StoredPrefixes::Record record);
  // Returns once everything pushed has been written or given up.
  void Wait();
  // True: it has; false: not within `time`.
  bool WaitFor(std::chrono::milliseconds time);
  // Destroys the records that have been written.
  void Reap();

 private:
  void Loop();

  StoredPrefixes* prefixes_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<StoredPrefixes::Record> queue_;  // guarded by mutex_
  std::vector<StoredPrefixes::Record> done_;  // guarded by mutex_
  bool busy_ = false, stop_ = false;          // guarded by mutex_
  std::thread thread_;
};

}  // namespace vericache
