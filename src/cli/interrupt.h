// Ctrl-C asks for a stop at the next token; a second one ends the process at once. SIGTERM does the
// same where it is asked for.
#pragma once

namespace vericache::cli {

// For what asks Interrupted() now and then. Until then Ctrl-C ends the process, as usual.
void InstallInterruptHandler();
// The same for SIGTERM as well, for commands that work to an end: what is finished is kept.
void InstallStopHandler();
bool Interrupted();
// The signal that asked for the stop; 0: none.
int StopSignal();
// Ready for the next Ctrl-C.
void ClearInterrupt();

// Makes a closed pipe an error of write() instead of the end of the process.
void IgnoreClosedPipes();

}  // namespace vericache::cli
