#include "kv/selectors/selector.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>

namespace vericache {
namespace {

std::vector<int32_t> AllPositions(int64_t num_tokens) {
  std::vector<int32_t> positions(num_tokens);
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

KeptSet Choose(const DraftSpec& spec, const SelectInput& input) {
  switch (spec.selector) {
    case SelectorKind::kSink:
      return SelectSink(spec, input);
    case SelectorKind::kVerify:  // snapkv's score, by other queries and more often
      if (spec.score == VerifyScore::kVegas) return SelectVegas(spec, input);
      return SelectSnapKv(spec, input);
    case SelectorKind::kSnapKv:
      return SelectSnapKv(spec, input);
    case SelectorKind::kKvzip:
      return SelectKvzip(spec, input);
    case SelectorKind::kExpected:
      return SelectExpected(spec, input);
    case SelectorKind::kH2o:
      return SelectH2o(spec, input);
    case SelectorKind::kKept:
      return SelectKept(input);
    case SelectorKind::kQuest:  // chooses when it reads
    case SelectorKind::kAll:
      break;
  }
  KeptSet all;
  all.positions.assign(input.num_lists(), AllPositions(input.num_tokens()));
  return all;
}

}  // namespace

int QueryRowsWanted(const DraftSpec& spec) { return spec.uses_queries() ? spec.window : 0; }

int64_t QueryRowsOfRound(const DraftSpec& spec, int64_t num_emitted) {
  return spec.score == VerifyScore::kVegas ? num_emitted : spec.window;
}

DraftKv NewDraftKv(const KvShape& shape, const DraftSpec& spec, const KernelTable* kernels) {
  DraftKv draft(shape, spec.CodecsOf(shape.num_layers), kernels);
  const QueryTimeReads reads = spec.reads();
  draft.SetQueryTimeReads(reads.fraction, reads.whole_layers);
  return draft;
}

int64_t KeptCount(const DraftSpec& spec, int64_t num_tokens, int64_t floor) {
  const int64_t n = static_cast<int64_t>(spec.fraction * static_cast<double>(num_tokens));
  return std::min(num_tokens, std::max(n, floor));
}

int64_t AlwaysKept(const DraftSpec& spec) {
  switch (spec.selector) {
    case SelectorKind::kSink:
      return spec.sinks + 1;
    case SelectorKind::kSnapKv:
      return spec.window;
    case SelectorKind::kVerify:
      return spec.score == VerifyScore::kVegas ? 1 : spec.window;
    case SelectorKind::kKvzip:
    case SelectorKind::kExpected:
      return spec.sinks + spec.window;
    default:
      return 1;
  }
}

KeptSet SelectPositions(const DraftSpec& spec, const SelectInput& input) {
  KeptSet kept = Choose(spec, input);
  for (int layer = 0; layer < input.num_layers(); ++layer) {
    if (!spec.keep_layers.Has(layer)) continue;
    for (int h = 0; h < input.num_kv_heads(); ++h)
      kept.positions[layer * input.num_kv_heads() + h] = AllPositions(input.num_tokens());
  }
  return kept;
}

std::vector<int32_t> TopPositions(absl::Span<const float> scores, int64_t count) {
  count = std::min(count, std::ssize(scores));
  std::vector<int32_t> top;
  if (count <= 0) return top;
  const auto value = [&](int64_t pos) { return std::isnan(scores[pos]) ? 0.0f : scores[pos]; };
  std::vector<float> ranked(scores.size());
  for (int64_t pos = 0; pos < std::ssize(scores); ++pos) ranked[pos] = value(pos);
  std::nth_element(ranked.begin(), ranked.begin() + (count - 1), ranked.end(), std::greater<>());
  const float least = ranked[count - 1];
  // As many of those equal to the least as the others leave room for, the lower positions.
  int64_t num_equal = count - std::count_if(ranked.begin(), ranked.begin() + count,
                                            [&](float score) { return score > least; });
  top.reserve(count);
  for (int64_t pos = 0; pos < std::ssize(scores); ++pos) {
    const float score = value(pos);
    if (score > least || (score == least && num_equal-- > 0))
      top.push_back(static_cast<int32_t>(pos));
  }
  return top;
}

std::vector<std::vector<int32_t>> TopOverHeads(const KeyScores& scores, int64_t begin, int64_t end,
                                               int64_t count) {
  const int32_t num_lists = static_cast<int32_t>(scores.of_head.size());
  struct Pair {
    float score;
    int32_t list, pos;
  };
  std::vector<Pair> pairs;
  pairs.reserve(num_lists * std::max<int64_t>(0, end - begin));
  for (int32_t list = 0; list < num_lists; ++list)
    for (int64_t pos = begin; pos < end; ++pos) {
      const float score = scores.of_head[list][pos];
      pairs.push_back({std::isnan(score) ? 0 : score, list, static_cast<int32_t>(pos)});
    }
  count = std::clamp<int64_t>(count, 0, static_cast<int64_t>(pairs.size()));
  std::nth_element(pairs.begin(), pairs.begin() + count, pairs.end(),
                   [](const Pair& a, const Pair& b) {
                     if (a.score != b.score) return a.score > b.score;
                     return a.list != b.list ? a.list < b.list : a.pos < b.pos;
                   });
  std::vector<std::vector<int32_t>> kept(num_lists);
  for (int64_t i = 0; i < count; ++i) kept[pairs[i].list].push_back(pairs[i].pos);
  for (std::vector<int32_t>& positions : kept) std::sort(positions.begin(), positions.end());
  return kept;
}

}  // namespace vericache
