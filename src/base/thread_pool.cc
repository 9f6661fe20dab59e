// A region is published by one word that also hands out its tasks. The caller works too and waits
// for tasks, never for threads: a worker that the system has not scheduled in time (a busy machine)
// costs nothing, because it finds the region over and takes no task. Workers spin briefly between
// regions (a forward pass opens hundreds a step, microseconds apart) and then sleep in the kernel.
#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/fp_env.h"

namespace vericache {
namespace {

// About 20-50 us of spinning: longer than the gap between regions of one step, short enough to
// give the core back to others when the pool is idle.
constexpr int kSpins = 4000;
constexpr int kTaskBits = 20;
constexpr uint64_t kTaskMask = (1 << kTaskBits) - 1;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  VC_CHECK(num_threads >= 1);
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { Worker(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunTasks(int thread) {
  uint64_t state = state_.load(std::memory_order_acquire);
  for (;;) {
    const int64_t next = static_cast<int64_t>(state & kTaskMask);
    const int64_t num_tasks = static_cast<int64_t>((state >> kTaskBits) & kTaskMask);
    if (next >= num_tasks) return;
    if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire))
      continue;
    // The task is ours, so the region cannot end and `task_` is its function.
    (*task_.load(std::memory_order_acquire))(next, thread);
    if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_tasks) num_done_.notify_one();
    state = state_.load(std::memory_order_acquire);
  }
}

void ThreadPool::Worker(int thread) {
  ScopedFpEnv fp_env;
  uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    uint32_t now;
    while ((now = generation_.load(std::memory_order_acquire)) == seen) {
      if (++spins < kSpins) {
        Pause();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
    }
    seen = now;
    if (stop_.load()) return;
    RunTasks(thread);
  }
}

void ThreadPool::ParallelFor(int64_t num_tasks, absl::FunctionRef<void(int64_t, int)> fn) {
  ScopedFpEnv fp_env;
  if (num_threads_ == 1 || num_tasks <= 1) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(task, 0);
    return;
  }
  VC_CHECK(num_tasks < kMaxTasks);
  num_done_.store(0, std::memory_order_relaxed);
  task_.store(&fn, std::memory_order_relaxed);
  const uint64_t region = (state_.load(std::memory_order_relaxed) >> (2 * kTaskBits)) + 1;
  state_.store((region << (2 * kTaskBits)) | (static_cast<uint64_t>(num_tasks) << kTaskBits),
               std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_acq_rel);
  generation_.notify_all();
  RunTasks(0);
  int spins = 0;
  int64_t done;
  while ((done = num_done_.load(std::memory_order_acquire)) != num_tasks) {
    if (++spins < kSpins) {
      Pause();
    } else {
      num_done_.wait(done, std::memory_order_acquire);
    }
  }
}

namespace {

// CPUs by the quota of cgroup v2 or v1, or a large number without one.
int CgroupCpus() {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0)
    return std::max(1, static_cast<int>(std::stod(quota) / period + 0.5));
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double q = 0;
  if (v1_quota >> q && v1_period >> period && q > 0 && period > 0)
    return std::max(1, static_cast<int>(q / period + 0.5));
  return 1 << 20;
}

}  // namespace

int DefaultNumThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  std::set<std::pair<int, int>> cores;  // (package, core): hyper-threads share a core
  int num_cpus = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    ++num_cpus;
    const std::string dir = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::ifstream package_file(dir + "physical_package_id"), core_file(dir + "core_id");
    int package = 0, core = 0;
    if (package_file >> package && core_file >> core) cores.emplace(package, core);
  }
  const int physical = cores.empty() ? num_cpus : static_cast<int>(cores.size());
  return std::max(1, std::min(physical, CgroupCpus()));
}

}  // namespace vericache
