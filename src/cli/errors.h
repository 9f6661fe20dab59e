// How the command speaks of failure: one line on stderr, and an exit status.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace vericache::cli {

enum ExitStatus {
  kExitOk = 0,
  kExitFailure = 1,
  kExitUsage = 2,
  kExitInterrupted = 130,  // 128 + SIGINT, as shells report it
  kExitTerminated = 143,   // 128 + SIGTERM
};

// An error the user made on the command line: exit status 2.
absl::Status UsageError(std::string_view message);

// Prints "vericache: MESSAGE" to stderr, on one line and without control characters, whatever the
// message holds; gives the exit status. Prints nothing for OK.
ExitStatus ReportError(const absl::Status& status);

// A line on stderr that is no error: "vericache: note: ...".
void Notice(std::string_view message);

// `text` on one line, control characters replaced: what comes from a file may not steer a terminal.
std::string OneLine(std::string_view text);

}  // namespace vericache::cli
