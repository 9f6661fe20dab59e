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
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/worker_threads.h"
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
  // num_threads: loads at once, each on a thread that is made when it is needed; 0: none is wanted.
  explicit PrefixLoader(int num_threads) : num_threads_(num_threads), workers_(num_threads) {}
  // Cancels what is left and waits for it: a store's own patience at most.
  ~PrefixLoader();

  // on_done: called once, on a thread of the loader; may be empty. The look-up lets go of what RAM
  // holds: it may be evicted, and the look-up may be destroyed on any thread.
  std::shared_ptr<PrefixLoad> Start(std::unique_ptr<PrefixLookup> lookup,
                                    std::function<void()> on_done);
  // The same where a store is to be asked, with *lookup taken. Null: *lookup has all there is;
  // where no load is wanted, it was loaded here.
  std::shared_ptr<PrefixLoad> StartOrLoad(std::unique_ptr<PrefixLookup>* lookup,
                                          std::function<void()> on_done);

 private:
  void Run(PrefixLoad* load);

  const int num_threads_;
  std::mutex mutex_;
  std::vector<PrefixLoad*> loads_;  // that have not ended; guarded by mutex_
  WorkerThreads workers_;           // goes first: its tasks use what is above
};

}  // namespace vericache
