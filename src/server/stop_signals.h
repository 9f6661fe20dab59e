// SIGTERM and SIGINT: the first asks for a stop, the second ends the process.
#pragma once

namespace vericache::server {

// From now on a signal ends the process with status 0, until ExpectStop().
void InstallStopSignals();
// From now on the first signal makes WaitForStop() return, and a second one exits at once.
void ExpectStop();
// Returns once a signal has come.
void WaitForStop();
// Ends the process with status 0 in `seconds`, whatever hangs.
void ExitWithin(double seconds);

}  // namespace vericache::server
