#include "engine/draft_vocab.h"

#include <algorithm>

#include "base/types.h"

namespace vericache {
namespace {

// Calls run(begin, end) for each run of tiles that are all in, or with `in` false all out, in ids.
template <typename Run>
void ForEachRun(absl::Span<const uint64_t> tiles, int64_t vocab_size, bool in, Run run) {
  const int64_t num_tiles = CeilDiv(vocab_size, kOutTile);
  const auto is_in = [&](int64_t tile) { return (tiles[tile / 64] >> (tile % 64) & 1) != 0; };
  for (int64_t tile = 0; tile < num_tiles;) {
    const int64_t begin = tile;
    const bool side = is_in(tile);
    while (tile < num_tiles && is_in(tile) == side) ++tile;
    if (side == in) run(begin * kOutTile, std::min(vocab_size, tile * kOutTile));
  }
}

}  // namespace

void DraftVocab::Update(absl::Span<const TokenId> tokens, int64_t vocab_size,
                        const std::function<bool(TokenId)>& ends_generation) {
  if (tiles_.empty()) {
    const bool whole = vocab_size < 2 * kNumCommon;
    tiles_.assign(CeilDiv(CeilDiv(vocab_size, kOutTile), int64_t{64}), whole ? ~uint64_t{0} : 0);
    for (TokenId id = 0; id < vocab_size && !whole; ++id)
      if (id < kNumCommon || ends_generation(id)) Add(id);
  }
  for (; num_seen_ < tokens.size(); ++num_seen_) Add(tokens[num_seen_]);
}

void RangesOf(absl::Span<const uint64_t> tiles, int64_t vocab_size, std::vector<OutRange>* ranges) {
  ranges->clear();
  ForEachRun(tiles, vocab_size, true, [&](int64_t begin, int64_t end) {
    ranges->push_back({begin, end});
  });
}

void HideOthers(absl::Span<const uint64_t> tiles, int64_t vocab_size, float* logits) {
  constexpr float kHidden = -1e30f;
  ForEachRun(tiles, vocab_size, false,
             [&](int64_t begin, int64_t end) { std::fill(logits + begin, logits + end, kHidden); });
}

}  // namespace vericache
