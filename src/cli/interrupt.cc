#include "cli/interrupt.h"

#include <signal.h>

namespace vericache::cli {
namespace {

volatile sig_atomic_t g_interrupted = 0;

void OnInterrupt(int) {
  g_interrupted = 1;
  // From here on Ctrl-C has its usual meaning, should the stop take too long.
  signal(SIGINT, SIG_DFL);
}

void Arm() {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a read of the keyboard must return
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace

void InstallInterruptHandler() { Arm(); }

bool Interrupted() { return g_interrupted != 0; }

void ClearInterrupt() {
  g_interrupted = 0;
  Arm();
}

void IgnoreClosedPipes() { signal(SIGPIPE, SIG_IGN); }

}  // namespace vericache::cli
