#include "storage/blob_store.h"

#include <cstring>

namespace vericache {

absl::Status MemoryBlobStore::Put(const BlobKey& key, absl::Span<const std::string_view> parts) {
  std::string bytes;
  for (std::string_view part : parts) bytes.append(part);
  const std::lock_guard lock(mutex_);
  stats_.written_bytes += bytes.size();
  blobs_[key] = std::move(bytes);
  return absl::OkStatus();
}

absl::StatusOr<BlobBytes> MemoryBlobStore::Get(const BlobKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = blobs_.find(key);
  if (found == blobs_.end()) return absl::NotFoundError("no such blob");
  BlobBytes bytes(found->second.size());
  if (bytes.size() > 0) std::memcpy(bytes.data(), found->second.data(), bytes.size());
  stats_.read_bytes += bytes.size();
  return bytes;
}

bool MemoryBlobStore::Contains(const BlobKey& key) {
  const std::lock_guard lock(mutex_);
  return blobs_.contains(key);
}

void MemoryBlobStore::Remove(const BlobKey& key) {
  const std::lock_guard lock(mutex_);
  blobs_.erase(key);
}

BlobStoreStats MemoryBlobStore::Stats() {
  const std::lock_guard lock(mutex_);
  BlobStoreStats stats = stats_;
  stats.num_blobs = static_cast<int64_t>(blobs_.size());
  for (const auto& [key, bytes] : blobs_) stats.num_bytes += bytes.size();
  return stats;
}

}  // namespace vericache
