#include "storage/blob_store.h"

#include <cstring>

namespace vericache {
namespace {

int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

bool KeyOfHex(std::string_view hex, BlobKey* key) {
  if (hex.size() != 2 * key->size()) return false;
  for (size_t i = 0; i < key->size(); ++i) {
    const int high = DigitOf(hex[2 * i]), low = DigitOf(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    (*key)[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

void BlobStoreStats::Add(const BlobStoreStats& other) {
  num_blobs += other.num_blobs;
  num_bytes += other.num_bytes;
  damaged += other.damaged;
  evicted += other.evicted;
  failed_puts += other.failed_puts;
  errors += other.errors;
  late += other.late;
  skipped += other.skipped;
  read_bytes += other.read_bytes;
  written_bytes += other.written_bytes;
}

void BlobStore::GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) {
  for (size_t i = 0; i < keys.size(); ++i)
    if (!sink(i, Get(keys[i], deadline))) return;
}

absl::StatusOr<size_t> BlobStore::FindFirst(absl::Span<const BlobKey> keys, Deadline deadline) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const absl::StatusOr<int64_t> count = CountPresent(keys.subspan(i, 1), deadline);
    if (!count.ok()) return count.status();
    if (*count == 1) return i;
  }
  return keys.size();
}

absl::Status MemoryBlobStore::Put(const BlobKey& key, absl::Span<const std::string_view> parts) {
  std::string bytes;
  for (std::string_view part : parts) bytes.append(part);
  const std::lock_guard lock(mutex_);
  stats_.written_bytes += bytes.size();
  blobs_[key] = std::move(bytes);
  return absl::OkStatus();
}

absl::StatusOr<BlobBytes> MemoryBlobStore::Get(const BlobKey& key, Deadline) {
  const std::lock_guard lock(mutex_);
  const auto found = blobs_.find(key);
  if (found == blobs_.end()) return absl::NotFoundError("no such blob");
  BlobBytes bytes(found->second.size());
  if (bytes.size() > 0) std::memcpy(bytes.data(), found->second.data(), bytes.size());
  stats_.read_bytes += bytes.size();
  return bytes;
}

absl::StatusOr<int64_t> MemoryBlobStore::CountPresent(absl::Span<const BlobKey> keys, Deadline) {
  const std::lock_guard lock(mutex_);
  int64_t count = 0;
  for (; count < static_cast<int64_t>(keys.size()); ++count)
    if (!blobs_.contains(keys[count])) break;
  return count;
}

absl::Status MemoryBlobStore::Remove(const BlobKey& key) {
  const std::lock_guard lock(mutex_);
  blobs_.erase(key);
  return absl::OkStatus();
}

absl::Status MemoryBlobStore::List(std::string_view hex_prefix,
                                   const std::function<bool(const BlobInfo&)>& visit) {
  std::vector<BlobInfo> found;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, bytes] : blobs_)
      if (HexOf(key).starts_with(hex_prefix)) found.push_back({key, bytes.size()});
  }
  for (const BlobInfo& info : found)
    if (!visit(info)) break;
  return absl::OkStatus();
}

BlobStoreStats MemoryBlobStore::Stats() {
  const std::lock_guard lock(mutex_);
  BlobStoreStats stats = stats_;
  stats.num_blobs = static_cast<int64_t>(blobs_.size());
  for (const auto& [key, bytes] : blobs_) stats.num_bytes += bytes.size();
  return stats;
}

}  // namespace vericache
