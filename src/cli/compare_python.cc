// ParsePython: a child process that parses and runs nothing.
//
// The code comes from a model, so it is treated as hostile: the interpreter starts isolated (-I)
// and without site packages (-S), gets the code on standard input, may use a bounded amount of
// memory and time, and only its exit status is believed.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string_view>

#include "cli/compare_text.h"

namespace vericache::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Exit statuses of the child: 0 parses, kSyntaxError does not; all else is no verdict. ValueError
// is a NUL byte, RecursionError and MemoryError are ast.parse's answer to absurd nesting.
constexpr int kSyntaxError = 10;
constexpr char kProgram[] =
    "import ast, sys\n"
    "try:\n"
    "    ast.parse(sys.stdin.buffer.read())\n"
    "except (SyntaxError, ValueError, RecursionError, MemoryError):\n"
    "    sys.exit(10)\n";
constexpr rlim_t kAddressSpaceBytes = rlim_t{1} << 30;

// Only async-signal-safe calls: the parent has threads.
[[noreturn]] void RunChild(const char* interpreter, int input) {
  const int null = open("/dev/null", O_WRONLY);
  dup2(input, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
  dup2(null, STDERR_FILENO);
  const rlimit memory{kAddressSpaceBytes, kAddressSpaceBytes};
  setrlimit(RLIMIT_AS, &memory);
  const rlimit core{0, 0};
  setrlimit(RLIMIT_CORE, &core);
  signal(SIGPIPE, SIG_DFL);  // an ignored signal would stay ignored in the interpreter
  const char* argv[] = {interpreter, "-I", "-S", "-c", kProgram, nullptr};
  execv(interpreter, const_cast<char* const*>(argv));
  _exit(127);
}

int MillisecondsLeft(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return left < 0 ? 0 : static_cast<int>(left);
}

// Writes all of `code` unless the child stops reading or the time is up. `fd` does not block.
void Feed(int fd, std::string_view code, Clock::time_point deadline) {
  while (!code.empty()) {
    pollfd ready{fd, POLLOUT, 0};
    const int num_ready = poll(&ready, 1, MillisecondsLeft(deadline));
    if (num_ready < 0 && errno == EINTR) continue;
    if (num_ready <= 0) return;
    const ssize_t written = write(fd, code.data(), code.size());
    if (written < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (written < 0) return;
    code.remove_prefix(static_cast<size_t>(written));
  }
}

// The child's wait status, or -1 after killing it at the deadline.
int Await(pid_t child, Clock::time_point deadline) {
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if (ended < 0 && errno != EINTR) return -1;
    if (MillisecondsLeft(deadline) == 0) break;
    usleep(2000);  // a parse takes ~20 ms; there is no waitpid with a timeout
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return -1;
}

}  // namespace

ParseState ParsePython(std::string_view code, const char* interpreter, int timeout_ms) {
  if (access(interpreter, X_OK) != 0) return ParseState::kUnavailable;
  int fds[2];
  if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return ParseState::kUnavailable;
  // The child's end blocks: Python would take "no data yet" for an error.
  fcntl(fds[0], F_SETFL, 0);
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);

  // A child that ends early must not end us.
  struct sigaction ignore = {}, before = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &before);
  const pid_t child = fork();
  if (child == 0) RunChild(interpreter, fds[0]);
  close(fds[0]);
  if (child > 0) Feed(fds[1], code, deadline);
  close(fds[1]);
  const int status = child > 0 ? Await(child, deadline) : -1;
  sigaction(SIGPIPE, &before, nullptr);

  if (status < 0 || !WIFEXITED(status)) return ParseState::kUnavailable;
  if (WEXITSTATUS(status) == 0) return ParseState::kParses;
  return WEXITSTATUS(status) == kSyntaxError ? ParseState::kFails : ParseState::kUnavailable;
}

}  // namespace vericache::cli
