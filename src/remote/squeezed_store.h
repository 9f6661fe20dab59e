// A store behind a slow link: what is put is squeezed where the user wants that; what was squeezed
// by anyone is given out as it was put. Sizes in List() and Stats() are those of the link.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/blob_store.h"

namespace vericache {

class SqueezedStore : public BlobStore {
 public:
  using BlobStore::Get;
  enum class OnPut { kAsItIs, kSqueeze };
  SqueezedStore(std::unique_ptr<BlobStore> store, OnPut on_put)
      : store_(std::move(store)), on_put_(on_put) {}

  absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) override;
  absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) override;
  void GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) override;
  absl::StatusOr<int64_t> CountPresent(absl::Span<const BlobKey> keys, Deadline deadline) override {
    return store_->CountPresent(keys, deadline);
  }
  absl::Status Remove(const BlobKey& key) override { return store_->Remove(key); }
  void Touch(absl::Span<const BlobKey> keys) override { store_->Touch(keys); }
  absl::Status List(std::string_view hex_prefix,
                    const std::function<bool(const BlobInfo&)>& visit) override {
    return store_->List(hex_prefix, visit);
  }
  BlobStoreStats Stats() override;
  std::string Name() const override { return store_->Name(); }

 private:
  absl::StatusOr<BlobBytes> Plain(absl::StatusOr<BlobBytes> blob);

  std::unique_ptr<BlobStore> store_;
  const OnPut on_put_;
  std::atomic<int64_t> damaged_{0};
};

}  // namespace vericache
