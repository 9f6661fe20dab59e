// SnapKV: the last W exact queries vote for the keys they attend to. snapkv asks them once, at the
// end of the prompt, verify after every round.
//
// Per KV head: causal softmax of the W queries of every head of the group over all keys, summed
// over queries and heads, max-pooled over neighbouring positions. The window itself is always kept
// and takes no part in the pool; the best of the rest fill up the count (ties: the lower position).
// With a floor, KVzip's choice stands first in the count and the votes fill up what it leaves.
// SOURCE: arXiv 2404.14469, with W = 32 and a max-pool of 7 as measured in acceptance.md.
#include <algorithm>
#include <iterator>
#include <limits>

#include "kv/selectors/query_votes.h"
#include "kv/selectors/selector.h"

namespace vericache {
namespace {

// y[i] = the largest of x[i - width / 2] to x[i + width / 2], by maxima over 1, 2, 4, ... values.
std::vector<float> MaxPool(const std::vector<float>& x, int width) {
  const int64_t n = std::ssize(x), half = width / 2, window = 2 * half + 1;
  // A NaN row is refused elsewhere; sorting needs an order. What is beyond the ends counts as 0.
  std::vector<float> most(n + 2 * half, 0.0f);
  for (int64_t i = 0; i < n; ++i) most[half + i] = x[i] >= 0 ? x[i] : 0;
  int64_t covered = 1;  // most[i] is that of `covered` values from i on
  for (; 2 * covered <= window; covered *= 2)
    for (int64_t i = 0; i + covered < std::ssize(most); ++i)
      most[i] = std::max(most[i], most[i + covered]);
  std::vector<float> y(n);
  for (int64_t i = 0; i < n; ++i) y[i] = std::max(most[i], most[i + window - covered]);
  return y;
}

std::vector<float> VotesFor(const SelectInput& input, int64_t list) {
  if (!input.votes.empty()) {
    const absl::Span<const float> votes = input.votes[list - input.first_list()];
    return {votes.begin(), votes.end()};
  }
  return VotesOf(input, static_cast<int>(list / input.num_kv_heads()),
                 static_cast<int>(list % input.num_kv_heads()), 0, input.queries->num_rows);
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
      score = VotesFor(input, task);
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
