#include "storage/spill_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "storage/fault_plan.h"

namespace vericache {
namespace {

constexpr uint64_t kOffsetEnd = uint64_t{1} << 62;  // below what off_t can hold

// A file without a name in `folder`, or -1 with errno.
int OpenUnnamed(const std::string& folder, int flags) {
  const int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  // EISDIR: a kernel that does not know O_TMPFILE. EOPNOTSUPP: a file system that does not.
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
  if (struct stat info; stat(folder.c_str(), &info) != 0) return -1;
  std::string path = folder + "/vericache-spill-XXXXXX";
  const int named = mkostemp(path.data(), O_CLOEXEC | flags);
  if (named >= 0) (void)unlink(path.c_str());
  return named;
}

absl::Status CreateError(const std::string& folder, int code) {
  const std::string message =
      absl::StrCat("cannot spill KV to ", folder, ": ", std::strerror(code));
  if (code == ENOENT || code == ENOTDIR) {
    return absl::NotFoundError(absl::StrCat(message, "; create the folder or name another"));
  }
  if (code == EACCES || code == EPERM || code == EROFS) {
    return absl::PermissionDeniedError(absl::StrCat(message, "; name a folder you can write to"));
  }
  if (code == ENOSPC || code == EDQUOT) {
    return absl::ResourceExhaustedError(absl::StrCat(message, "; make room or name another"));
  }
  return absl::UnavailableError(absl::StrCat(message, "; name another folder"));
}

std::string FreeRoom(int fd) {
  struct statvfs info;
  if (fstatvfs(fd, &info) != 0) return "an unknown number of";
  return absl::StrCat(static_cast<uint64_t>(info.f_bavail) * info.f_frsize);
}

}  // namespace

SpillFile::SpillFile(int fd, bool direct, std::string folder, std::shared_ptr<FaultPlan> faults)
    : fd_(fd), direct_(direct), folder_(std::move(folder)), faults_(std::move(faults)) {}

SpillFile::~SpillFile() { (void)close(fd_); }

absl::StatusOr<std::shared_ptr<SpillFile>> SpillFile::Create(const std::string& folder,
                                                             std::shared_ptr<FaultPlan> faults) {
  bool direct = true;
  int fd = OpenUnnamed(folder, O_DIRECT);
  if (fd < 0 && errno == EINVAL) {  // a file system without O_DIRECT
    direct = false;
    fd = OpenUnnamed(folder, 0);
  }
  if (fd < 0) return CreateError(folder, errno);
  std::shared_ptr<SpillFile> file(new SpillFile(fd, direct, folder, std::move(faults)));
  VC_RETURN_IF_ERROR(file->TryWrite());
  return file;
}

absl::Status SpillFile::TryWrite() {
  alignas(kSpillAlign) static const uint8_t kZeros[kSpillAlign] = {};
  ssize_t n = pwrite(fd_, kZeros, kSpillAlign, 0);
  if (n < 0 && errno == EINVAL && direct_) {
    // Opened, but larger blocks than ours, or O_DIRECT only in name.
    direct_ = false;
    if (fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) & ~O_DIRECT) != 0)
      return CreateError(folder_, errno);
    n = pwrite(fd_, kZeros, kSpillAlign, 0);
  }
  if (n < 0) return CreateError(folder_, errno);
  if (n < static_cast<ssize_t>(kSpillAlign)) return CreateError(folder_, ENOSPC);
  if (ftruncate(fd_, 0) != 0) return CreateError(folder_, errno);
  return absl::OkStatus();
}

absl::Status SpillFile::Write(uint64_t offset, const uint8_t* data, size_t bytes) {
  if (offset % kSpillAlign != 0 || bytes % kSpillAlign != 0 ||
      reinterpret_cast<uintptr_t>(data) % kSpillAlign != 0 || offset > kOffsetEnd ||
      bytes > kOffsetEnd - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("spilled KV must be written in aligned pages of ", kSpillAlign, " bytes; got ",
                     bytes, " bytes at offset ", offset));
  }
  size_t done = 0;
  while (done < bytes) {
    FaultPlan::Fault fault;
    if (faults_ != nullptr) fault = faults_->NextWrite(bytes - done);
    ssize_t n = -1;
    errno = fault.error;
    if (fault.error == 0) {
      n = pwrite(fd_, data + done, std::min(bytes - done, fault.bytes_max),
                 static_cast<off_t>(offset + done));
    }
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return WriteError(n < 0 ? errno : ENOSPC, offset + done, bytes - done);
    // A full disk may cut a write inside a page; the next one then starts at the page again, and
    // says why.
    done = direct_ ? (done + n) / kSpillAlign * kSpillAlign : done + n;
  }
  bytes_written_.fetch_add(bytes, std::memory_order_relaxed);
  if (!direct_) {
    (void)sync_file_range(
        fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    DropCache(offset, bytes);  // drops clean pages only, hence the line above
  }
  return absl::OkStatus();
}

absl::Status SpillFile::WriteError(int code, uint64_t offset, size_t bytes) const {
  const std::string message =
      absl::StrCat("cannot spill ", bytes, " bytes of KV to ", folder_, ": ", std::strerror(code));
  if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrCat(message, "; ", FreeRoom(fd_),
                                                     " bytes are free there, ", bytes_on_disk(),
                                                     " are taken by this request; make room or "
                                                     "name another folder"));
  }
  const std::string where = absl::StrCat(message, " (offset ", offset, "); check the disk");
  return code == EIO ? absl::DataLossError(where) : absl::UnavailableError(where);
}

void SpillFile::Free(uint64_t offset, uint64_t bytes) {
  if (bytes == 0 || offset > kOffsetEnd || bytes > kOffsetEnd - offset) return;
  (void)fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes));
}

void SpillFile::DropCache(uint64_t offset, size_t bytes) const {
  if (direct_) return;
  (void)posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                      POSIX_FADV_DONTNEED);
}

uint64_t SpillFile::bytes_on_disk() const {
  struct stat info;
  return fstat(fd_, &info) == 0 ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
}

}  // namespace vericache
