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
  static constexpr int64_t kMaxTasks = 1 << 20;

  // `num_threads` counts the caller; 1 runs everything on the calling thread.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(task, thread) once for every task in [0, num_tasks), thread in [0, num_threads).
  // Returns when all have ended. The contract's floating-point mode is set inside.
  // REQUIRES: num_tasks < kMaxTasks.
  // THREADS: one caller at a time; `fn` must not call ParallelFor.
  void ParallelFor(int64_t num_tasks, absl::FunctionRef<void(int64_t task, int thread)> fn);

 private:
  using Task = absl::FunctionRef<void(int64_t, int)>;
  void Worker(int thread);
  // Takes and runs tasks of the current region until none is left.
  void RunTasks(int thread);

  const int num_threads_;
  // Region number (24 bits), number of its tasks (20), next task to hand out (20): one word, so
  // that taking a task also proves that its region is still open.
  std::atomic<uint64_t> state_{0};
  std::atomic<const Task*> task_{nullptr};
  std::atomic<int64_t> num_done_{0};     // tasks of the current region that have ended
  std::atomic<uint32_t> generation_{0};  // what idle workers sleep on
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// Physical cores this process may use: within its affinity mask and its cgroup CPU quota.
int DefaultNumThreads();

}  // namespace vericache
