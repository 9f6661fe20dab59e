// A region is published by bumping `generation_`; workers spin briefly on it (a forward pass opens
// hundreds of regions a step, microseconds apart) and then sleep in the kernel. Tasks are handed
// out by one atomic counter, so a worker that lost its core delays only the task it holds.
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

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct ThreadPool::Region {
  absl::FunctionRef<void(int64_t, int)> fn;
  int64_t num_tasks;
  std::atomic<int64_t> next{0};
};

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

void ThreadPool::RunTasks(Region* region, int thread) {
  for (;;) {
    const int64_t task = region->next.fetch_add(1, std::memory_order_relaxed);
    if (task >= region->num_tasks) return;
    region->fn(task, thread);
  }
}

void ThreadPool::Worker(int thread) {
  ScopedFpEnv fp_env;
  uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        Pause();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
    }
    ++seen;  // every region waits for all workers, so none is ever skipped
    if (stop_.load()) return;
    Region* region = region_.load(std::memory_order_acquire);
    RunTasks(region, thread);
    if (workers_inside_.fetch_sub(1, std::memory_order_acq_rel) == 1) workers_inside_.notify_one();
  }
}

void ThreadPool::ParallelFor(int64_t num_tasks, absl::FunctionRef<void(int64_t, int)> fn) {
  ScopedFpEnv fp_env;
  if (num_threads_ == 1 || num_tasks <= 1) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(task, 0);
    return;
  }
  Region region{fn, num_tasks, {0}};
  workers_inside_.store(num_threads_ - 1, std::memory_order_relaxed);
  region_.store(&region, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_acq_rel);
  generation_.notify_all();
  RunTasks(&region, 0);
  int spins = 0;
  int inside;
  while ((inside = workers_inside_.load(std::memory_order_acquire)) != 0) {
    if (++spins < kSpins) {
      Pause();
    } else {
      workers_inside_.wait(inside, std::memory_order_acquire);
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
