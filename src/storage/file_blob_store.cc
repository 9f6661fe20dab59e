#include "storage/file_blob_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/status_macros.h"
#include "base/text.h"
#include "storage/blob_header.h"

namespace vericache {
namespace {

// One write call: a test's hook is asked between them.
constexpr size_t kWriteBytes = size_t{256} << 10;

bool IsFull(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

// 0, or the errno of what failed.
int WriteAll(int fd, std::string_view bytes, const VolumeHooks& hooks, uint64_t* written) {
  while (!bytes.empty()) {
    if (hooks.write_error) {
      const int error = hooks.write_error(*written);
      if (error != 0) return error;
    }
    const ssize_t n = write(fd, bytes.data(), std::min(bytes.size(), kWriteBytes));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    bytes.remove_prefix(static_cast<size_t>(n));
    *written += static_cast<uint64_t>(n);
  }
  return 0;
}

// False: end of the file or an error.
bool ReadAll(int fd, uint8_t* to, size_t size) {
  while (size > 0) {
    const ssize_t n = read(fd, to, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

// The whole file at `path`, if it is the blob of `key`. `inode`: of what was read.
absl::StatusOr<BlobBytes> ReadBlob(const std::string& path, const BlobKey& key, uint64_t* inode) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    return errno == ENOENT || errno == ENOTDIR
               ? absl::NotFoundError("no such blob")
               : absl::UnavailableError(StrCat("cannot open ", path, ": ", std::strerror(errno)));
  }
  const auto read_open = [&]() -> absl::StatusOr<BlobBytes> {
    struct stat info;
    BlobHeader header;
    if (fstat(fd, &info) != 0) return absl::UnavailableError(std::strerror(errno));
    *inode = info.st_ino;
    if (!S_ISREG(info.st_mode) || !ReadAll(fd, header.data(), header.size()))
      return absl::DataLossError("a blob without a header");
    VC_RETURN_IF_ERROR(CheckBlobHeader(header, key, static_cast<uint64_t>(info.st_size)));
    BlobBytes payload(static_cast<size_t>(info.st_size) - kBlobHeaderBytes);
    if (!ReadAll(fd, payload.data(), payload.size())) return absl::DataLossError("a short blob");
    VC_RETURN_IF_ERROR(CheckBlobPayload(header, {payload.data(), payload.size()}));
    return payload;
  };
  absl::StatusOr<BlobBytes> bytes = read_open();
  close(fd);
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileBlobStore>> FileBlobStore::Open(
    const std::string& folder, const FileBlobStoreOptions& options) {
  VC_ASSIGN_OR_RETURN(BlobFolder opened, BlobFolder::Open(folder, options.read_only,
                                                          options.max_bytes, options.hooks));
  return std::unique_ptr<FileBlobStore>(new FileBlobStore(std::move(opened), options.read_only));
}

absl::Status FileBlobStore::Put(const BlobKey& key, absl::Span<const std::string_view> parts) {
  if (read_only_) return absl::FailedPreconditionError("the prefix store is read only");
  uint64_t num_bytes = kBlobHeaderBytes;
  for (std::string_view part : parts) num_bytes += part.size();
  if (num_bytes > kMaxBlobBytes) return absl::ResourceExhaustedError("a blob of this size");
  const std::lock_guard put_lock(put_mutex_);
  absl::Status status = MakeRoom(num_bytes, /*forced=*/false);
  if (status.ok()) status = Write(key, parts, num_bytes);
  // The volume is fuller than its figures say (a quota, or others were faster): once more.
  if (absl::IsResourceExhausted(status) && MakeRoom(num_bytes, /*forced=*/true).ok())
    status = Write(key, parts, num_bytes);
  const std::lock_guard lock(mutex_);
  if (status.ok()) {
    folder_.Added(num_bytes);
    stats_.written_bytes += num_bytes;
  } else {
    ++stats_.failed_puts;
  }
  return status;
}

absl::Status FileBlobStore::MakeRoom(uint64_t num_bytes, bool forced) {
  const std::lock_guard lock(mutex_);
  return folder_.MakeRoom(num_bytes, forced);
}

absl::Status FileBlobStore::Write(const BlobKey& key, absl::Span<const std::string_view> parts,
                                  uint64_t num_bytes) {
  const BlobHeader header = MakeBlobHeader(key, parts);
  const std::string path = folder_.PathOf(key);
  std::string temp;
  const int fd = folder_.CreateTemp(&temp);
  int error = fd < 0 ? errno : 0;
  uint64_t written = 0;
  const std::string_view head(reinterpret_cast<const char*>(header.data()), header.size());
  if (error == 0) error = WriteAll(fd, head, folder_.hooks(), &written);
  for (size_t i = 0; i < parts.size() && error == 0; ++i)
    error = WriteAll(fd, parts[i], folder_.hooks(), &written);
  // Times of last use are ours to set: the kernel's own lag behind Touch() by a tick.
  timespec times[2] = {{0, UTIME_OMIT}, {}};
  clock_gettime(CLOCK_REALTIME, &times[1]);
  if (error == 0 && (futimens(fd, times) != 0 || fsync(fd) != 0)) error = errno;
  if (error == 0 && rename(temp.c_str(), path.c_str()) != 0) {
    // The first blob of its fan-out folder.
    mkdir(path.substr(0, path.rfind('/')).c_str(), 0700);
    if (rename(temp.c_str(), path.c_str()) != 0) error = errno;
  }
  if (error != 0 && fd >= 0) unlink(temp.c_str());
  if (fd >= 0) close(fd);
  if (error != 0) {
    const std::string text = StrCat("cannot write ", path, ": ", std::strerror(error));
    return IsFull(error) ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
  }
  return absl::OkStatus();
}

absl::StatusOr<BlobBytes> FileBlobStore::Get(const BlobKey& key, Deadline) {
  uint64_t inode = 0;
  absl::StatusOr<BlobBytes> bytes = ReadBlob(folder_.PathOf(key), key, &inode);
  const std::lock_guard lock(mutex_);
  if (bytes.ok()) {
    stats_.read_bytes += bytes->size();
  } else if (absl::IsDataLoss(bytes.status())) {
    ++stats_.damaged;
    folder_.SetAside(key, inode);
    return absl::NotFoundError(bytes.status().message());
  }
  return bytes;
}

absl::StatusOr<int64_t> FileBlobStore::CountPresent(absl::Span<const BlobKey> keys, Deadline) {
  int64_t count = 0;
  for (const BlobKey& key : keys) {
    struct stat info;
    if (stat(folder_.PathOf(key).c_str(), &info) != 0 ||
        info.st_size < static_cast<off_t>(kBlobHeaderBytes))
      break;
    ++count;
  }
  return count;
}

absl::Status FileBlobStore::Remove(const BlobKey& key) {
  if (read_only_) return absl::FailedPreconditionError("the prefix store is read only");
  const std::string path = folder_.PathOf(key);
  if (unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return absl::OkStatus();
  return absl::UnavailableError(StrCat("cannot remove ", path, ": ", std::strerror(errno)));
}

absl::Status FileBlobStore::List(std::string_view hex_prefix,
                                 const std::function<bool(const BlobInfo&)>& visit) {
  std::vector<BlobFolder::Found> found;
  {
    const std::lock_guard lock(mutex_);
    found = folder_.List();
  }
  for (const BlobFolder::Found& file : found) {
    BlobInfo info;
    if (!std::string_view(file.name).starts_with(hex_prefix) || !KeyOfHex(file.name, &info.key))
      continue;
    info.num_bytes = file.num_bytes - std::min<uint64_t>(file.num_bytes, kBlobHeaderBytes);
    info.age_s = file.age_s;
    if (!visit(info)) break;
  }
  return absl::OkStatus();
}

void FileBlobStore::Touch(absl::Span<const BlobKey> keys) {
  if (read_only_) return;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  // A microsecond apart, the first one newest.
  for (const BlobKey& key : keys) {
    const timespec times[2] = {{0, UTIME_OMIT}, now};
    utimensat(AT_FDCWD, folder_.PathOf(key).c_str(), times, 0);
    now.tv_nsec -= 1000;
    if (now.tv_nsec < 0) {
      now.tv_nsec += 1000000000;
      --now.tv_sec;
    }
  }
}

void FileBlobStore::BeginRecord(absl::Span<const BlobKey> keys) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  Touch(keys);  // the last of them a microsecond a key back
  const int64_t now_ns = now.tv_sec * int64_t{1000000000} + now.tv_nsec;
  const std::lock_guard lock(mutex_);
  folder_.KeepWhatIsUsedSince(now_ns - static_cast<int64_t>(keys.size()) * 1000);
}

void FileBlobStore::EndRecord() {
  const std::lock_guard lock(mutex_);
  folder_.KeepWhatIsUsedSince(BlobFolder::kNothing);
}

BlobStoreStats FileBlobStore::Stats() {
  const std::lock_guard lock(mutex_);
  BlobStoreStats stats = stats_;
  const BlobFolder::Contents contents = folder_.Count();
  stats.num_blobs = contents.num_blobs;
  stats.num_bytes = contents.num_bytes;
  stats.evicted = folder_.evicted();
  return stats;
}

}  // namespace vericache
