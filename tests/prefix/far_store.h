// A store that says it is far away, and is as slow and as unreliable as a test wants.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "api/engine_impl.h"
#include "storage/file_blob_store.h"
#include "storage/forwarding_store.h"

namespace vericache {

// A store that says it is far away. `before` is asked for each blob: its number, from 0.
class FarStore : public ForwardingStore {
 public:
  using Before = std::function<absl::Status(int64_t number, Deadline deadline)>;
  FarStore(std::unique_ptr<BlobStore> near, StoreLink link, Before before)
      : ForwardingStore(near.get()),
        near_(std::move(near)),
        link_(link),
        before_(std::move(before)) {}

  using BlobStore::Get;
  absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) override {
    absl::StatusOr<BlobBytes> blob = near_->Get(key, deadline);
    if (!blob.ok() || !before_) return blob;
    const absl::Status status = before_(number_++, deadline);
    if (!status.ok()) return status;
    return blob;
  }
  // One by one.
  void GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) override {
    BlobStore::GetMany(keys, deadline, sink);
  }
  StoreLink Link() override { return link_; }
  std::string Name() const override { return "far"; }

 private:
  std::unique_ptr<BlobStore> near_;
  const StoreLink link_;
  const Before before_;
  std::atomic<int64_t> number_{0};
};

// Holds somebody up until it is opened; not for ever, or a failing test would hang.
class Latch {
 public:
  bool Wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [this] { return open_; });
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

// The engine reads the folder `store` from now on as from a machine far away, and nothing else.
inline void MoveStoreAway(const std::filesystem::path& store, StoreLink link,
                          FarStore::Before before, Engine* engine) {
  EngineAccess::Impl& impl = *EngineAccess::Of(engine);
  FileBlobStoreOptions files;
  files.read_only = true;
  PrefixCacheOptions cache;
  cache.identity = impl.Identity();
  cache.memory_bytes = impl.options.prefix_memory_bytes;
  cache.store_read_only = true;
  cache.store =
      std::make_unique<FarStore>(*FileBlobStore::Open(store, files), link, std::move(before));
  impl.prefixes =
      std::make_unique<PrefixCache>(std::move(cache), impl.model->config.kv_shape(),
                                    impl.model->kernels, [&impl] { return impl.NewFullKv(); });
}

}  // namespace vericache
