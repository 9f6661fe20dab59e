#include "sim/sim_link.h"

#include <algorithm>

namespace vericache {

void SimLink::Start(RequestId id, double staging_bytes) {
  queue_.push_back({id, staging_bytes, 0});
}

double SimLink::Take(RequestId id) {
  const auto found =
      std::find_if(queue_.begin(), queue_.end(), [id](const Prefetch& p) { return p.id == id; });
  if (found == queue_.end()) return 0;
  const double staged = found->staged_bytes;
  queue_.erase(found);
  return staged;
}

double SimLink::Run(double seconds, double bytes_per_s) {
  double busy_s = 0;
  for (Prefetch& prefetch : queue_) {
    const double missing_s =
        std::max(0.0, prefetch.staging_bytes - prefetch.staged_bytes) / bytes_per_s;
    const double step_s = std::min(seconds - busy_s, missing_s);
    prefetch.staged_bytes += step_s * bytes_per_s;
    busy_s += step_s;
  }
  return busy_s;
}

double SimLink::StagingHeld() const {
  double sum = 0;
  for (const Prefetch& prefetch : queue_) sum += prefetch.staging_bytes;
  return sum;
}

bool SimLink::Holds(RequestId id) const {
  return std::any_of(queue_.begin(), queue_.end(), [id](const Prefetch& p) { return p.id == id; });
}

}  // namespace vericache
