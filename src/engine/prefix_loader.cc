#include "engine/prefix_loader.h"

#include <utility>

namespace vericache {

bool PrefixLoad::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

bool PrefixLoad::WaitFor(std::chrono::milliseconds time) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [this] { return done_; });
}

void PrefixLoad::Cancel() {
  const std::lock_guard lock(mutex_);
  if (!done_) lookup_->Cancel();
}

void PrefixLoad::Run() {
  lookup_->Load();
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  if (on_done_) on_done_();
}

PrefixLoader::PrefixLoader(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Loop(); });
}

PrefixLoader::~PrefixLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (const auto& load : queue_) load->Cancel();
    for (const auto& load : running_) load->Cancel();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<PrefixLoad> PrefixLoader::Start(std::unique_ptr<PrefixLookup> lookup,
                                                std::function<void()> on_done) {
  lookup->LetGo();
  auto load = std::make_shared<PrefixLoad>(std::move(lookup), std::move(on_done));
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(load);
  }
  wake_.notify_one();
  return load;
}

void PrefixLoader::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    // What is cancelled goes through as well: somebody may wait for its end.
    std::shared_ptr<PrefixLoad> load = std::move(queue_.front());
    queue_.pop_front();
    running_.push_back(load);
    lock.unlock();
    load->Run();
    lock.lock();
    std::erase(running_, load);
    // A dropped one's K/V are freed here, without the lock.
    lock.unlock();
    load.reset();
    lock.lock();
  }
}

}  // namespace vericache
