// Vegas: the first and the last query of a verification say what a layer's next drafts attend to.
//
// Per layer: their causal softmax over all keys, mean over all heads and both rows; the best keep
// their place in every head of the layer. Two query rows are cheap where `verify` asks 32.
// SOURCE: verification-guided sparse attention (compressors.md, "Vegas / PillarAttn").
#include <algorithm>
#include <utility>

#include "kv/selectors/query_votes.h"
#include "kv/selectors/selector.h"

namespace vericache {

namespace {

// The `num_kept` best, the newest among them in any case.
std::vector<int32_t> BestAndNewest(std::vector<float> votes, int64_t num_kept) {
  const int32_t newest = static_cast<int32_t>(votes.size()) - 1;
  votes.pop_back();
  std::vector<int32_t> positions = TopPositions(votes, num_kept - 1);
  positions.push_back(newest);
  return positions;
}

}  // namespace

// Where K/V come in by heads (spilled), each KV head has only its own votes to go by.
KeptSet SelectVegas(const DraftSpec& spec, const SelectInput& input) {
  const int64_t num_tokens = input.num_tokens();
  const int64_t num_kept = KeptCount(spec, num_tokens, 1);
  const int num_heads = input.num_kv_heads();
  KeptSet kept;
  kept.positions.resize(input.num_lists());
  if (!input.votes.empty()) {
    for (int list = input.first_list(); list < input.end_list(); ++list) {
      const absl::Span<const float> votes = input.votes[list - input.first_list()];
      kept.positions[list] = BestAndNewest({votes.begin(), votes.end()}, num_kept);
    }
    return kept;
  }
  const int64_t num_rows = input.queries->num_rows;
  input.pool->ParallelFor(input.layers->end() - input.layers->first, [&](int64_t i, int) {
    const int layer = input.layers->first + static_cast<int>(i);
    const int first = std::max(input.first_list(), layer * num_heads);
    const int end = std::min(input.end_list(), (layer + 1) * num_heads);
    std::vector<float> votes(num_tokens, 0.0f);
    const auto add = [&](int kv_head, int64_t row) {
      const std::vector<float> more = VotesOf(input, layer, kv_head, row, row + 1);
      for (int64_t j = 0; j < num_tokens; ++j) votes[j] += more[j];
    };
    for (int list = first; list < end && num_rows > 0; ++list) {
      add(list % num_heads, 0);
      if (num_rows > 1) add(list % num_heads, num_rows - 1);
    }
    const std::vector<int32_t> positions = BestAndNewest(std::move(votes), num_kept);
    for (int list = first; list < end; ++list) kept.positions[list] = positions;
  });
  return kept;
}

}  // namespace vericache
