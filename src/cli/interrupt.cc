#include "cli/interrupt.h"

#include <signal.h>

namespace vericache::cli {
namespace {

volatile sig_atomic_t g_interrupted = 0;

volatile sig_atomic_t g_stops_on_term = 0;

void OnInterrupt(int number) {
  g_interrupted = number;
  // From here on they have their usual meaning, should the stop take too long.
  signal(SIGINT, SIG_DFL);
  if (g_stops_on_term != 0) signal(SIGTERM, SIG_DFL);
}

void Arm(int number) {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a read of the keyboard must return
  sigaction(number, &action, nullptr);
}

}  // namespace

void InstallInterruptHandler() { Arm(SIGINT); }

void InstallStopHandler() {
  g_stops_on_term = 1;
  Arm(SIGINT);
  Arm(SIGTERM);
}

bool Interrupted() { return g_interrupted != 0; }

int StopSignal() { return g_interrupted; }

void ClearInterrupt() {
  g_interrupted = 0;
  Arm(SIGINT);
}

void IgnoreClosedPipes() { signal(SIGPIPE, SIG_IGN); }

}  // namespace vericache::cli
