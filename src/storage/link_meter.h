// How fast a link is, from what readers see of it.
//
// Bytes a second are those of all readers together: bytes that came, over the time in which at
// least one reader waited for some. Old ones are forgotten by and by. THREADS: safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace vericache {

class LinkMeter {
 public:
  using Clock = std::chrono::steady_clock;

  void StartWaiting(Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mutex_);
    CountTime(now);
    ++waiting_;
  }
  void StopWaiting(uint64_t bytes, Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mutex_);
    CountTime(now);
    --waiting_;
    bytes_ += static_cast<double>(bytes);
    if (bytes_ < kRemembered) return;
    bytes_ /= 2;
    seconds_ /= 2;
  }
  // A question with a small answer took so long.
  void Answered(double seconds) {
    const std::lock_guard lock(mutex_);
    round_trip_s_ = round_trip_s_ == 0 ? seconds : 0.75 * round_trip_s_ + 0.25 * seconds;
  }
  // 0: nothing that would tell has come yet.
  double bytes_per_s() const {
    const std::lock_guard lock(mutex_);
    return bytes_ < kLeast || seconds_ <= 0 ? 0 : bytes_ / seconds_;
  }
  double round_trip_s() const {
    const std::lock_guard lock(mutex_);
    return round_trip_s_;
  }

 private:
  static constexpr double kLeast = 64 << 10, kRemembered = 128 << 20;
  void CountTime(Clock::time_point now) {
    if (waiting_ > 0) seconds_ += std::max(0.0, std::chrono::duration<double>(now - last_).count());
    last_ = std::max(last_, now);
  }

  mutable std::mutex mutex_;
  int waiting_ = 0;
  Clock::time_point last_{};
  double bytes_ = 0, seconds_ = 0, round_trip_s_ = 0;
};

}  // namespace vericache
