// Full KV of pseudo-random numbers, for benchmarks and warm-up (internal to src/api).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "api/engine_impl.h"
#include "base/thread_pool.h"
#include "kv/full_kv.h"

namespace vericache {

// Fills an empty `full` with `num_tokens` positions of values about normal with variance 1, the
// same for the same seed on every machine and with any number of threads.
// ERRORS: kResourceExhausted.
absl::Status FillSynthetic(int64_t num_tokens, uint64_t seed, ThreadPool* pool, FullKv* full);

// Greedy, without a draft KV or an end of its own: the first `depth` positions of `full`, and
// `tokens` as its prompt. max_tokens is the caller's. REQUIRES: depth <= full.num_tokens(),
// depth < tokens.size().
std::unique_ptr<Sequence> SequenceOverSynthetic(const EngineAccess::Impl& impl, const FullKv& full,
                                                int64_t depth, absl::Span<const TokenId> tokens);

}  // namespace vericache
