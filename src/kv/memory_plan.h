// How one sequence uses a fixed budget of KV memory.
//
//   while prefilling   hot blocks | open blocks of a chunk | staging
//   while decoding     hot blocks | open blocks of a verification | staging | draft KV
// Staging holds two KV heads of a layer of what is spilled, so that the next one is read while one
// computes; where that does not fit, less, down to one. What is left keeps blocks hot: a byte that
// never leaves RAM is a byte less to read at each verification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/kv_view.h"

namespace vericache {

struct MemoryNeeds {
  KvShape shape;
  int64_t num_tokens = 0;    // at its longest: prompt and answer
  int64_t prefill_rows = 0;  // of a chunk, as wanted
  int64_t draft_rows = 0;    // most rows drafted a round
  size_t draft_bytes = 0;    // of the draft KV at its largest; 0: none
};

struct MemoryPlan {
  size_t budget = 0;
  size_t draft_bytes = 0;
  size_t staging_bytes = 0;  // whole slots; 0: everything stays in RAM
  int64_t num_blocks = 0;    // of the sequence
  int64_t hot_blocks = 0;    // whole blocks that stay in RAM
  int64_t open_blocks = 0;   // being written
  int64_t prefill_rows = 0;  // of a chunk, as fits; a multiple of 64 if it was cut
  size_t block_bytes = 0;

  bool spills() const { return staging_bytes > 0; }
  int64_t cold_blocks() const { return spills() ? num_blocks - hot_blocks - open_blocks : 0; }
  size_t decode_bytes() const {
    return draft_bytes + staging_bytes + block_bytes * (hot_blocks + open_blocks);
  }
  // One line for people: "64 MiB: draft KV 20, hot 30, ...".
  std::string ToString() const;
};

// ERRORS: kResourceExhausted: it cannot fit, with the numbers and the least budget that would do.
absl::StatusOr<MemoryPlan> PlanMemory(size_t budget, const MemoryNeeds& needs);

// The least budget under which PlanMemory succeeds.
size_t LeastBudget(const MemoryNeeds& needs);

// "1.5 GiB", "64.0 MiB", "512 B".
std::string BytesText(size_t bytes);

}  // namespace vericache
