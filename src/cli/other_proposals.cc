#include "cli/other_proposals.h"

#include <algorithm>
#include <limits>

namespace vericache::cli {
namespace {

// Collects rounds; their agreement is that of the compared tokens.
class Rounds {
 public:
  // `compared` proposals, of which the first `accepted` held; `left` tokens of the answer remain.
  // Returns the tokens emitted.
  int64_t Add(int64_t accepted, int64_t compared, int64_t left) {
    const int64_t emitted = std::min(accepted + 1, left);
    report_.run_lengths.push_back(static_cast<int>(emitted));
    report_.num_compared += compared;
    agreed_ += accepted;
    return emitted;
  }
  DraftReplayReport Take(double kept_fraction) {
    report_.kept_fraction = report_.read_fraction = kept_fraction;
    report_.mean_kl = std::numeric_limits<double>::quiet_NaN();  // there is no distribution
    if (report_.num_compared > 0)
      report_.agreement = static_cast<double>(agreed_) / static_cast<double>(report_.num_compared);
    return std::move(report_);
  }

 private:
  DraftReplayReport report_;
  int64_t agreed_ = 0;
};

}  // namespace

DraftReplayReport NgramRounds(absl::Span<const int32_t> prompt, absl::Span<const int32_t> answer,
                              int draft_len) {
  const std::vector<LookupHit> hits = NgramHits(prompt, answer, draft_len);
  Rounds rounds;
  // The first token comes out of the prefill.
  for (size_t known = 1; known < hits.size();) {
    const LookupHit& hit = hits[known];
    known += rounds.Add(hit.accepted, std::min(hit.accepted + 1, hit.proposed),
                        static_cast<int64_t>(hits.size() - known));
  }
  return rounds.Take(0);
}

DraftReplayReport RoundsOfHits(const std::vector<bool>& hits, int draft_len) {
  Rounds rounds;
  for (size_t known = 1; known < hits.size();) {
    const size_t limit = std::min<size_t>(draft_len, hits.size() - known);
    size_t accepted = 0;
    while (accepted < limit && hits[known + accepted]) ++accepted;
    known += rounds.Add(static_cast<int64_t>(accepted),
                        static_cast<int64_t>(std::min(accepted + 1, limit)),
                        static_cast<int64_t>(hits.size() - known));
  }
  return rounds.Take(1);
}

}  // namespace vericache::cli
