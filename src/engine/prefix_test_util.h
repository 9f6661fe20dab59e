// What the tests of the prefix cache share: made-up K/V, and a store that can be slow or broken.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/prefix_cache.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "storage/forwarding_store.h"

namespace vericache {

inline constexpr KvShape kShape = {2, 2, 16};

inline std::vector<TokenId> Tokens(int64_t n, TokenId salt = 0) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<TokenId>(i * 7 + salt));
  return ids;
}

// K/V that tell which tokens they belong to.
inline FullKv KvOf(absl::Span<const TokenId> tokens) {
  FullKv full(kShape, nullptr);
  EXPECT_TRUE(full.ResizeForLoad(static_cast<int64_t>(tokens.size())).ok());
  uint32_t hash = 1;
  for (int64_t block = 0; block < full.num_blocks(); ++block) {
    for (size_t i = block * 64; i < tokens.size() && i < static_cast<size_t>(block + 1) * 64; ++i)
      hash = hash * 31 + static_cast<uint32_t>(tokens[i]);
    for (size_t i = 0; i < full.block_bytes() / 2; ++i)
      full.mutable_block(block)[i] = static_cast<uint16_t>((hash + i) & 0x3bff);  // finite
  }
  return full;
}

// A store that many caches may share, slow or broken on demand.
struct Backing {
  MemoryBlobStore blobs;
  std::atomic<bool> broken{false};
  std::atomic<int> put_us{0};
  std::atomic<int> questions{0};  // calls of CountPresent and FindFirst
  // Called before each Get, on its thread. Set before the cache is used.
  std::function<void()> before_get;
};

class SharedStore : public ForwardingStore {
 public:
  explicit SharedStore(Backing* backing) : ForwardingStore(&backing->blobs), b_(backing) {}
  absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) override {
    std::this_thread::sleep_for(std::chrono::microseconds(b_->put_us));
    return b_->broken ? absl::ResourceExhaustedError("full") : b_->blobs.Put(key, parts);
  }
  using BlobStore::Get;
  absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) override {
    if (b_->before_get) b_->before_get();
    if (b_->broken) return absl::UnavailableError("broken");
    return b_->blobs.Get(key, deadline);
  }
  // One by one.
  void GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) override {
    BlobStore::GetMany(keys, deadline, sink);
  }
  absl::StatusOr<int64_t> CountPresent(absl::Span<const BlobKey> keys, Deadline deadline) override {
    ++b_->questions;
    return b_->blobs.CountPresent(keys, deadline);
  }
  absl::StatusOr<size_t> FindFirst(absl::Span<const BlobKey> keys, Deadline deadline) override {
    ++b_->questions;
    return b_->blobs.FindFirst(keys, deadline);
  }
  std::string Name() const override { return "shared"; }

 private:
  Backing* b_;
};

inline std::unique_ptr<PrefixCache> CacheOn(Backing* backing, uint64_t memory_bytes = 0) {
  PrefixCacheOptions options;
  options.identity = {"model", "tokenizer", "rope", KvFormatText(kShape), "contract", ""};
  options.memory_bytes = memory_bytes;
  if (backing != nullptr) options.store = std::make_unique<SharedStore>(backing);
  return std::make_unique<PrefixCache>(std::move(options), kShape, nullptr,
                                       [] { return FullKv(kShape, nullptr); });
}

}  // namespace vericache
