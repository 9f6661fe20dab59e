// Where blobs outlive a process: bytes under a 32-byte key, written once, read whole.
//
// Stores on other machines are in src/remote.
//
// A store is a cache: it may lose any blob at any time, and a blob that is damaged, short or gone
// is the same thing to its reader, kNotFound. It never hands out other bytes than were put under
// the key. Nothing here assumes a file: keys are digests, blobs are whole, errors are few. THREADS:
// all methods may be called from several threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

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

// When an answer is of no use any more: computing again would have been as fast.
using Deadline = std::chrono::steady_clock::time_point;
inline constexpr Deadline kNoDeadline = Deadline::max();  // the store's own patience

struct BlobStoreStats {
  // What the store holds now; 0 where counting it would be a walk over a network: see List().
  int64_t num_blobs = 0;
  uint64_t num_bytes = 0;
  // What this object has seen since it was made.
  int64_t damaged = 0;      // blobs set aside: checksum, length, version, key
  int64_t evicted = 0;      // blobs removed to make room
  int64_t failed_puts = 0;  // for want of room or by an error
  int64_t errors = 0;       // operations without an answer, late ones included
  int64_t late = 0;         // of them, by a deadline
  int64_t skipped = 0;      // operations not tried: the store has just failed several times
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;

  void Add(const BlobStoreStats& other);
};

// What reading from a store far away takes, as measured from real reads.
struct StoreLink {
  bool is_remote = false;
  double bytes_per_s = 0;   // of all readers together; 0: not known yet
  double round_trip_s = 0;  // of a small question; 0: not known yet
  double least_wait_s = 0;  // the user wants it to be waited for so long, whatever computing takes
};

struct BlobInfo {
  BlobKey key{};
  uint64_t num_bytes = 0;  // of the payload
  int64_t age_s = -1;      // since it was written or used, as the store knows it; -1: it does not
};

struct NamedStoreStats {
  std::string name;  // without secrets
  BlobStoreStats stats;
};

class BlobStore {
 public:
  // Gets the blobs asked for in order, idx counted from 0. False: no more are wanted.
  using Sink = std::function<bool(size_t idx, absl::StatusOr<BlobBytes> blob)>;

  virtual ~BlobStore() = default;

  // Stores `parts` in a row under `key`; what was there is replaced whole or not at all.
  // ERRORS: kResourceExhausted (no room even after eviction), kFailedPrecondition (read only),
  //         kUnavailable (I/O): nothing is stored, and a later Put may succeed.
  virtual absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) = 0;
  // The blob's bytes. ERRORS: kNotFound: missing or damaged; kUnavailable: no answer;
  //         kDeadlineExceeded.
  virtual absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) = 0;
  absl::StatusOr<BlobBytes> Get(const BlobKey& key) { return Get(key, kNoDeadline); }
  // Many at once, which saves round trips where there are some. Every error goes to the sink.
  virtual void GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink);
  // How many of `keys`, from the first one on, seem to be there. A hint: Get may still fail. Reads
  // no contents. ERRORS: as Get, but for kNotFound.
  virtual absl::StatusOr<int64_t> CountPresent(absl::Span<const BlobKey> keys,
                                               Deadline deadline) = 0;
  // The index of the first of `keys` that seems to be there, or keys.size(): for names few of which
  // exist. A hint, and errors, as CountPresent().
  virtual absl::StatusOr<size_t> FindFirst(absl::Span<const BlobKey> keys, Deadline deadline);
  bool Contains(const BlobKey& key) {
    return CountPresent({&key, 1}, kNoDeadline).value_or(0) == 1;
  }
  // In every tier that a Put would write to.
  virtual bool ContainsEverywhere(const BlobKey& key) { return Contains(key); }
  // OK where there was nothing to remove. ERRORS: kUnavailable, kFailedPrecondition (read only).
  virtual absl::Status Remove(const BlobKey& key) = 0;
  // Marks blobs as used now. The first key is evicted last: a chain is of no use without its head.
  virtual void Touch(absl::Span<const BlobKey> keys) = 0;
  // From here to EndRecord() no Put() makes room at the cost of what was put or used since, nor of
  // `keys`: it fails with kResourceExhausted. So a chain that is longer than the store keeps its
  // head, which is of use, and does not evict it for its tail, which is of none. Stores that do not
  // choose what they evict ignore it.
  virtual void BeginRecord(absl::Span<const BlobKey> keys) {}
  virtual void EndRecord() {}
  // Visits the blobs whose key in hex begins with `hex_prefix`, in any order, until visit says
  // false. ERRORS: kUnavailable: the visit is not complete.
  virtual absl::Status List(std::string_view hex_prefix,
                            const std::function<bool(const BlobInfo&)>& visit) = 0;
  virtual BlobStoreStats Stats() = 0;
  // COST: none. Of several tiers: the slowest.
  virtual StoreLink Link() { return {}; }
  // Of each store behind this one, near to far.
  virtual std::vector<NamedStoreStats> TierStats() { return {{Name(), Stats()}}; }
  // For messages: where it is, without secrets.
  virtual std::string Name() const = 0;
};

// For tests and for one process: nothing is evicted.
class MemoryBlobStore : public BlobStore {
 public:
  using BlobStore::Get;
  absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) override;
  absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) override;
  absl::StatusOr<int64_t> CountPresent(absl::Span<const BlobKey> keys, Deadline deadline) override;
  absl::Status Remove(const BlobKey& key) override;
  void Touch(absl::Span<const BlobKey> keys) override {}
  absl::Status List(std::string_view hex_prefix,
                    const std::function<bool(const BlobInfo&)>& visit) override;
  BlobStoreStats Stats() override;
  std::string Name() const override { return "memory"; }

 private:
  std::mutex mutex_;
  std::map<BlobKey, std::string> blobs_;
  BlobStoreStats stats_;
};

// The key that 64 lower-case hex digits stand for. False: they do not.
bool KeyOfHex(std::string_view hex, BlobKey* key);

}  // namespace vericache
