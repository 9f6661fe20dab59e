// Blobs in a folder, one file each, for any number of processes at once.
//
// A blob is written beside its place, synced and renamed, so that a name never stands for half a
// blob, whatever kills the writer. What is damaged all the same is set aside and counted. Blobs are
// evicted by least recent use, within a budget of bytes and the free room of the volume. A volume
// that is full costs hits, never a request, and writing goes on by itself once there is room.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/blob_folder.h"
#include "storage/blob_store.h"

namespace vericache {

struct FileBlobStoreOptions {
  bool read_only = false;  // writes nothing into the folder, not even times
  uint64_t max_bytes = 0;  // budget; 0: what the volume has free, less a reserve
  VolumeHooks hooks;       // for tests
};

class FileBlobStore : public BlobStore {
 public:
  // ERRORS: kNotFound, kPermissionDenied, kUnavailable: one line that names the folder.
  static absl::StatusOr<std::unique_ptr<FileBlobStore>> Open(const std::string& folder,
                                                             const FileBlobStoreOptions& options);

  using BlobStore::Get;
  absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) override;
  // A local disk has no deadline: a read that hangs hangs in the kernel.
  absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) override;
  absl::StatusOr<int64_t> CountPresent(absl::Span<const BlobKey> keys, Deadline deadline) override;
  absl::Status Remove(const BlobKey& key) override;
  void Touch(absl::Span<const BlobKey> keys) override;
  void BeginRecord(absl::Span<const BlobKey> keys) override;
  void EndRecord() override;
  absl::Status List(std::string_view hex_prefix,
                    const std::function<bool(const BlobInfo&)>& visit) override;
  BlobStoreStats Stats() override;
  std::string Name() const override { return folder_.path(); }

 private:
  FileBlobStore(BlobFolder folder, bool read_only)
      : folder_(std::move(folder)), read_only_(read_only) {}
  absl::Status MakeRoom(uint64_t num_bytes, bool forced);
  absl::Status Write(const BlobKey& key, absl::Span<const std::string_view> parts,
                     uint64_t num_bytes);

  std::mutex put_mutex_;  // one Put at a time; taken before mutex_
  std::mutex mutex_;      // guards what follows; never held while a blob is read or written
  BlobFolder folder_;
  const bool read_only_;
  BlobStoreStats stats_;
};

}  // namespace vericache
