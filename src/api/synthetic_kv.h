// Full KV of pseudo-random numbers, for benchmarks (internal to src/api).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/thread_pool.h"
#include "kv/full_kv.h"

namespace vericache {

// Fills an empty `full` with `num_tokens` positions of values about normal with variance 1, the
// same for the same seed on every machine and with any number of threads.
// ERRORS: kResourceExhausted.
absl::Status FillSynthetic(int64_t num_tokens, uint64_t seed, ThreadPool* pool, FullKv* full);

}  // namespace vericache
