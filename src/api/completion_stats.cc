#include "api/completion_stats.h"

#include <algorithm>
#include <iterator>

namespace vericache {

void DescribeChoice(const DraftChoice* choice, DraftChoiceStats* stats) {
  if (choice == nullptr) return;
  stats->mode = DraftModeName(choice->mode);
  stats->reason = ChoiceReasonName(choice->reason);
  stats->draft_len = choice->draft_len;
  stats->agreement = choice->agreement;
  stats->expected_emitted = choice->expected_emitted;
  stats->tokens_per_s = choice->tokens_per_s;
  stats->plain_tokens_per_s = choice->plain_tokens_per_s;
  stats->draft_token_s = choice->draft_token_s;
  stats->verify_s = choice->verify_s;
  stats->row_s = choice->row_s;
  stats->fetch_s = choice->fetch_s;
}

void AddWait(double seconds, RequestTimes* times) {
  for (double* time : {&times->start_s, &times->first_token_s, &times->end_s})
    if (*time > 0) *time += seconds;
}

void CountRounds(const Sequence& s, DraftChoiceStats* stats) {
  for (const RoundStats& round : s.rounds) {
    ++(round.drafted > 0 ? stats->drafted_rounds : stats->plain_rounds);
    auto at = std::find_if(stats->modes.begin(), stats->modes.end(),
                           [&](const ModeStats& m) { return m.mode == round.mode; });
    if (at == stats->modes.end()) {
      stats->modes.emplace_back().mode = round.mode;
      at = std::prev(stats->modes.end());
    }
    ++at->rounds;
    at->drafted += round.drafted;
    at->accepted += round.accepted;
    at->emitted += round.emitted;
    at->draft_s += static_cast<double>(round.draft_ns) * 1e-9;
    at->verify_s += static_cast<double>(round.verify_ns) * 1e-9;
  }
}

}  // namespace vericache
