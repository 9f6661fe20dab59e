// Runs a scenario to its end on a simulated clock and checks the scheduler's promises after each
// step: budget and staging never exceeded, order kept, no work for the ended, progress, each
// request ended exactly once with the right number of tokens, refusals only of the impossible.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "sim/sim_executor.h"
#include "sim/workload.h"

namespace vericache {

struct SimOptions {
  bool verbose = false;        // print each step to stdout
  int64_t max_steps = 400000;  // more is a livelock
};

// ERRORS: kInternal: an invariant is broken; the message has step, time and what.
absl::StatusOr<SimStats> RunScenario(const Scenario& scenario, const SimOptions& options);

}  // namespace vericache
