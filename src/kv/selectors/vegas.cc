// Vegas: the first and the last query of a verification say what a layer's next drafts attend to.
//
// Per layer: their causal softmax over all keys, mean over all heads and both rows; the best keep
// their place in every head of the layer. Two query rows are cheap where `verify` asks 32.
// SOURCE: verification-guided sparse attention (compressors.md, "Vegas / PillarAttn").
#include <algorithm>

#include "kv/selectors/query_votes.h"
#include "kv/selectors/selector.h"

namespace vericache {

KeptSet SelectVegas(const DraftSpec& spec, const SelectInput& input) {
  const int64_t num_tokens = input.num_tokens(), num_rows = input.queries->num_rows;
  const int64_t num_kept = KeptCount(spec, num_tokens, 1);
  KeptSet kept;
  kept.positions.resize(input.num_lists());
  input.pool->ParallelFor(input.layers->end() - input.layers->first, [&](int64_t i, int) {
    const int64_t layer = input.layers->first + i;
    std::vector<float> votes(num_tokens, 0.0f);
    const auto add = [&](int kv_head, int64_t row) {
      const std::vector<float> more =
          VotesOf(input, static_cast<int>(layer), kv_head, row, row + 1);
      for (int64_t j = 0; j < num_tokens; ++j) votes[j] += more[j];
    };
    for (int h = 0; h < input.num_kv_heads() && num_rows > 0; ++h) {
      add(h, 0);
      if (num_rows > 1) add(h, num_rows - 1);
    }
    votes.pop_back();  // the newest is kept in any case
    std::vector<int32_t> positions = TopPositions(votes, num_kept - 1);
    positions.push_back(static_cast<int32_t>(num_tokens - 1));
    for (int h = 0; h < input.num_kv_heads(); ++h)
      kept.positions[layer * input.num_kv_heads() + h] = positions;
  });
  return kept;
}

}  // namespace vericache
