// Byte-pair merging of one piece of text.
#pragma once

#include <string_view>
#include <vector>

#include "tokenizer/bpe_vocab.h"

namespace vericache {

// Scratch of one Encode call, so that pieces after the first allocate nothing.
class BpeMerger {
 public:
  // `vocab` must outlive *this.
  explicit BpeMerger(const BpeVocab& vocab) : vocab_(vocab) {}

  // Appends the tokens of `piece` to `ids`. Bytes that the vocabulary has no token for are left
  // out, as the reference does.
  // REQUIRES: piece.size() < 2^31.
  // COST:     n log n.
  void Merge(std::string_view piece, std::vector<TokenId>* ids);

 private:
  // A token of the piece so far; neighbours by index, -1 at the ends.
  struct Symbol {
    TokenId id;  // -1: merged into its left neighbour
    int32_t previous, next;
  };
  // A merge of the symbol at `left` with the next one, true when it was found.
  struct Candidate {
    int32_t rank, left;
    TokenId left_id, right_id;
  };
  static bool Later(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }
  void Propose(int32_t left);
  void Apply(const Candidate& candidate);

  const BpeVocab& vocab_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace vericache
