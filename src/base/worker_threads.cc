#include "base/worker_threads.h"

#include <chrono>
#include <utility>

namespace vericache {

WorkerThreads::~WorkerThreads() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerThreads::Post(std::function<void()> task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    const size_t wanted = num_busy_ + tasks_.size();
    if (threads_.size() < wanted && threads_.size() < static_cast<size_t>(max_threads_))
      threads_.emplace_back([this] { Run(); });
  }
  wake_.notify_one();
}

bool WorkerThreads::WaitIdle(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  return idle_.wait_for(lock, std::chrono::duration<double>(seconds),
                        [&] { return tasks_.empty() && num_busy_ == 0; });
}

void WorkerThreads::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++num_busy_;
    lock.unlock();
    task();
    task = nullptr;  // what it held is freed without the lock
    lock.lock();
    --num_busy_;
    if (tasks_.empty() && num_busy_ == 0) idle_.notify_all();
  }
}

}  // namespace vericache
