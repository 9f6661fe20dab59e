// Where the answers of a batch go: a side file as they come, the output file at the end.
//
// OUT.part gets one line an answer, appended by one write() when it is there, in any order; OUT is
// written beside itself and renamed once all answers are there, in the order of the requests, and
// OUT.part goes away. A process that dies at any moment leaves at most one damaged line, the last
// of OUT.part. Both files are read when the next run begins.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace vericache::cli {

class BatchOutput {
 public:
  // Opens and locks the side file of `path`. ERRORS: kFailedPrecondition: another process writes
  // it; kPermissionDenied, kResourceExhausted, ...
  static absl::StatusOr<std::unique_ptr<BatchOutput>> Open(const std::string& path);
  ~BatchOutput();  // an empty side file goes away
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;

  // What an earlier run has left: the output file, then the side file. Either may be missing.
  absl::StatusOr<std::string> ReadOld() const;
  // `line` without line break.
  absl::Status Append(std::string_view line);
  // The output file becomes `content`; the side file goes away.
  absl::Status Finish(std::string_view content);

  const std::string& side_path() const { return side_path_; }

 private:
  BatchOutput(std::string path, std::string side_path, int fd)
      : path_(std::move(path)), side_path_(std::move(side_path)), fd_(fd) {}

  const std::string path_, side_path_;
  int fd_;
  bool line_open_ = false;  // the side file may end within a line
};

}  // namespace vericache::cli
