// A store that hands every call on to another one: what wraps a store derives from it and changes
// what it is there for. So a question that a store answers at once stays one question, whatever
// lies between.
#pragma once

#include <functional>
#include <string>

#include "storage/blob_store.h"

namespace vericache {

class ForwardingStore : public BlobStore {
 public:
  using BlobStore::Get;
  // `store` must outlive *this.
  explicit ForwardingStore(BlobStore* store) : store_(store) {}

  absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) override {
    return store_->Put(key, parts);
  }
  absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) override {
    return store_->Get(key, deadline);
  }
  void GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) override {
    store_->GetMany(keys, deadline, sink);
  }
  absl::StatusOr<int64_t> CountPresent(absl::Span<const BlobKey> keys, Deadline deadline) override {
    return store_->CountPresent(keys, deadline);
  }
  absl::StatusOr<size_t> FindFirst(absl::Span<const BlobKey> keys, Deadline deadline) override {
    return store_->FindFirst(keys, deadline);
  }
  bool ContainsEverywhere(const BlobKey& key) override { return store_->ContainsEverywhere(key); }
  absl::Status Remove(const BlobKey& key) override { return store_->Remove(key); }
  void Touch(absl::Span<const BlobKey> keys) override { store_->Touch(keys); }
  void BeginRecord(absl::Span<const BlobKey> keys) override { store_->BeginRecord(keys); }
  void EndRecord() override { store_->EndRecord(); }
  absl::Status List(std::string_view hex_prefix,
                    const std::function<bool(const BlobInfo&)>& visit) override {
    return store_->List(hex_prefix, visit);
  }
  BlobStoreStats Stats() override { return store_->Stats(); }
  StoreLink Link() override { return store_->Link(); }
  std::string Name() const override { return store_->Name(); }

 private:
  BlobStore* const store_;
};

}  // namespace vericache
