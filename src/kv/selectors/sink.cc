// Sinks and recent window: the first positions, which softmax uses as a resting place, and the
// newest ones. SOURCE: arXiv 2309.17453 (StreamingLLM), section 3.2; original positions are kept.
#include <algorithm>

#include "kv/selectors/selector.h"

namespace vericache {

KeptSet SelectSink(const DraftSpec& spec, const SelectInput& input) {
  const int64_t num_tokens = input.num_tokens();
  const int64_t n = KeptCount(spec, num_tokens, spec.sinks + 1);
  const int64_t sinks = std::min<int64_t>(spec.sinks, n - 1);
  std::vector<int32_t> positions;
  positions.reserve(n);
  for (int64_t pos = 0; pos < sinks; ++pos) positions.push_back(static_cast<int32_t>(pos));
  for (int64_t pos = num_tokens - (n - sinks); pos < num_tokens; ++pos)
    positions.push_back(static_cast<int32_t>(pos));
  KeptSet kept;
  kept.positions.assign(input.num_lists(), positions);
  return kept;
}

}  // namespace vericache
