// The slow tier's link: one transfer at a time, in the order they were started.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/step_plan.h"

namespace vericache {

// A transfer ahead of a verification: stops when `staging_bytes` are there, until the pass uses
// them up.
struct Prefetch {
  RequestId id = 0;
  double staging_bytes = 0;
  double staged_bytes = 0;
};

class SimLink {
 public:
  void Start(RequestId id, double staging_bytes);
  // Ends the transfer of `id` and returns what had been staged.
  double Take(RequestId id);
  void Drop(RequestId id) { Take(id); }

  // Lets the link work on prefetches for `seconds`; returns the seconds it was busy.
  double Run(double seconds, double bytes_per_s);

  double StagingHeld() const;
  bool Holds(RequestId id) const;

 private:
  std::vector<Prefetch> queue_;
};

}  // namespace vericache
