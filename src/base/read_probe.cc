#include "base/read_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/huge_memory.h"

namespace vericache {
namespace {

constexpr size_t kBytes = size_t{512} << 20;
// Small enough that the threads end together, large enough that handing out costs nothing.
constexpr size_t kTaskBytes = size_t{1} << 20;
constexpr int64_t kNumTasks = kBytes / kTaskBytes;
constexpr size_t kTaskWords = kTaskBytes / sizeof(uint64_t);

// Eight independent sums: a cache line a turn, so that additions never wait for each other.
uint64_t SumOf(const uint64_t* p, size_t n) {
  uint64_t sum[8] = {};
  for (size_t i = 0; i < n; i += 8)
    for (int k = 0; k < 8; ++k) sum[k] += p[i + k];
  uint64_t total = 0;
  for (uint64_t s : sum) total += s;
  return total;
}

}  // namespace

ReadProbe::ReadProbe(ThreadPool* pool)
    : pool_(pool),
      memory_(AllocateHuge(kBytes)),  // as the weights are held
      data_(reinterpret_cast<uint64_t*>(memory_.get())) {
  if (!ok()) return;
  // Written, because unwritten pages are all the same page of zeros.
  pool_->ParallelFor(kNumTasks, [&](int64_t task, int) {
    for (size_t i = 0; i < kTaskWords; ++i) data_[task * kTaskWords + i] = i ^ task;
  });
}

double ReadProbe::BestGbps(int num_tries) {
  using Clock = std::chrono::steady_clock;
  std::atomic<uint64_t> sink{0};  // keeps the sums from being optimised away
  double best = 0;
  for (int i = 0; i < num_tries; ++i) {
    const Clock::time_point start = Clock::now();
    pool_->ParallelFor(kNumTasks, [&](int64_t task, int) {
      sink.fetch_add(SumOf(data_ + task * kTaskWords, kTaskWords), std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(kBytes) / seconds / 1e9);
  }
  return best;
}

}  // namespace vericache
