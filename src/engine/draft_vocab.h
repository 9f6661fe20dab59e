// Which rows of the output matrix a drafter multiplies: those of tokens that are likely to come.
//
// A small model's output matrix is a third of its weights, and a drafted step reads them all for
// one token. Nearly every token of an answer is either a common one, which byte-pair vocabularies
// number first, or occurs in the text before it. The drafter looks at those alone; a token it
// cannot think of costs one wrong draft and is known from then on. The verifier always looks at
// all. SOURCE: the idea of arXiv 2502.14856 (FR-Spec), with the text itself as the second source.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "base/types.h"
#include "model/forward.h"

namespace vericache {

class DraftVocab {
 public:
  // Ids below this one are common.
  static constexpr TokenId kNumCommon = 16384;

  // Takes in what `tokens` has beyond the last call's; tokens that end an answer are in from the
  // start. A vocabulary that is hardly larger than the common part is taken whole.
  // REQUIRES: `tokens` begins as it did in the last call.
  void Update(absl::Span<const TokenId> tokens, int64_t vocab_size,
              const std::function<bool(TokenId)>& ends_generation);
  void Add(TokenId token) { tiles_[Word(token)] |= Bit(token); }
  bool Has(TokenId token) const { return (tiles_[Word(token)] & Bit(token)) != 0; }

  // Tiles of kOutTile ids, a bit each, in words of 64.
  absl::Span<const uint64_t> tiles() const { return tiles_; }

 private:
  static size_t Word(TokenId token) { return token / kOutTile / 64; }
  static uint64_t Bit(TokenId token) { return uint64_t{1} << (token / kOutTile % 64); }

  std::vector<uint64_t> tiles_;
  size_t num_seen_ = 0;
};

// The ids of `tiles` as ranges, ascending.
void RangesOf(absl::Span<const uint64_t> tiles, int64_t vocab_size, std::vector<OutRange>* ranges);

// Overwrites the logits of all ids that are not in `tiles`: finite, and below whatever is.
void HideOthers(absl::Span<const uint64_t> tiles, int64_t vocab_size, float* logits);

}  // namespace vericache
