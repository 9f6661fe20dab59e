// Where blobs outlive a process: bytes under a 32-byte key, written once, read whole.
//
// A store is a cache: it may lose any blob at any time, and a blob that is damaged, short or gone
// is the same thing to its reader, kNotFound. It never hands out other bytes than were put under
// the key. Nothing here assumes a file: keys are digests, blobs are whole, errors are few. THREADS:
// all methods may be called from several threads.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/aligned_buffer.h"
#include "base/hash.h"

namespace vericache {

using BlobKey = Sha256Digest;
using BlobBytes = AlignedBuffer<uint8_t>;

// Larger blobs are refused: a length in a damaged header must not become an allocation.
inline constexpr uint64_t kMaxBlobBytes = uint64_t{4} << 30;

struct BlobStoreStats {
  // What the store holds now.
  int64_t num_blobs = 0;
  uint64_t num_bytes = 0;
  // What this object has seen since it was made.
  int64_t damaged = 0;      // blobs set aside: checksum, length, version, key
  int64_t evicted = 0;      // blobs removed to make room
  int64_t failed_puts = 0;  // for want of room or by an error
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
};

class BlobStore {
 public:
  virtual ~BlobStore() = default;

  // Stores `parts` in a row under `key`; what was there is replaced whole or not at all.
  // ERRORS: kResourceExhausted (no room even after eviction), kFailedPrecondition (read only),
  //         kUnavailable (I/O): nothing is stored, and a later Put may succeed.
  virtual absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) = 0;
  // The blob's bytes. ERRORS: kNotFound: missing or damaged; kUnavailable: no answer.
  virtual absl::StatusOr<BlobBytes> Get(const BlobKey& key) = 0;
  // A hint: Get may still fail. Reads no contents.
  virtual bool Contains(const BlobKey& key) = 0;
  virtual void Remove(const BlobKey& key) = 0;
  // Marks blobs as used now. The first key is evicted last: a chain is of no use without its head.
  virtual void Touch(absl::Span<const BlobKey> keys) = 0;
  virtual BlobStoreStats Stats() = 0;
};

// For tests and for one process: nothing is evicted.
class MemoryBlobStore : public BlobStore {
 public:
  absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) override;
  absl::StatusOr<BlobBytes> Get(const BlobKey& key) override;
  bool Contains(const BlobKey& key) override;
  void Remove(const BlobKey& key) override;
  void Touch(absl::Span<const BlobKey> keys) override {}
  BlobStoreStats Stats() override;

 private:
  std::mutex mutex_;
  std::map<BlobKey, std::string> blobs_;
  BlobStoreStats stats_;
};

}  // namespace vericache
