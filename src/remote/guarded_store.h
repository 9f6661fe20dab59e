// A store that may be down, slow or gone, made harmless: its failures cost hits and are told.
//
// Behind a circuit breaker: a store that has failed several times in a row is not asked for a
// while. What a user should know is told once when it begins to fail and once when it is back; that
// it lets nobody in, or that its certificate is not accepted, is told at once.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "remote/circuit_breaker.h"
#include "storage/blob_store.h"
#include "storage/link_meter.h"

namespace vericache {

class GuardedStore : public BlobStore {
 public:
  using BlobStore::Get;
  // on_notice: one line, from any thread; may be empty.
  GuardedStore(std::unique_ptr<BlobStore> store, std::function<void(std::string_view)> on_notice,
               const BreakerOptions& breaker = {})
      : store_(std::move(store)), on_notice_(std::move(on_notice)), breaker_(breaker) {}

  absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) override;
  absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) override;
  void GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) override;
  absl::StatusOr<int64_t> CountPresent(absl::Span<const BlobKey> keys, Deadline deadline) override;
  absl::StatusOr<size_t> FindFirst(absl::Span<const BlobKey> keys, Deadline deadline) override;
  absl::Status Remove(const BlobKey& key) override;
  void Touch(absl::Span<const BlobKey> keys) override;
  absl::Status List(std::string_view hex_prefix,
                    const std::function<bool(const BlobInfo&)>& visit) override;
  BlobStoreStats Stats() override;
  StoreLink Link() override {
    return {true, link_.bytes_per_s(), link_.round_trip_s(), store_->Link().least_wait_s};
  }
  std::string Name() const override { return store_->Name(); }

 private:
  absl::Status Refused();
  // Asks a question, and how long it took.
  template <typename Ask>
  auto Timed(const Ask& ask);
  // Counts how a call went. Missing blobs, full stores and read-only ones are answers.
  void Judge(const absl::Status& status);

  std::unique_ptr<BlobStore> store_;
  const std::function<void(std::string_view)> on_notice_;
  CircuitBreaker breaker_;
  LinkMeter link_;
  std::atomic<int64_t> errors_{0}, late_{0}, skipped_{0};
  std::atomic<bool> last_failed_{false}, refusal_told_{false};
};

}  // namespace vericache
