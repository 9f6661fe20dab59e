// A device that reads no faster than a given rate, by arithmetic on times alone: no clock, no
// sleep. Used to measure on a fast disk what a slow one would do.
//
// The device works on one read after the other, `bytes / rate` each; a read may start when the one
// before has ended. Unlike a plain token bucket an idle device saves nothing up. A reader that
// comes late although work was waiting may catch up, by `kCatchUpNs` at most: the thread was
// late, not the device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace vericache {

class TokenBucket {
 public:
  static constexpr int64_t kCatchUpNs = 20'000'000;

  explicit TokenBucket(int64_t bytes_per_second) : rate_(bytes_per_second) {}  // 0 = no limit

  // Nanoseconds until the next read may start; 0 = now.
  int64_t NsUntilFree(int64_t now_ns) const {
    return rate_ == 0 ? 0 : std::max<int64_t>(0, free_at_ns_ - now_ns);
  }
  // Accounts for a read that starts now. REQUIRES: NsUntilFree(now_ns) == 0.
  void Take(int64_t now_ns, size_t bytes) {
    if (rate_ == 0) return;
    free_at_ns_ = std::max(free_at_ns_, now_ns - kCatchUpNs) +
                  static_cast<int64_t>(static_cast<double>(bytes) * 1e9 / rate_);
  }
  // Work arrives at a device that had none.
  void StartWork(int64_t now_ns) { free_at_ns_ = std::max(free_at_ns_, now_ns); }

 private:
  const int64_t rate_;
  int64_t free_at_ns_ = 0;
};

}  // namespace vericache
