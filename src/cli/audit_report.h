// Replaying a receipt and telling the verdict; for `audit` and `run --audit`.
#pragma once

#include <cstdio>

#include "absl/status/status.h"
#include "cli/progress.h"
#include "vericache/engine.h"

namespace vericache::cli {

// Prints the verdict to `out`. ERRORS: kDataLoss where the answer is another one.
absl::Status AuditAndReport(Engine* engine, const Receipt& receipt, AuditMode mode,
                            ProgressWish progress, std::FILE* out);

}  // namespace vericache::cli
