#include "engine/lookup_run.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "engine/ngram_proposer.h"

namespace vericache {

LookupRun ReplayLookup(absl::Span<const TokenId> tokens, int64_t num_prompt, int draft_len) {
  constexpr int64_t kMostBefore = 32768;
  VC_CHECK(num_prompt >= 0 && num_prompt <= std::ssize(tokens));
  const int64_t cut = std::max<int64_t>(0, num_prompt - kMostBefore);
  tokens.remove_prefix(cut);
  NgramProposer proposer;
  std::vector<TokenId> proposal;
  LookupRun run;
  for (int64_t pos = num_prompt - cut; pos < std::ssize(tokens); ++run.rounds) {
    const auto known = tokens.first(pos);
    proposer.Update(known);
    proposer.Propose(known, {}, draft_len, &proposal);
    const auto next = tokens.subspan(pos);
    int64_t held = 0;
    while (held < std::min(std::ssize(proposal), std::ssize(next)) && proposal[held] == next[held])
      ++held;
    // The verification emits one more, unless the text is over.
    const int64_t emitted = std::min(held + 1, std::ssize(next));
    run.tokens += emitted;
    pos += emitted;
  }
  return run;
}

}  // namespace vericache
