#include "tokenizer/chat_child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace vericache {
namespace {

constexpr char kPython[] = "/usr/bin/python3";
constexpr char kInstallHint[] =
    "chat templates need /usr/bin/python3 with Jinja2: apt-get install python3-jinja2";
// Starting Python and importing jinja2 takes about 0.1 s, on a busy machine many times that.
constexpr int kStartTimeoutMs = 20000;
constexpr int kExtensionsMax = 9;
constexpr int64_t kShortestExtensionMs = 10;
// Beyond this a request is no conversation; lengths are 32 bits wide.
constexpr size_t kMaxFieldBytes = 256 << 20;

void AppendField(const std::string& field, std::string* out) {
  const uint32_t size = static_cast<uint32_t>(field.size());
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(size >> shift));
  out->append(field);
}

uint32_t LittleEndian32(const char* bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) return absl::StrCat("killed by signal ", WTERMSIG(wait_status));
  return absl::StrCat("exit status ", WEXITSTATUS(wait_status));
}

// The lost end of a conversation with the process; told apart from errors of the protocol.
absl::Status Ended() { return absl::AbortedError("the process ended"); }

}  // namespace

ChatChild::ChatChild(std::vector<std::string> settings, size_t max_answer_bytes)
    : settings_(std::move(settings)), max_answer_bytes_(max_answer_bytes) {}

ChatChild::~ChatChild() { Kill(); }

absl::StatusOr<ChildAnswer> ChatChild::Call(const std::vector<std::string>& fields,
                                            int timeout_ms) {
  for (const std::string& field : fields)
    if (field.size() > kMaxFieldBytes)
      return absl::InvalidArgumentError(
          absl::StrCat("a conversation of ", field.size(), " bytes is too long"));
  for (;;) {
    if (pid_ < 0) VC_RETURN_IF_ERROR(Start());
    const Deadline deadline =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    cpu_before_ms_ = CpuMs();
    cpu_limit_ms_ = timeout_ms;
    num_extensions_ = 0;
    absl::StatusOr<ChildAnswer> answer = Exchange(fields, deadline);
    if (answer.ok()) {
      has_answered_ = true;
      return answer;
    }
    const bool is_retried = has_answered_;
    const int wait_status = Kill();
    if (absl::IsDeadlineExceeded(answer.status()))
      return absl::DeadlineExceededError(
          absl::StrCat("the chat template ran longer than ", timeout_ms, " ms and was stopped"));
    if (!absl::IsAborted(answer.status())) return answer;
    if (WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGXCPU)
      return absl::DeadlineExceededError("the chat template used up its processor time");
    // A process that was killed from outside while it had nothing to do is replaced, once.
    if (!is_retried)
      return absl::InvalidArgumentError(absl::StrCat("the chat template ended its interpreter (",
                                                     DescribeExit(wait_status), ")"));
  }
}

absl::Status ChatChild::Start() {
  VC_RETURN_IF_ERROR(Spawn());
  cpu_limit_ms_ = 0;
  const Deadline deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(kStartTimeoutMs);
  const absl::StatusOr<ChildAnswer> hello = Exchange(settings_, deadline);
  if (hello.ok() && hello->status == 'h') return absl::OkStatus();
  const int wait_status = Kill();
  std::string why = absl::StrCat("it did not start: ", DescribeExit(wait_status));
  if (hello.ok()) why = hello->text;
  return absl::UnavailableError(absl::StrCat(kInstallHint, " (", why, ")"));
}

