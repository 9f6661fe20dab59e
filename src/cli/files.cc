#include "cli/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "base/status_macros.h"

namespace vericache::cli {
namespace {

absl::StatusOr<std::string> ReadAll(int fd, const std::string& name, uint64_t bytes_max) {
  std::string content;
  constexpr size_t kPiece = 1 << 16;
  for (;;) {
    const size_t old_size = content.size();
    content.resize(old_size + kPiece);
    const ssize_t got = read(fd, content.data() + old_size, kPiece);
    content.resize(old_size + static_cast<size_t>(got > 0 ? got : 0));
    if (got < 0 && errno == EINTR) return absl::CancelledError("stopped while reading " + name);
    if (got < 0) return FileError("cannot read", name, errno);
    if (got == 0) return content;
    if (content.size() > bytes_max)
      return absl::ResourceExhaustedError(
          fmt::format("{} is longer than the limit of {} bytes", name, bytes_max));
  }
}

absl::Status WriteAll(int fd, const std::string& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError("cannot write", path, errno);
    content.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The file behind a symbolic link, so that a rename replaces the file and not the link.
std::string Resolved(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  if (real == nullptr) return path;
  std::string resolved = real;
  std::free(real);
  return resolved;
}

// True for a terminal, a pipe, /dev/null: nothing that a rename could replace.
bool IsSpecialFile(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

}  // namespace

absl::Status FileError(const std::string& what, const std::string& path, int error) {
  const std::string message = fmt::format("{} {}: {}", what, path, std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(message + "; free some space and try again");
    default:
      return absl::UnavailableError(message);
  }
}

bool FileExists(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0;
}

bool IsFileOrNothing(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, uint64_t bytes_max) {
  if (path == "-") return ReadAll(STDIN_FILENO, "standard input", bytes_max);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("cannot open", path, errno);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode))
    return absl::InvalidArgumentError(path + " is a folder, not a file");
  return ReadAll(fd, path, bytes_max);
}

absl::Status WriteFileAtomic(const std::string& path, std::string_view content) {
  if (IsSpecialFile(path)) {
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return FileError("cannot open", path, errno);
    const absl::Cleanup close_fd = [fd] { close(fd); };
    return WriteAll(fd, path, content);
  }
  const std::string target = Resolved(path);
  const std::string temporary = fmt::format("{}.{}.tmp", target, getpid());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return FileError("cannot create", temporary, errno);
  absl::Status status = WriteAll(fd, path, content);
  if (status.ok() && fsync(fd) != 0) status = FileError("cannot write", path, errno);
  if (close(fd) != 0 && status.ok()) status = FileError("cannot write", path, errno);
  if (status.ok() && std::rename(temporary.c_str(), target.c_str()) != 0)
    status = FileError("cannot replace", target, errno);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

absl::Status CheckWritable(const std::string& flag, const std::string& path) {
  const std::string target = Resolved(path);
  struct stat info = {};
  if (stat(target.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode))
      return absl::InvalidArgumentError(fmt::format("{}: {} is a folder, not a file", flag, path));
    if (!S_ISREG(info.st_mode)) return absl::OkStatus();
  }
  const std::string folder = FolderOf(target);
  if (stat(folder.c_str(), &info) != 0)
    return absl::NotFoundError(
        fmt::format("{}: cannot write {}: there is no folder {}", flag, path, folder));
  if (!S_ISDIR(info.st_mode))
    return absl::InvalidArgumentError(
        fmt::format("{}: cannot write {}: {} is not a folder", flag, path, folder));
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    return absl::PermissionDeniedError(
        fmt::format("{}: cannot write into the folder {}: {}", flag, folder, std::strerror(errno)));
  return absl::OkStatus();
}

}  // namespace vericache::cli
