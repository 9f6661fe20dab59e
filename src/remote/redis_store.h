// Blobs in Redis 6 and later, one server or a cluster.
//
//   P{HEX}        128 bytes of header (storage/blob_header.h), then 16 bytes: piece bytes (u32),
//                 number of pieces (u32), generation (u64), little-endian; then the payload, where
//                 there are no pieces
//   P{HEX}:G:I    piece I of generation G (hex), where the payload is longer than piece_bytes
// P is the prefix that the user chose, HEX the blob's key; the braces keep all parts of a blob in
// one slot of a cluster. A blob is written pieces first, with a time to live; then one transaction
// makes them permanent and sets P{HEX}. So half a blob is never seen, and one whose writer was
// killed goes by itself. Evicting is the server's business (maxmemory-policy). Whatever a reader
// finds short, damaged or gone is a miss.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "remote/redis_layout.h"
#include "remote/redis_nodes.h"
#include "remote/store_counters.h"
#include "remote/store_url.h"
#include "storage/blob_store.h"

namespace vericache {

struct RedisOptions {
  NetAddress address;
  RedisLogin login;
  std::string prefix = "vericache:";  // of all keys
  bool read_only = false;
  uint32_t piece_bytes = 1 << 20;
  std::chrono::milliseconds timeout{5000};   // of one exchange: up to 8 blobs, or a piece
  std::chrono::milliseconds least_wait{0};   // of one exchange, whatever deadline it is given
  std::chrono::seconds unfinished_ttl{900};  // of pieces whose blob is not complete
};

// From redis://, rediss:// or redis+unix:// and its parameters: prefix, db, timeout_ms, wait_ms,
// ca_file, tls_verify=0, tls_name, protocol, piece_bytes. ERRORS: kInvalidArgument, without
// secrets.
absl::StatusOr<RedisOptions> RedisOptionsOf(const StoreUrl& url);

class RedisStore : public BlobStore {
 public:
  using BlobStore::Get;
  explicit RedisStore(const RedisOptions& options);

  absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) override;
  absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) override;
  void GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) override;
  absl::StatusOr<int64_t> CountPresent(absl::Span<const BlobKey> keys, Deadline deadline) override;
  absl::StatusOr<size_t> FindFirst(absl::Span<const BlobKey> keys, Deadline deadline) override;
  absl::Status Remove(const BlobKey& key) override;
  void Touch(absl::Span<const BlobKey> keys) override;
  absl::Status List(std::string_view hex_prefix,
                    const std::function<bool(const BlobInfo&)>& visit) override;
  BlobStoreStats Stats() override { return counts_.Stats(); }
  StoreLink Link() override {
    return {true, 0, 0, std::chrono::duration<double>(options_.least_wait).count()};
  }
  std::string Name() const override { return name_; }

 private:
  struct Reading;

  Deadline Limit(Deadline deadline) const;
  std::string MainKey(const BlobKey& key) const;
  // --- redis_store.cc: reading ---
  // Several at once; what is redirected or met a stale connection is left to ReadOne().
  void ReadWindow(absl::Span<const BlobKey> keys, Deadline deadline,
                  std::vector<Reading>* readings);
  absl::StatusOr<BlobBytes> ReadOne(const BlobKey& key, Deadline deadline);
  // How many of `keys` come before the first one that is there, or is not, as `until` says.
  enum class Until { kMissing, kPresent };
  absl::StatusOr<size_t> CountWindow(absl::Span<const BlobKey> keys, Until until, Deadline limit);
  absl::StatusOr<size_t> CountUntil(absl::Span<const BlobKey> keys, Until until, Deadline deadline);
  absl::StatusOr<BlobBytes> Finished(const BlobKey& key, Reading reading);
  absl::StatusOr<RedisNodes::Lease> ConnectFor(const std::string& main, Deadline deadline,
                                               RedisNodes::From from);
  // One command on the slot's node, along redirections.
  absl::StatusOr<RespReply> CallKey(const std::vector<std::string_view>& args, Deadline deadline);
  // --- redis_write.cc ---
  // One try on the node of the slot; `*moved`: it is not the slot's node any more.
  absl::Status TryPut(const std::string& main, const RedisHead& head,
                      absl::Span<const std::string_view> parts, Deadline deadline, bool* moved);
  // --- redis_list.cc ---
  absl::Status ListNode(const NetAddress& node, const std::string& pattern, Deadline deadline,
                        std::vector<BlobInfo>* found);
  absl::Status Describe(RedisConnection* connection, const std::vector<BlobKey>& keys,
                        std::vector<BlobInfo>* found);
  uint64_t NextGeneration();

  const RedisOptions options_;
  const std::string name_;
  RedisNodes nodes_;
  std::mutex mutex_;  // guards what follows
  std::mt19937_64 random_;
  StoreCounters counts_;
};

}  // namespace vericache
