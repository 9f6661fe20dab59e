// Proposes what followed the end of the text where it stood before: prompt and output lookup.
//
// The longest end of min_n to max_n tokens that occurs earlier wins, its newest place first. No
// model, no K/V: a look-up costs some hashes. A proposal is a guess like any other draft.
// SOURCE: prompt lookup decoding, as in transformers and vLLM ("ngram").
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/types.h"

namespace vericache {

struct NgramOptions {
  int min_n = 2, max_n = 4;
  // Different n-grams of one length that are remembered; beyond it the older half is forgotten.
  int64_t max_entries = int64_t{1} << 17;
  // A proposal may run on into itself: "ababa" is followed by "baba..." as far as asked.
  bool overlap = true;
};

class NgramProposer {
 public:
  // REQUIRES: 1 <= min_n <= max_n <= 16, max_entries >= 2.
  explicit NgramProposer(const NgramOptions& options = {});

  // `tokens` are all known tokens; those of the last call are its beginning, or, where they are
  // not (a text that was cut), all is learned anew. COST: O(1) a new token, amortised.
  void Update(absl::Span<const TokenId> tokens);

  // At most `max_tokens` tokens that may follow `tokens` (those of the last Update) and then
  // `tail` (drafted so far, may be empty). Clears *proposal first. COST: O(max_n + max_tokens).
  void Propose(absl::Span<const TokenId> tokens, absl::Span<const TokenId> tail, int64_t max_tokens,
               std::vector<TokenId>* proposal) const;

  size_t num_bytes() const;

 private:
  // Where each n-gram of one length last ended with something behind it. Open addressing; the
  // n-grams themselves are in the text. Slots hold the place of the token behind one, 0: empty.
  struct Table {
    std::vector<uint32_t> slots;
    int64_t num_used = 0;
  };
  Table& TableOf(int n) { return tables_[n - options_.min_n]; }
  const Table& TableOf(int n) const { return tables_[n - options_.min_n]; }
  void Add(absl::Span<const TokenId> tokens, int n, int64_t next);
  void MakeRoom(absl::Span<const TokenId> tokens, int n);

  NgramOptions options_;
  std::vector<Table> tables_;  // [max_n - min_n + 1]
  int64_t num_known_ = 0;
  uint64_t last_mark_ = 0;  // of the known tokens' ends, to notice another text
};

}  // namespace vericache
