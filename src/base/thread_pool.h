// Worker threads for the parallel regions of a forward pass.
//
// A region is a loop over independent tasks; which thread runs which task never shows in a result,
// because each task writes its own outputs and no reduction crosses tasks (docs/exactness.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace vericache {

class ThreadPool {
 public:
  // `num_threads` counts the caller; 1 runs everything on the calling thread.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(task, thread) once for every task in [0, num_tasks), thread in [0, num_threads).
  // Returns when all have ended. The contract's floating-point mode is set inside.
  // THREADS: one caller at a time; `fn` must not call ParallelFor.
  void ParallelFor(int64_t num_tasks, absl::FunctionRef<void(int64_t task, int thread)> fn);

 private:
  struct Region;
  void Worker(int thread);
  void RunTasks(Region* region, int thread);

  const int num_threads_;
  std::atomic<uint32_t> generation_{0};  // odd/even does not matter: a change starts a region
  std::atomic<Region*> region_{nullptr};
  std::atomic<int> workers_inside_{0};  // workers that may still touch the current region
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// Physical cores this process may use: within its affinity mask and its cgroup CPU quota.
int DefaultNumThreads();

}  // namespace vericache