// posix_spawn and not fork: the parent may have gigabytes mapped and many threads.
absl::Status ChatChild::Spawn() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    return absl::UnavailableError(absl::StrCat("socketpair: ", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  VC_CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawnattr_init(&attributes) == 0);
  // The child keeps its end of the socket, and nothing else that this process has open.
  posix_spawn_file_actions_adddup2(&actions, sockets[1], 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  // A group of its own: Ctrl-C in a terminal is for us. Signals as a fresh process has them.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);

  const char* const argv[] = {kPython, "-I", "-c", kChatChildScript, nullptr};
  // strftime_now tells local time; nothing else of our environment is the template's business.
  const char* tz = std::getenv("TZ");
  const std::string time_zone = absl::StrCat("TZ=", tz == nullptr ? "" : tz);
  const char* const environment[] = {"LC_ALL=C.UTF-8", tz == nullptr ? nullptr : time_zone.c_str(),
                                     nullptr};
  const int error =
      posix_spawn(&pid_, kPython, &actions, &attributes, const_cast<char* const*>(argv),
                  const_cast<char* const*>(environment));
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(sockets[1]);
  if (error != 0) {
    pid_ = -1;
    close(sockets[0]);
    return absl::UnavailableError(absl::StrCat(kInstallHint, " (", std::strerror(error), ")"));
  }
  socket_ = sockets[0];
  has_answered_ = false;
  return absl::OkStatus();
}

absl::StatusOr<ChildAnswer> ChatChild::Exchange(const std::vector<std::string>& fields,
                                                Deadline deadline) {
  std::string request;
  for (const std::string& field : fields) AppendField(field, &request);
  VC_RETURN_IF_ERROR(Send(request, deadline));
  constexpr size_t kHeaderBytes = 5;  // status, length
  std::string header;
  VC_RETURN_IF_ERROR(Receive(kHeaderBytes, deadline, &header));
  const size_t size = LittleEndian32(header.data() + 1);
  if (size > max_answer_bytes_)
    return absl::ResourceExhaustedError(absl::StrCat("the chat template's output has ", size,
                                                     " bytes; at most ", max_answer_bytes_));
  ChildAnswer answer{header[0], ""};
  VC_RETURN_IF_ERROR(Receive(size, deadline, &answer.text));
  return answer;
}

absl::Status ChatChild::Send(const std::string& bytes, Deadline deadline) {
  size_t done = 0;
  while (done < bytes.size()) {
    VC_RETURN_IF_ERROR(Wait(POLLOUT, deadline));
    // MSG_NOSIGNAL: a dead child must not raise SIGPIPE here.
    const ssize_t sent =
        send(socket_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      done += static_cast<size_t>(sent);
    } else if (errno != EINTR && errno != EAGAIN) {
      return Ended();
    }
  }
  return absl::OkStatus();
}

absl::Status ChatChild::Receive(size_t size, Deadline deadline, std::string* bytes) {
  bytes->resize(size);
  size_t done = 0;
  while (done < size) {
    VC_RETURN_IF_ERROR(Wait(POLLIN, deadline));
    const ssize_t received = recv(socket_, bytes->data() + done, size - done, MSG_DONTWAIT);
    if (received > 0) {
      done += static_cast<size_t>(received);
    } else if (received == 0 || (errno != EINTR && errno != EAGAIN)) {
      return Ended();
    }
  }
  return absl::OkStatus();
}

absl::Status ChatChild::Wait(short events, Deadline deadline) {
  for (;;) {
    int64_t left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                          deadline - std::chrono::steady_clock::now())
                          .count();
    if (left_ms <= 0) {
      // Waits are counted, not the clock: it runs on while everything stands still.
      const int64_t unused_ms = cpu_limit_ms_ - (CpuMs() - cpu_before_ms_);
      if (unused_ms <= 0 || ++num_extensions_ > kExtensionsMax)
        return absl::DeadlineExceededError("timeout");
      left_ms = std::max(unused_ms, kShortestExtensionMs);
    }
    pollfd waiting{socket_, events, 0};
    const int timeout_ms =
        static_cast<int>(std::min<int64_t>(left_ms, std::numeric_limits<int>::max()));
    const int rc = poll(&waiting, 1, timeout_ms);
    if (rc > 0) return absl::OkStatus();
    if (rc < 0 && errno != EINTR) return Ended();
  }
}

int64_t ChatChild::CpuMs() const {
  clockid_t clock;
  timespec used;
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &used) != 0)
    return std::numeric_limits<int64_t>::max() / 2;
  return int64_t{used.tv_sec} * 1000 + used.tv_nsec / 1000000;
}

int ChatChild::Kill() {
  int wait_status = 0;
  if (pid_ >= 0) {
    // Where it has ended already, this changes nothing: its status is kept until waited for.
    kill(pid_, SIGKILL);
    while (waitpid(pid_, &wait_status, 0) < 0 && errno == EINTR) {
    }
    close(socket_);
  }
  pid_ = -1;
  socket_ = -1;
  return wait_status;
}

}  // namespace vericache
