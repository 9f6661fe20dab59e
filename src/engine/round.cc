#include "engine/round.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace vericache {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Tokens worth drafting: the verification emits one more than it accepts, so a draft as long as
// the rest of the answer would be one too long.
int DraftLengthFor(const Sequence& s) {
  const int64_t left = s.max_tokens - s.num_emitted();
  return static_cast<int>(std::min<int64_t>(std::min(s.draft_length.next(), kMaxDraftLen),
                                            std::max<int64_t>(0, left - 1)));
}

}  // namespace

void RoundRunner::Run(absl::Span<Sequence* const> sequences) {
  active_.clear();
  drafting_.clear();
  lengths_.clear();
  starts_.clear();
  for (Sequence* s : sequences) {
    if (s->done()) continue;
    active_.push_back(s);
    starts_.push_back(
        {s->rounds.size(), s->draft.has_value() ? s->draft->num_bytes() : 0, s->full.num_bytes()});
    if (!s->draft.has_value()) continue;
    verifier_.RefreshChoice(s);
    drafting_.push_back(s);
    lengths_.push_back(DraftLengthFor(*s));
  }
  if (active_.empty()) return;
  // What a verification reads from a tier comes in while its draft is made. An error shows in the
  // verification, which asks again.
  for (Sequence* s : active_) (void)s->full.StartFetch();
  const int64_t start = NowNs();
  drafter_.Draft(drafting_, lengths_);
  const int64_t drafted = NowNs();
  verifier_.Verify(active_);
  const int64_t verified = NowNs();
  for (size_t i = 0; i < active_.size(); ++i) {
    Sequence& s = *active_[i];
    if (s.rounds.size() == starts_[i].num_rounds) continue;  // failed without a round
    RoundStats& round = s.rounds.back();
    round.draft_ns = s.draft.has_value() ? drafted - start : 0;
    round.verify_ns = verified - drafted;
    round.draft_bytes = starts_[i].draft_bytes;
    round.full_bytes = starts_[i].full_bytes;
    if (s.draft.has_value()) s.draft_length.Update(round.drafted, round.accepted);
  }
}

}  // namespace vericache
