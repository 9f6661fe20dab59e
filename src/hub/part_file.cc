#include "hub/part_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace vericache {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string Megabytes(int64_t bytes) { return absl::StrCat((bytes + 999999) / 1000000, " MB"); }

}  // namespace

PartFile::PartFile(int fd, const std::string& target, int64_t bytes_total,
                   const std::string& sha256)
    : fd_(fd),
      target_(target),
      part_path_(target + ".part"),
      note_path_(part_path_ + ".sha256"),
      bytes_total_(bytes_total),
      sha256_(sha256) {}

PartFile::PartFile(PartFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      target_(other.target_),
      part_path_(other.part_path_),
      note_path_(other.note_path_),
      bytes_total_(other.bytes_total_),
      sha256_(other.sha256_),
      bytes_done_(other.bytes_done_),
      owned_(other.owned_) {}

PartFile::~PartFile() {
  if (fd_ < 0) return;
  if (owned_ && bytes_done_ == 0) Remove();  // an empty part is of no use to anybody
  close(fd_);
}

absl::StatusOr<PartFile> PartFile::Open(const std::string& target, int64_t bytes_total,
                                        const std::string& sha256) {
  const std::string path = target + ".part";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  PartFile part(fd, target, bytes_total, sha256);
  if (fd < 0) return part.WriteError("create");
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return absl::AbortedError(absl::StrCat("another pull is writing ", path, "; wait for it"));
  }
  VC_RETURN_IF_ERROR(part.ReadState());
  VC_RETURN_IF_ERROR(part.CheckRoom());
  return part;
}

absl::Status PartFile::ReadState() {
  struct stat info;
  if (fstat(fd_, &info) != 0) return WriteError("read");
  // The lock may have been won in the moment after another pull gave the file its final name.
  struct stat named;
  if (stat(part_path_.c_str(), &named) != 0 || named.st_ino != info.st_ino) {
    return absl::AbortedError(absl::StrCat("another pull has just written ", target_));
  }
  owned_ = true;
  bytes_done_ = info.st_size;
  if (bytes_done_ <= bytes_total_ && FirstLine(note_path_) == sha256_) {
    if (lseek(fd_, 0, SEEK_END) < 0) return WriteError("read");
    return absl::OkStatus();
  }
  // The order matters: the note must not speak of bytes that belong to another file.
  VC_RETURN_IF_ERROR(Restart());
  std::ofstream note(note_path_, std::ios::trunc);
  note << sha256_ << "\n";
  note.close();
  if (!note) return WriteError("write");
  return absl::OkStatus();
}

absl::Status PartFile::CheckRoom() const {
  struct statvfs info;
  if (fstatvfs(fd_, &info) != 0) return absl::OkStatus();  // no answer is no reason to refuse
  const uint64_t free_bytes = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  const uint64_t needed = bytes_total_ - bytes_done_;
  if (free_bytes >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("not enough room for ", target_, ": ", Megabytes(needed), " needed, ",
                   Megabytes(free_bytes), " free; make room and run this again"));
}

absl::Status PartFile::WriteError(const std::string& what) const {
  const int code = errno;
  if (code == ENOSPC || code == EFBIG || code == EDQUOT) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the disk is full (", std::strerror(code), "): ", part_path_, " has ",
                     Megabytes(bytes_done_), " of ", Megabytes(bytes_total_),
                     "; make room and run this again, it goes on from there"));
  }
  const std::string message =
      absl::StrCat("cannot ", what, " ", part_path_, ": ", std::strerror(code));
  if (code == EACCES || code == EPERM || code == EROFS) return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

absl::Status PartFile::Append(absl::Span<const char> bytes) {
  if (bytes_done_ + static_cast<int64_t>(bytes.size()) > bytes_total_) {
    return absl::DataLossError(
        absl::StrCat("the server sends more than the ", bytes_total_, " bytes it announced"));
  }
  while (!bytes.empty()) {
    const ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return WriteError("write");
    bytes_done_ += n;
    bytes.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::Status PartFile::Restart() {
  if (ftruncate(fd_, 0) != 0 || lseek(fd_, 0, SEEK_SET) != 0) return WriteError("write");
  bytes_done_ = 0;
  return absl::OkStatus();
}

void PartFile::Remove() {
  unlink(note_path_.c_str());
  unlink(part_path_.c_str());
  owned_ = false;
}

absl::Status PartFile::Finish() {
  // Until here bytes may only be in memory; a crash after the rename must not leave a hole.
  if (fsync(fd_) != 0) return WriteError("write");
  VC_ASSIGN_OR_RETURN(const Sha256Digest digest, Sha256OfFile(part_path_));
  if (const std::string got = HexOf(digest); got != sha256_) {
    Remove();
    return absl::DataLossError(absl::StrCat("damaged on the way: SHA-256 is ", got, ", expected ",
                                            sha256_, "; nothing was kept, run this again"));
  }
  if (rename(part_path_.c_str(), target_.c_str()) != 0) return WriteError("rename");
  unlink(note_path_.c_str());
  owned_ = false;
  const std::string folder = std::filesystem::path(target_).parent_path().string();
  const int dir = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir >= 0) {
    fsync(dir);
    close(dir);
  }
  return absl::OkStatus();
}

}  // namespace vericache
