// Traces of `vericache run --trace`, gone through again by `vericache bench` at any depth.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "vericache/benchmark.h"

namespace vericache::cli {

struct ReplayTrace {
  std::string name;  // the file's, without folder and ending: in names of metrics
  std::vector<TraceRound> rounds;

  int64_t num_tokens() const;  // emitted
  int64_t most_work() const;   // positions beyond the depth, drafted ones included
};

// One JSON line a round; "drafted" and "accepted" are read. ERRORS: kInvalidArgument: what is wrong
// in which line.
absl::StatusOr<std::vector<TraceRound>> ParseTrace(std::string_view text);

// "A.jsonl,B.jsonl". ERRORS: those of the files; two of one name.
absl::StatusOr<std::vector<ReplayTrace>> ReadTraces(const std::string& list);

}  // namespace vericache::cli
