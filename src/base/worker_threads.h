// Threads for what waits for other machines, beside the thread pool that computes: made when
// needed, at most so many.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace vericache {

// THREADS: safe.
class WorkerThreads {
 public:
  explicit WorkerThreads(int max_threads) : max_threads_(max_threads) {}
  // Returns when all that was posted has run.
  ~WorkerThreads();

  // Tasks begin in order and may not throw.
  void Post(std::function<void()> task);
  // True: all that was posted has run; false: not within `seconds`.
  bool WaitIdle(double seconds);

 private:
  void Run();

  const int max_threads_;
  std::mutex mutex_;  // of all below
  std::condition_variable wake_, idle_;
  std::deque<std::function<void()>> tasks_;
  int num_busy_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace vericache
