#include "engine/prefix_writer.h"

#include <utility>

namespace vericache {

PrefixWriter::PrefixWriter(StoredPrefixes* prefixes)
    : prefixes_(prefixes), thread_([this] { Loop(); }) {}

PrefixWriter::~PrefixWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

bool PrefixWriter::Push(StoredPrefixes::Record record) {
  Reap();
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kMaxQueuedPrefixes) return false;
    queue_.push_back(std::move(record));
  }
  wake_.notify_one();
  return true;
}

void PrefixWriter::Wait() {
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return queue_.empty() && !busy_; });
  }
  Reap();
}

bool PrefixWriter::WaitFor(std::chrono::milliseconds time) {
  {
    std::unique_lock lock(mutex_);
    if (!idle_.wait_for(lock, time, [this] { return queue_.empty() && !busy_; })) return false;
  }
  Reap();
  return true;
}

void PrefixWriter::Reap() {
  std::vector<StoredPrefixes::Record> done;
  const std::lock_guard lock(mutex_);
  done.swap(done_);
}

void PrefixWriter::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;  // stopped, and everything is written
    StoredPrefixes::Record record = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    prefixes_->Save(record);
    lock.lock();
    done_.push_back(std::move(record));
    busy_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}

}  // namespace vericache
