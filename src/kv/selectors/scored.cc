// Selectors that rank keys by scores made elsewhere (engine/scorers.h): kvzip, expected, h2o.
//
// Scores cover the prompt; what came after they were made is kept whole.
#include <algorithm>

#include "kv/selectors/selector.h"

namespace vericache {
namespace {

// First position that is kept for being new: of the window, or not scored.
int64_t RecentFrom(const DraftSpec& spec, const SelectInput& input) {
  return std::clamp<int64_t>(input.num_tokens() - spec.window, 0, input.scores->num_scored);
}

// `chosen` between all positions before `begin` and all from `recent` on.
std::vector<int32_t> Between(int64_t begin, const std::vector<int32_t>& chosen, int64_t recent,
                             int64_t num_tokens) {
  std::vector<int32_t> kept;
  for (int64_t pos = 0; pos < begin; ++pos) kept.push_back(static_cast<int32_t>(pos));
  kept.insert(kept.end(), chosen.begin(), chosen.end());
  for (int64_t pos = recent; pos < num_tokens; ++pos) kept.push_back(static_cast<int32_t>(pos));
  return kept;
}

// The same number for each head: the `count` best of [begin, recent), and what Between() adds.
KeptSet BestOfEachHead(const KeyScores& scores, int64_t begin, int64_t recent, int64_t num_tokens,
                       int64_t count) {
  KeptSet kept;
  for (const std::vector<float>& of_head : scores.of_head) {
    std::vector<int32_t> best = TopPositions(
        absl::MakeConstSpan(of_head).subspan(begin, recent - begin), std::max<int64_t>(0, count));
    for (int32_t& pos : best) pos += static_cast<int32_t>(begin);
    kept.positions.push_back(Between(begin, best, recent, num_tokens));
  }
  return kept;
}

}  // namespace

// SOURCE: arXiv 2505.23416 (KVzip), section 3: one budget over all layers and heads.
KeptSet SelectKvzip(const DraftSpec& spec, const SelectInput& input) {
  const int64_t num_tokens = input.num_tokens(), recent = RecentFrom(spec, input);
  const int64_t sinks = std::min<int64_t>(spec.sinks, recent);
  const int64_t forced = input.num_lists() * (sinks + num_tokens - recent);
  const int64_t wanted =
      static_cast<int64_t>(spec.fraction * static_cast<double>(input.num_lists() * num_tokens));
  KeptSet kept;
  for (const std::vector<int32_t>& chosen :
       TopOverHeads(*input.scores, sinks, recent, wanted - forced))
    kept.positions.push_back(Between(sinks, chosen, recent, num_tokens));
  return kept;
}

KeptSet KvzipFloor(const DraftSpec& spec, const KeyScores& scores) {
  const int64_t pairs = static_cast<int64_t>(scores.of_head.size()) * scores.num_scored;
  KeptSet kept;
  kept.positions = TopOverHeads(scores, 0, scores.num_scored,
                                static_cast<int64_t>(spec.floor * static_cast<double>(pairs)));
  return kept;
}

// SOURCE: arXiv 2510.00636 (Expected Attention).
KeptSet SelectExpected(const DraftSpec& spec, const SelectInput& input) {
  const int64_t num_tokens = input.num_tokens(), recent = RecentFrom(spec, input);
  const int64_t sinks = std::min<int64_t>(spec.sinks, recent);
  const int64_t count = KeptCount(spec, num_tokens, 0) - sinks - (num_tokens - recent);
  return BestOfEachHead(*input.scores, sinks, recent, num_tokens, count);
}

// Half of the budget for heavy hitters, half for the newest tokens.
// SOURCE: arXiv 2306.14048 (H2O), algorithm 1; both halves fixed at the end of the prompt.
KeptSet SelectH2o(const DraftSpec& spec, const SelectInput& input) {
  const int64_t num_tokens = input.num_tokens();
  const int64_t half = static_cast<int64_t>(spec.fraction / 2 * static_cast<double>(num_tokens));
  const int64_t recent =
      std::clamp<int64_t>(num_tokens - std::max<int64_t>(1, half), 0, input.scores->num_scored);
  return BestOfEachHead(*input.scores, 0, recent, num_tokens, half);
}

}  // namespace vericache
