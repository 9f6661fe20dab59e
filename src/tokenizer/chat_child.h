// A Python process that runs one chat template, and is killed when it takes too long.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace vericache {

// The source of chat_child.py, which describes the protocol.
extern const char kChatChildScript[];

// An answer of the child: a status character and its text.
struct ChildAnswer {
  char status;
  std::string text;
};

// One process at a time, started by the first Call() and again after it was killed.
class ChatChild {
 public:
  // `settings` are the fields of the first request to each new process.
  ChatChild(std::vector<std::string> settings, size_t max_answer_bytes);
  ~ChatChild();
  ChatChild(const ChatChild&) = delete;
  ChatChild& operator=(const ChatChild&) = delete;

  // Sends one request and waits for its answer: for `timeout_ms` by the clock, and beyond, up to
  // ten times as long, while the process has had less than that of processor time. So a busy or
  // suspended machine is not taken for an endless template.
  // ERRORS: kUnavailable (no python3, no jinja2, or it does not start), kDeadlineExceeded,
  //         kResourceExhausted (an answer over the limit), kInvalidArgument (the process died).
  //         After any error the process is gone; the next call starts another.
  absl::StatusOr<ChildAnswer> Call(const std::vector<std::string>& fields, int timeout_ms);

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  absl::Status Start();
  absl::Status Spawn();
  absl::StatusOr<ChildAnswer> Exchange(const std::vector<std::string>& fields, Deadline deadline);
  absl::Status Send(const std::string& bytes, Deadline deadline);
  absl::Status Receive(size_t size, Deadline deadline, std::string* bytes);
  // Waits until the socket is ready for `events`. ERRORS: kDeadlineExceeded.
  absl::Status Wait(short events, Deadline deadline);
  int64_t CpuMs() const;  // of the process; a huge number where it cannot be told
  int Kill();             // returns the process's wait status

  const std::vector<std::string> settings_;
  const size_t max_answer_bytes_;
  pid_t pid_ = -1;
  int socket_ = -1;
  bool has_answered_ = false;  // this process has rendered something
  // Of the call under way: processor time of the process before it and what it may use, in ms;
  // how often it was given more time.
  int64_t cpu_before_ms_ = 0, cpu_limit_ms_ = 0;
  int num_extensions_ = 0;
};

}  // namespace vericache
