// Reads by io_uring: one thread keeps `depth` reads in flight. Needs Linux 5.11.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "storage/read_queue.h"

namespace vericache {

// `options` are checked by MakeReadQueue.
// ERRORS: kUnavailable: the system forbids io_uring, lacks it, or has no thread or memory for it.
absl::StatusOr<std::unique_ptr<ReadQueue>> MakeUringQueue(const ReadQueueOptions& options);

}  // namespace vericache
