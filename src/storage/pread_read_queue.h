// Reads by plain system calls in a few threads: for systems that forbid io_uring.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "storage/read_queue.h"

namespace vericache {

// `options` are checked by MakeReadQueue.
// ERRORS: kUnavailable: no thread could be started.
absl::StatusOr<std::unique_ptr<ReadQueue>> MakePreadQueue(const ReadQueueOptions& options);

}  // namespace vericache
