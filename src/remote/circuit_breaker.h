// Whether to try a service that may be down: a few failures in a row, and it is left alone.
//
//   closed     every call is tried; kFailures failures in a row open it
//   open       no call is tried for a while, which doubles with each failed trial
//   half open  the while is over: one caller tries, the others still do not
// The while has jitter, so that many processes do not come back at the same moment.
// THREADS: safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <random>

namespace vericache {

struct BreakerOptions {
  int failures = 3;  // in a row that open it
  std::chrono::milliseconds pause_min{500};
  std::chrono::milliseconds pause_max{30000};
};

class CircuitBreaker {
 public:
  using Clock = std::chrono::steady_clock;

  explicit CircuitBreaker(const BreakerOptions& options = {})
      : options_(options), random_(std::random_device{}()) {}

  // False: do not call. True: call, and tell how it went.
  bool Allow(Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mutex_);
    if (failures_ < options_.failures) return true;
    // A trial whose outcome is never told must not close the door for ever.
    if (now < open_until_) return false;
    open_until_ = now + pause_;
    return true;
  }
  // What Allow() would say; takes no trial.
  bool MayTry(Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mutex_);
    return failures_ < options_.failures || now >= open_until_;
  }
  // True: this call has closed it.
  bool Succeeded() {
    const std::lock_guard lock(mutex_);
    const bool was_open = failures_ >= options_.failures;
    failures_ = 0;
    pause_ = {};
    return was_open;
  }
  // True: this call has opened it.
  bool Failed(Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mutex_);
    if (++failures_ < options_.failures) return false;
    const bool opened = failures_ == options_.failures;
    pause_ =
        std::clamp<std::chrono::milliseconds>(2 * pause_, options_.pause_min, options_.pause_max);
    // Between a half and the whole of it.
    std::uniform_int_distribution<int64_t> wait(pause_.count() / 2, pause_.count());
    open_until_ = now + std::chrono::milliseconds(wait(random_));
    return opened;
  }

 private:
  const BreakerOptions options_;
  std::mutex mutex_;
  std::minstd_rand random_;
  int failures_ = 0;
  std::chrono::milliseconds pause_{0};
  Clock::time_point open_until_;
};

}  // namespace vericache
