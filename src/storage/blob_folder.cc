#include "storage/blob_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"
#include "base/types.h"

namespace vericache {
namespace {

// Room that the cache leaves to everyone else on the volume.
constexpr uint64_t kReserveMax = uint64_t{1} << 30;
constexpr uint64_t kReserveShare = 20;  // 1 / 20 of the volume
// After so many writes of ours another process may have written as many.
constexpr int kPutsPerScan = 32;
constexpr size_t kHexDigits = 64;

// Calls `visit(name)` for all but "." and "..".
template <typename Visit>
void ForEachName(const std::string& folder, Visit visit) {
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return;
  while (const dirent* entry = readdir(dir)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") visit(std::string(name));
  }
  closedir(dir);
}

int64_t NsOf(const timespec& time) { return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec; }

bool IsBlobName(const std::string& name) {
  return name.size() == kHexDigits && name.find_first_not_of("0123456789abcdef") == name.npos;
}

absl::Status FolderError(const std::string& folder, int error) {
  const std::string text =
      StrCat("cannot use the prefix store ", folder, ": ", std::strerror(error),
             "; choose another folder with --prefix-store");
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

// What a file takes of the volume.
uint64_t DiskBytes(uint64_t bytes) { return static_cast<uint64_t>(RoundUp(bytes, 4096)); }

}  // namespace

BlobFolder::BlobFolder(std::string folder, bool read_only, uint64_t max_bytes, VolumeHooks hooks)
    : folder_(std::move(folder)),
      read_only_(read_only),
      max_bytes_(max_bytes),
      hooks_(std::move(hooks)) {}

BlobFolder::BlobFolder(BlobFolder&& other) noexcept
    : folder_(std::move(other.folder_)),
      read_only_(other.read_only_),
      max_bytes_(other.max_bytes_),
      hooks_(std::move(other.hooks_)),
      lock_fd_(std::exchange(other.lock_fd_, -1)) {}

BlobFolder::~BlobFolder() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

absl::StatusOr<BlobFolder> BlobFolder::Open(const std::string& folder, bool read_only,
                                            uint64_t max_bytes, VolumeHooks hooks) {
  BlobFolder result(folder, read_only, max_bytes, std::move(hooks));
  struct stat info;
  if (read_only) {
    if (stat(folder.c_str(), &info) != 0) return FolderError(folder, errno);
    return result;
  }
  // Prompts can be read out of K/V: the folder is for its owner alone.
  for (const char* part : {"", "/blobs", "/tmp", "/quarantine"})
    if (mkdir((folder + part).c_str(), 0700) != 0 && errno != EEXIST)
      return FolderError(folder + part, errno);
  result.lock_fd_ = open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (result.lock_fd_ < 0) return FolderError(folder, errno);
  result.RemoveLeftovers();
  return result;
}

std::string BlobFolder::PathOf(const BlobKey& key) const {
  const std::string hex = HexOf(key);
  return StrCat(folder_, "/blobs/", hex.substr(0, 2), "/", hex);
}

// A writer's lock on its file tells that it lives; the kernel drops it with the process, at a crash
// and at a power cut alike. The folder's lock closes the gap between making a file and locking it.
int BlobFolder::CreateTemp(std::string* path) {
  *path = StrCat(folder_, "/tmp/", getpid(), "-", reinterpret_cast<uintptr_t>(this), "-",
                 next_temp_++, ".part");
  while (flock(lock_fd_, LOCK_SH) != 0)
    if (errno != EINTR) return -1;
  int fd = open(path->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  int error = fd < 0 ? errno : 0;
  if (error == 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) error = errno;
  flock(lock_fd_, LOCK_UN);
  if (error != 0 && fd >= 0) {
    unlink(path->c_str());
    close(fd);
    fd = -1;
  }
  errno = error;
  return fd;
}

void BlobFolder::RemoveLeftovers() {
  while (flock(lock_fd_, LOCK_EX) != 0)
    if (errno != EINTR) return;
  const std::string tmp = folder_ + "/tmp";
  ForEachName(tmp, [&](const std::string& name) {
    const std::string path = tmp + "/" + name;
    const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
    close(fd);
  });
  flock(lock_fd_, LOCK_UN);
}

std::vector<BlobFolder::Entry> BlobFolder::Scan() {
  std::vector<Entry> entries;
  scanned_bytes_ = 0;
  const std::string blobs = folder_ + "/blobs";
  ForEachName(blobs, [&](const std::string& fan) {
    if (fan.size() != 2) return;
    ForEachName(blobs + "/" + fan, [&](const std::string& name) {
      if (!IsBlobName(name)) return;  // not ours: neither counted nor removed
      Entry entry{StrCat(blobs, "/", fan, "/", name), 0, 0};
      struct stat info;
      if (lstat(entry.path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return;
      if (info.st_size == 0) {  // we never leave one; it would only be in the way
        if (!read_only_) unlink(entry.path.c_str());
        return;
      }
      entry.bytes = static_cast<uint64_t>(info.st_size);
      entry.used_ns = NsOf(info.st_mtim);
      scanned_bytes_ += DiskBytes(entry.bytes);
      entries.push_back(std::move(entry));
    });
  });
  scanned_ = true;
  bytes_since_scan_ = 0;
  puts_since_scan_ = 0;
  return entries;
}

BlobFolder::Contents BlobFolder::Count() {
  Contents contents;
  for (const Entry& entry : Scan()) {
    ++contents.num_blobs;
    contents.num_bytes += entry.bytes;
  }
  return contents;
}

std::vector<BlobFolder::Found> BlobFolder::List() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  std::vector<Found> found;
  for (const Entry& entry : Scan())
    found.push_back({entry.path.substr(entry.path.rfind('/') + 1), entry.bytes,
                     std::max<int64_t>(0, (NsOf(now) - entry.used_ns) / 1000000000)});
  return found;
}

VolumeSpace BlobFolder::Space() const {
  if (hooks_.space) return hooks_.space();
  struct statvfs info;
  // No answer is no reason to refuse: a full volume shows when it is written to.
  if (statvfs(folder_.c_str(), &info) != 0) return {~uint64_t{0} >> 1, 0};
  const uint64_t unit = info.f_frsize;
  return {info.f_bavail * unit, info.f_blocks * unit};
}

// Bytes that must go so that `bytes` more leave the reserve free.
uint64_t BlobFolder::Shortage(uint64_t bytes) const {
  const VolumeSpace space = Space();
  const uint64_t wanted = bytes + std::min(kReserveMax, space.total_bytes / kReserveShare);
  return wanted > space.free_bytes ? wanted - space.free_bytes : 0;
}

absl::Status BlobFolder::MakeRoom(uint64_t bytes, bool forced) {
  bytes = DiskBytes(bytes);
  const uint64_t shortage = std::max(Shortage(bytes), forced ? bytes : 0);
  const bool looks_full =
      max_bytes_ > 0 && (!scanned_ || puts_since_scan_ >= kPutsPerScan ||
                         scanned_bytes_ + bytes_since_scan_ + bytes > max_bytes_);
  if (shortage == 0 && !looks_full) return absl::OkStatus();
  std::vector<Entry> entries = Scan();
  uint64_t to_free = shortage;
  if (max_bytes_ > 0 && scanned_bytes_ + bytes > max_bytes_)
    to_free = std::max(to_free, scanned_bytes_ + bytes - max_bytes_);
  if (to_free == 0) return absl::OkStatus();
  entries.erase(std::remove_if(entries.begin(), entries.end(),
                               [this](const Entry& e) { return e.used_ns >= kept_since_ns_; }),
                entries.end());
  const uint64_t evictable =
      std::accumulate(entries.begin(), entries.end(), uint64_t{0},
                      [](uint64_t sum, const Entry& e) { return sum + DiskBytes(e.bytes); });
  if (to_free > evictable)
    return absl::ResourceExhaustedError(StrCat("no room for ", bytes, " bytes in ", folder_));
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.used_ns, a.path) < std::tie(b.used_ns, b.path);
  });
  uint64_t freed = 0;
  for (const Entry& entry : entries) {
    if (freed >= to_free) break;
    // Gone already: another process evicts, too.
    if (unlink(entry.path.c_str()) == 0) ++evicted_;
    freed += DiskBytes(entry.bytes);
  }
  scanned_bytes_ -= std::min(scanned_bytes_, freed);
  return absl::OkStatus();
}

void BlobFolder::SetAside(const BlobKey& key, uint64_t inode) {
  if (read_only_) return;
  const std::string path = PathOf(key), folder = folder_ + "/quarantine";
  struct stat found;
  if (lstat(path.c_str(), &found) != 0 || found.st_ino != inode) return;
  std::vector<std::pair<int64_t, std::string>> held;
  ForEachName(folder, [&](const std::string& name) {
    struct stat info;
    const std::string old = folder + "/" + name;
    if (lstat(old.c_str(), &info) == 0) held.emplace_back(NsOf(info.st_ctim), old);
  });
  std::sort(held.begin(), held.end());
  for (size_t i = 0; i + kMaxQuarantined <= held.size(); ++i) unlink(held[i].second.c_str());
  const std::string aside = folder + "/" + HexOf(key);
  if (rename(path.c_str(), aside.c_str()) != 0) unlink(path.c_str());
}

}  // namespace vericache
