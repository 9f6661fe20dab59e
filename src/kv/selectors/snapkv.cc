// SnapKV: the last W exact queries vote for the keys they attend to. snapkv asks them once, at the
// end of the prompt, verify after every round.
//
// Per KV head: causal softmax of the W queries of every head of the group over all keys, summed
// over queries and heads, max-pooled over neighbouring positions. The window itself is always kept
// and takes no part in the pool; the best of the rest fill up the count (ties: the lower position).
// With a floor, KVzip's choice stands first in the count and the votes fill up what it leaves.
// SOURCE: arXiv 2404.14469, with W = 32 and a max-pool of 7 as measured in acceptance.md.
#include <algorithm>
#include <limits>

#include "kv/selectors/query_votes.h"
#include "kv/selectors/selector.h"

namespace vericache {
namespace {

std::vector<float> MaxPool(const std::vector<float>& x, int width) {
  const int64_t n = x.size(), half = width / 2;
  std::vector<float> y(n);
  for (int64_t i = 0; i < n; ++i) {
    y[i] = *std::max_element(x.begin() + std::max<int64_t>(0, i - half),
                             x.begin() + std::min<int64_t>(n, i + half + 1));
    if (!(y[i] >= 0)) y[i] = 0;  // a NaN row is refused elsewhere; sorting needs an order
  }
  return y;
}

}  // namespace

KeptSet SelectSnapKv(const DraftSpec& spec, const SelectInput& input) {
  const int64_t num_tokens = input.num_tokens();
  const int64_t window = std::min<int64_t>(spec.window, num_tokens);
  const int64_t num_kept = KeptCount(spec, num_tokens, window);
  const int64_t num_chosen = num_kept - window;
  // The floor comes out of the same budget. KVzip's choice is uneven over heads: what it leaves is
  // shared out evenly.
  const int64_t floor_mean = static_cast<int64_t>(spec.floor * static_cast<double>(num_tokens));
  const int64_t for_votes = std::max<int64_t>(0, num_chosen - floor_mean);
  KeptSet kept;
  kept.positions.resize(input.num_lists());
  input.pool->ParallelFor(input.end_list() - input.first_list(), [&](int64_t i, int) {
    const int64_t task = input.first_list() + i;
    std::vector<float> score(num_tokens - window, 0.0f);
    if (num_kept < num_tokens) {
      score = VotesOf(input, static_cast<int>(task / input.num_kv_heads()),
                      static_cast<int>(task % input.num_kv_heads()), 0, input.queries->num_rows);
      score.resize(num_tokens - window);  // before the pool, as in the paper's code
      score = MaxPool(score, spec.pool);
    }
    int64_t num_floor = 0;
    if (spec.floor > 0) {
      for (int32_t pos : input.floor->positions[task]) {
        if (pos >= num_tokens - window) break;
        score[pos] = std::numeric_limits<float>::infinity();
        ++num_floor;
      }
    }
    kept.positions[task] = TopPositions(score, num_floor + for_votes);
    for (int64_t pos = num_tokens - window; pos < num_tokens; ++pos)
      kept.positions[task].push_back(static_cast<int32_t>(pos));
  });
  return kept;
}

}  // namespace vericache
