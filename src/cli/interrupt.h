// Ctrl-C asks for a stop at the next token; a second one ends the process at once.
#pragma once

namespace vericache::cli {

// For what asks Interrupted() now and then. Until then Ctrl-C ends the process, as usual.
void InstallInterruptHandler();
bool Interrupted();
// Ready for the next Ctrl-C.
void ClearInterrupt();

// Makes a closed pipe an error of write() instead of the end of the process.
void IgnoreClosedPipes();

}  // namespace vericache::cli
