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

PrefixLoader::~PrefixLoader() {
  const std::lock_guard lock(mutex_);
  for (PrefixLoad* load : loads_) load->Cancel();
}

void PrefixLoader::Run(PrefixLoad* load) {
  load->Run();
  const std::lock_guard lock(mutex_);
  std::erase(loads_, load);
}

std::shared_ptr<PrefixLoad> PrefixLoader::Start(std::unique_ptr<PrefixLookup> lookup,
                                                std::function<void()> on_done) {
  lookup->LetGo();
  auto load = std::make_shared<PrefixLoad>(std::move(lookup), std::move(on_done));
  {
    const std::lock_guard lock(mutex_);
    loads_.push_back(load.get());
  }
  // What is cancelled goes through as well: somebody may wait for its end.
  workers_.Post([this, load] { Run(load.get()); });
  return load;
}

std::shared_ptr<PrefixLoad> PrefixLoader::StartOrLoad(std::unique_ptr<PrefixLookup>* lookup,
                                                      std::function<void()> on_done) {
  if (*lookup == nullptr || !(*lookup)->asks_store()) return nullptr;
  if (num_threads_ > 0) return Start(std::move(*lookup), std::move(on_done));
  (*lookup)->Load();
  return nullptr;
}

}  // namespace vericache
