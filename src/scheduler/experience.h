// What schedulers have learned of a model on a machine: what passes take, how often drafts agree.
// An engine keeps one for all its schedulers, so that the second request need not learn again what
// the first one paid for.
// THREADS: none; used by one scheduler at a time.
#pragma once

#include "scheduler/acceptance_estimate.h"
#include "scheduler/cost_model.h"

namespace vericache {

struct Experience {
  Experience(const PassGuess& guess, double link_bytes_per_s) : costs(guess, link_bytes_per_s) {}

  CostModel costs;
  SharedAcceptance acceptance;
};

}  // namespace vericache
