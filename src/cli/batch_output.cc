#include "cli/batch_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/status_macros.h"
#include "cli/files.h"

namespace vericache::cli {
namespace {

// Far above a million long answers: something else.
constexpr uint64_t kOutputBytesMax = uint64_t{16} << 30;

}  // namespace

absl::StatusOr<std::unique_ptr<BatchOutput>> BatchOutput::Open(const std::string& path) {
  const std::string side = path + ".part";
  for (;;) {
    const int fd = open(side.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return FileError("cannot open", side, errno);
    auto output = std::unique_ptr<BatchOutput>(new BatchOutput(path, side, fd));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      output->fd_ = -1;
      close(fd);
      return absl::FailedPreconditionError(fmt::format(
          "another `vericache batch` is writing {}: wait for it or give another -o", path));
    }
    struct stat info = {}, named = {};
    if (fstat(fd, &info) != 0) return FileError("cannot read", side, errno);
    if (!S_ISREG(info.st_mode))
      return absl::InvalidArgumentError(side + " is not a file: remove it or give another -o");
    // Whoever held the lock may have removed the file in the meantime.
    if (stat(side.c_str(), &named) != 0 || named.st_ino != info.st_ino) continue;
    char last = '\n';
    if (info.st_size > 0 && pread(fd, &last, 1, info.st_size - 1) != 1)
      return FileError("cannot read", side, errno);
    output->line_open_ = last != '\n';
    return output;
  }
}

BatchOutput::~BatchOutput() {
  if (fd_ < 0) return;
  struct stat info = {}, named = {};
  if (fstat(fd_, &info) == 0 && info.st_size == 0 && stat(side_path_.c_str(), &named) == 0 &&
      named.st_ino == info.st_ino)
    unlink(side_path_.c_str());
  close(fd_);
}

absl::StatusOr<std::string> BatchOutput::ReadOld() const {
  std::string text;
  if (FileExists(path_)) {
    VC_ASSIGN_OR_RETURN(text, ReadWholeFile(path_, kOutputBytesMax));
    if (!text.empty() && text.back() != '\n') text += '\n';
  }
  VC_ASSIGN_OR_RETURN(const std::string side, ReadWholeFile(side_path_, kOutputBytesMax));
  return text + side;
}

absl::Status BatchOutput::Append(std::string_view line) {
  // A line that is cut, by a kill or a full disk, must not swallow the next one.
  const std::string text = fmt::format("{}{}\n", line_open_ ? "\n" : "", line);
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t written = write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError("cannot write", side_path_, errno);
    line_open_ = true;
    rest.remove_prefix(static_cast<size_t>(written));
  }
  line_open_ = false;
  return absl::OkStatus();
}

absl::Status BatchOutput::Finish(std::string_view content) {
  VC_RETURN_IF_ERROR(WriteFileAtomic(path_, content));
  unlink(side_path_.c_str());
  return absl::OkStatus();
}

}  // namespace vericache::cli
