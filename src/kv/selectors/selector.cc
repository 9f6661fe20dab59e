#include "kv/selectors/selector.h"

#include <algorithm>
#include <numeric>

namespace vericache {

int QueryRowsWanted(const DraftSpec& spec) { return spec.uses_queries() ? spec.window : 0; }

int64_t KeptCount(const DraftSpec& spec, int64_t num_tokens, int64_t floor) {
  const int64_t n = static_cast<int64_t>(spec.fraction * static_cast<double>(num_tokens));
  return std::min(num_tokens, std::max(n, floor));
}

KeptSet SelectPositions(const DraftSpec& spec, const SelectInput& input) {
  switch (spec.selector) {
    case SelectorKind::kSink:
      return SelectSink(spec, input);
    case SelectorKind::kSnapKv:
    case SelectorKind::kVerify:  // the same score, by other queries and more often
      return SelectSnapKv(spec, input);
    case SelectorKind::kAll:
      break;
  }
  KeptSet all;
  std::vector<int32_t> positions(input.full->num_tokens());
  std::iota(positions.begin(), positions.end(), 0);
  all.positions.assign(input.full->shape().num_layers * input.full->shape().num_kv_heads,
                       positions);
  return all;
}

}  // namespace vericache
