// Several stores as one, near to far: a folder before Redis before S3, say.
//
// Read from the nearest tier that has a blob; what came from further away is put into the nearer
// ones by a thread of its own, which nobody waits for but the destructor. Written to all. A tier
// that fails is a tier that has nothing; each remote one brings its own GuardedStore.
// With a deadline every tier but the last gets half of what is left, so that a near one that hangs
// does not use up the far one's time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "storage/blob_store.h"

namespace vericache {

// Bytes that wait to be put into nearer tiers; what comes on top is left out.
inline constexpr uint64_t kMaxWriteBackBytes = uint64_t{256} << 20;

class TieredStore : public BlobStore {
 public:
  using BlobStore::Get;
  enum class WriteBack { kOff, kOn };  // kOff: a store that is read only

  // REQUIRES: at least one tier.
  TieredStore(std::vector<std::unique_ptr<BlobStore>> tiers, WriteBack write_back);
  // Writes back what waits.
  ~TieredStore() override;

  // OK if some tier has it now; else the error of the furthest one.
  absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) override;
  absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) override;
  void GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) override;
  absl::StatusOr<int64_t> CountPresent(absl::Span<const BlobKey> keys, Deadline deadline) override;
  absl::StatusOr<size_t> FindFirst(absl::Span<const BlobKey> keys, Deadline deadline) override;
  bool ContainsEverywhere(const BlobKey& key) override;
  absl::Status Remove(const BlobKey& key) override;
  void Touch(absl::Span<const BlobKey> keys) override;
  void BeginRecord(absl::Span<const BlobKey> keys) override;
  void EndRecord() override;
  // A blob of several tiers is visited once, with the nearest one's age.
  absl::Status List(std::string_view hex_prefix,
                    const std::function<bool(const BlobInfo&)>& visit) override;
  BlobStoreStats Stats() override;
  StoreLink Link() override;
  std::vector<NamedStoreStats> TierStats() override;
  std::string Name() const override;

  size_t num_tiers() const { return tiers_.size(); }
  BlobStore* tier(size_t i) { return tiers_[i].get(); }
  // Returns once nothing waits to be written back.
  void WaitForWriteBack();

 private:
  struct Copy {
    BlobKey key{};
    std::string bytes;
    size_t num_tiers = 0;  // of the nearest tiers, that lack it
  };
  void WriteBackTo(size_t num_tiers, const BlobKey& key, const BlobBytes& blob);
  void Loop();

  const std::vector<std::unique_ptr<BlobStore>> tiers_;
  const WriteBack write_back_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<Copy> copies_;    // guarded by mutex_
  uint64_t copies_bytes_ = 0;  // guarded by mutex_
  bool busy_ = false;          // guarded by mutex_
  bool stop_ = false;          // guarded by mutex_
  std::thread thread_;
};

}  // namespace vericache
