// Threads that read prefixes from a store beside the engine's thread.
//
//   load = loader.Start(cache.Plan(...), wake);   // the engine's thread
//   ... passes of others; load->done() ...
//   hit = cache.Finish(load->Take());             // the engine's thread
//
// Loads begin in the order in which they were started, a few at a time: what waits takes no memory.
// THREADS: safe, but for what says otherwise.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/prefix_lookup.h"

namespace vericache {

// One look-up on its way. Dropping the last handle of a cancelled one is fine at any time.
class PrefixLoad {
 public:
  PrefixLoad(std::unique_ptr<PrefixLookup> lookup, std::function<void()> on_done)
      : lookup_(std::move(lookup)), on_done_(std::move(on_done)) {}

  bool done() const;
  // True: it has ended; false: not within `time`.
  bool WaitFor(std::chrono::milliseconds time) const;
  // It ends early, with what has come; on_done is called all the same.
  void Cancel();
  // REQUIRES: not taken.
  PrefixLookup& lookup() { return *lookup_; }
  // REQUIRES: done(). Once.
  std::unique_ptr<PrefixLookup> Take() { return std::move(lookup_); }

 private:
  friend class PrefixLoader;
  void Run();

  std::unique_ptr<PrefixLookup> lookup_;
  const std::function<void()> on_done_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;  // guarded by mutex_
};

class PrefixLoader {
 public:
  explicit PrefixLoader(int num_threads);
  // Cancels what is left and waits for it: a store's own patience at most.
  ~PrefixLoader();

  // on_done: called once, on a thread of the loader; may be empty. The look-up lets go of what RAM
  // holds: it may be evicted, and the look-up may be destroyed on any thread.
  std::shared_ptr<PrefixLoad> Start(std::unique_ptr<PrefixLookup> lookup,
                                    std::function<void()> on_done);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<PrefixLoad>> queue_;     // guarded by mutex_
  std::vector<std::shared_ptr<PrefixLoad>> running_;  // guarded by mutex_
  bool stop_ = false;                                 // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace vericache
