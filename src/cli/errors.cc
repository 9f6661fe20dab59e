#include "cli/errors.h"

#include <fmt/format.h>
#include <signal.h>

#include <cstdio>

#include "absl/strings/cord.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace vericache::cli {
namespace {

// Marks a Status as the user's mistake on the command line.
constexpr char kUsagePayload[] = "vericache/usage";

}  // namespace

absl::Status UsageError(std::string_view message) {
  absl::Status status = absl::InvalidArgumentError(std::string(message));
  status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

std::string OneLine(std::string_view text) {
  std::string line(text);
  for (char& c : line)
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  return SafeForTerminal(line);
}

ExitStatus ReportError(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  fmt::print(stderr, "vericache: {}\n", OneLine(std::string(status.message())));
  if (status.code() == absl::StatusCode::kCancelled)
    return StopSignal() == SIGTERM ? kExitTerminated : kExitInterrupted;
  return status.GetPayload(kUsagePayload).has_value() ? kExitUsage : kExitFailure;
}

void Notice(std::string_view message) {
  fmt::print(stderr, "vericache: note: {}\n", OneLine(message));
}

}  // namespace vericache::cli
