// A store behind a slow link: what is put is squeezed where the user wants that; what was squeezed
// by anyone is given out as it was put. Sizes in List() and Stats() are those of the link.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "storage/forwarding_store.h"

namespace vericache {

class SqueezedStore : public ForwardingStore {
 public:
  using BlobStore::Get;
  enum class OnPut { kAsItIs, kSqueeze };
  SqueezedStore(std::unique_ptr<BlobStore> store, OnPut on_put)
      : ForwardingStore(store.get()), store_(std::move(store)), on_put_(on_put) {}

  absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) override;
  absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) override;
  void GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) override;
  BlobStoreStats Stats() override;

 private:
  absl::StatusOr<BlobBytes> Plain(absl::StatusOr<BlobBytes> blob);

  const std::unique_ptr<BlobStore> store_;
  const OnPut on_put_;
  std::atomic<int64_t> damaged_{0};
};

}  // namespace vericache
