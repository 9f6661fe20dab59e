// Blobs in a bucket of S3 or of something that speaks like it.
//
//   PREFIX HEX    128 bytes of header (storage/blob_header.h), then the payload
// Read in ranges, the further ones at the same time; all ranges of a blob are pinned to the ETag of
// the first (If-Match), so that a blob replaced meanwhile is read anew and never mixed. Our own
// checksum decides, not the server's. Large blobs are put in parts, and seen when all are there.
// Nothing evicts here: give the bucket a lifecycle rule.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "remote/s3_client.h"
#include "remote/store_counters.h"
#include "storage/blob_header.h"
#include "storage/blob_store.h"

namespace vericache {

class S3Store : public BlobStore {
 public:
  using BlobStore::Get;
  explicit S3Store(S3Options options) : client_(std::move(options)) {}

  absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) override;
  absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) override;
  void GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) override;
  absl::StatusOr<int64_t> CountPresent(absl::Span<const BlobKey> keys, Deadline deadline) override;
  absl::StatusOr<size_t> FindFirst(absl::Span<const BlobKey> keys, Deadline deadline) override;
  absl::Status Remove(const BlobKey& key) override;
  void Touch(absl::Span<const BlobKey> keys) override {}  // S3 keeps no time of use
  absl::Status List(std::string_view hex_prefix,
                    const std::function<bool(const BlobInfo&)>& visit) override;
  BlobStoreStats Stats() override { return counts_.Stats(); }
  StoreLink Link() override {
    return {true, 0, 0, std::chrono::duration<double>(client_.options().least_wait).count()};
  }
  std::string Name() const override { return client_.name(); }

 private:
  Deadline Limit(Deadline deadline) const {
    const Deadline now = std::chrono::steady_clock::now();
    const S3Options& o = client_.options();
    return std::min(std::max(deadline, now + o.least_wait), now + o.timeout);
  }
  std::string KeyText(const BlobKey& key) const { return client_.options().prefix + HexOf(key); }
  // How many of `keys` come before the first one that is there, or is not, as `until` says.
  enum class Until { kMissing, kPresent };
  absl::StatusOr<size_t> CountUntil(absl::Span<const BlobKey> keys, Until until, Deadline deadline);
  absl::Status PutWhole(const std::string& key, absl::Span<const std::string_view> parts);
  absl::Status PutInParts(const std::string& key, absl::Span<const std::string_view> parts,
                          uint64_t num_bytes);

  S3Client client_;
  StoreCounters counts_;
};

}  // namespace vericache
