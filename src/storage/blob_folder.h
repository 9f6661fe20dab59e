// The folder behind a FileBlobStore: names, room, leftovers, what is set aside.
//
//   DIR/lock            taken for moments, see CreateTemp()
//   DIR/blobs/ab/HEX    a blob; ab are the first two of its 64 hex digits
//   DIR/tmp/*.part      being written; its writer holds flock() on it as long as it lives
//   DIR/quarantine/HEX  damaged blobs, the newest kMaxQuarantined of them
// Several processes may use one folder. No byte counter is trusted for long: others write, too, so
// what is there is read from the folder and from the volume when room is needed.
// THREADS: one call at a time; CreateTemp() and PathOf() may run beside another one.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/blob_store.h"

namespace vericache {

inline constexpr int kMaxQuarantined = 16;

struct VolumeSpace {
  uint64_t free_bytes = 0;   // for us
  uint64_t total_bytes = 0;  // of the volume
};

// What a test puts in place of the volume. Empty members: the real one.
struct VolumeHooks {
  std::function<VolumeSpace()> space;
  // Called after `written` bytes of a blob; a value other than 0 is the errno of the next write.
  std::function<int(uint64_t written)> write_error;
};

class BlobFolder {
 public:
  // Creates the folder and removes what dead writers left (unless `read_only`).
  // ERRORS: kNotFound, kPermissionDenied, kUnavailable: one line that names the folder.
  static absl::StatusOr<BlobFolder> Open(const std::string& folder, bool read_only,
                                         uint64_t max_bytes, VolumeHooks hooks);
  BlobFolder(BlobFolder&& other) noexcept;
  ~BlobFolder();

  std::string PathOf(const BlobKey& key) const;

  // A new file in tmp/, locked for the life of its descriptor. Returns it, or -1 and errno.
  int CreateTemp(std::string* path);
  // Evicts until `bytes` more fit into the budget and leave the reserve of the volume free.
  // `forced`: the volume has just refused a write, whatever its figures say.
  // ERRORS: kResourceExhausted: all that could go is not enough; then nothing has gone.
  absl::Status MakeRoom(uint64_t bytes, bool forced);
  // From now on MakeRoom() leaves alone what was used at `ns` (since the epoch) or later.
  static constexpr int64_t kNothing = std::numeric_limits<int64_t>::max();
  void KeepWhatIsUsedSince(int64_t ns) { kept_since_ns_ = ns; }
  void Added(uint64_t bytes) { bytes_since_scan_ += bytes, ++puts_since_scan_; }
  // Moves a damaged blob out of the way, if it is still the file `inode`: another process may have
  // put a sound one there.
  void SetAside(const BlobKey& key, uint64_t inode);

  // Blobs and bytes by a look into the folder; removes empty files.
  struct Contents {
    int64_t num_blobs = 0;
    uint64_t num_bytes = 0;
  };
  Contents Count();
  struct Found {
    std::string name;  // 64 hex digits
    uint64_t num_bytes = 0;
    int64_t age_s = 0;  // since it was written or used
  };
  std::vector<Found> List();
  const std::string& path() const { return folder_; }
  int64_t evicted() const { return evicted_; }
  const VolumeHooks& hooks() const { return hooks_; }

 private:
  struct Entry {
    std::string path;
    uint64_t bytes;
    int64_t used_ns;
  };
  BlobFolder(std::string folder, bool read_only, uint64_t max_bytes, VolumeHooks hooks);
  std::vector<Entry> Scan();
  VolumeSpace Space() const;
  uint64_t Shortage(uint64_t bytes) const;
  void RemoveLeftovers();

  std::string folder_;
  bool read_only_;
  uint64_t max_bytes_;  // 0: no budget
  VolumeHooks hooks_;
  int lock_fd_ = -1;
  uint64_t next_temp_ = 0;
  bool scanned_ = false;
  uint64_t scanned_bytes_ = 0, bytes_since_scan_ = 0;
  int puts_since_scan_ = 0;
  int64_t evicted_ = 0;
  int64_t kept_since_ns_ = kNothing;
};

}  // namespace vericache
