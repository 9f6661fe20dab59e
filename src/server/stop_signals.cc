#include "server/stop_signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

namespace vericache::server {
namespace {

volatile sig_atomic_t g_num_signals = 0;
volatile sig_atomic_t g_expected = 0;
int g_pipe[2] = {-1, -1};

void OnStop(int signal_number) {
  const int error = errno;
  if (g_expected == 0) _exit(0);
  g_num_signals = g_num_signals + 1;
  if (g_num_signals > 1) _exit(128 + signal_number);
  const ssize_t written = write(g_pipe[1], "x", 1);
  static_cast<void>(written);
  errno = error;
}

void OnAlarm(int) {
  constexpr char kLine[] = "vericache: note: stopped before all work had ended\n";
  const ssize_t written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  static_cast<void>(written);
  _exit(0);
}

void Handle(int signal_number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(signal_number, &action, nullptr);
}

}  // namespace

void InstallStopSignals() {
  if (g_pipe[0] < 0 && pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
  Handle(SIGTERM, OnStop);
  Handle(SIGINT, OnStop);
  Handle(SIGALRM, OnAlarm);
  signal(SIGPIPE, SIG_IGN);
}

void ExpectStop() { g_expected = 1; }

void WaitForStop() {
  pollfd wait = {g_pipe[0], POLLIN, 0};
  while (g_num_signals == 0) poll(&wait, 1, -1);
}

void ExitWithin(double seconds) {
  itimerval timer = {};
  timer.it_value.tv_sec = static_cast<time_t>(seconds);
  timer.it_value.tv_usec =
      1 + static_cast<suseconds_t>((seconds - static_cast<double>(timer.it_value.tv_sec)) * 999998);
  setitimer(ITIMER_REAL, &timer, nullptr);
}

}  // namespace vericache::server
