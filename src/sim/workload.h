// A scenario: machine, limits, requests, faults. MakeScenario draws one from a seed.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/scheduler.h"
#include "scheduler/step_plan.h"
#include "sim/acceptance_model.h"
#include "sim/hardware.h"

namespace vericache {

struct SimRequest {
  RequestInfo info;
  double arrival_s = 0;
  double cancel_s = -1;       // < 0: never
  int64_t answer_tokens = 0;  // the end token is the last of these; may be beyond max_tokens
  double draft_share = 1;     // real draft KV bytes over the promised bound, in (0, 1]
  AcceptanceModel acceptance;
  // Of a remote request, behind its prompt and each verification: seconds until the next question,
  // exponential with this mean, sometimes a hundred times as long; drafted tokens it has at most.
  double think_s = 0;
  double lull_chance = 0;
  int most_drafted = 0;
};

struct SimFaults {
  double retry_chance = 0;     // that a streamed pass finds its tier not delivering
  double fail_chance = 0;      // that a request ends with an error in a verification
  double slow_chance = 0;      // that the link is ten times slower for a step
  double short_chance = 0;     // that a transfer delivers half and has to read the rest again
  double gives_up_chance = 0;  // that a draft step adds no token
};

struct Scenario {
  uint64_t seed = 0;
  HardwareModel hardware;
  Limits limits;
  SchedulerOptions options;
  SimFaults faults;
  double draft_model_pass_s = 0.005;  // a small model's step
  int64_t prefix_cache_bytes = 0;     // what the prefix cache would like to hold
  std::vector<SimRequest> requests;   // in order of arrival
};

Scenario MakeScenario(uint64_t seed);

}  // namespace vericache
