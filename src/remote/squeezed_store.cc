#include "remote/squeezed_store.h"

#include "remote/squeeze.h"

namespace vericache {

absl::Status SqueezedStore::Put(const BlobKey& key, absl::Span<const std::string_view> parts) {
  if (on_put_ == OnPut::kAsItIs) return store_->Put(key, parts);
  std::string blob;
  for (const std::string_view part : parts) blob += part;
  const std::string squeezed = Squeeze(blob);
  return store_->Put(key, {squeezed.empty() ? std::string_view(blob) : squeezed});
}

absl::StatusOr<BlobBytes> SqueezedStore::Plain(absl::StatusOr<BlobBytes> blob) {
  if (!blob.ok()) return blob;
  const absl::Span<const uint8_t> bytes(blob->data(), blob->size());
  if (!IsSqueezed(bytes)) return blob;
  absl::StatusOr<BlobBytes> plain = Unsqueeze(bytes);
  if (plain.ok()) return plain;
  ++damaged_;
  return absl::NotFoundError(plain.status().message());
}

absl::StatusOr<BlobBytes> SqueezedStore::Get(const BlobKey& key, Deadline deadline) {
  return Plain(store_->Get(key, deadline));
}

void SqueezedStore::GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) {
  store_->GetMany(keys, deadline, [&](size_t idx, absl::StatusOr<BlobBytes> blob) {
    return sink(idx, Plain(std::move(blob)));
  });
}

BlobStoreStats SqueezedStore::Stats() {
  BlobStoreStats stats = store_->Stats();
  stats.damaged += damaged_;
  return stats;
}

}  // namespace vericache
