#include "scheduler/prefix_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"

namespace vericache {
namespace {

constexpr int64_t kChunkRows = 512;
// A link that was never measured: slow enough that a far store is tried, fast enough that a near
// one is.
constexpr double kUnknownBytesPerSecond = 100e6;
// Of a verifier's tokens a second, what is left beside a load: they share the link and this node.
constexpr double kRemoteBesideLoad = 0.7;
// Draft lengths that are compared: every one would be no better.
constexpr int kLengths[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};

class Planner {
 public:
  Planner(const PrefixPlanInput& in, const CostModel& costs)
      : in_(in),
        costs_(costs),
        bytes_per_s_(in.link_bytes_per_s > 0 ? in.link_bytes_per_s : kUnknownBytesPerSecond),
        queue_s_(static_cast<double>(in.link_queue_bytes) / bytes_per_s_) {}

  PrefixPlan Plan() const;

 private:
  double Link(uint64_t bytes) const { return static_cast<double>(bytes) / bytes_per_s_; }
  double Prefill(int64_t begin, int64_t end) const { return PrefillSeconds(costs_, begin, end); }
  double DraftStep(int num_sharing) const;
  double Verify(int draft_len, int num_sharing) const;
  double TokenSeconds() const;
  PrefixEstimate Recompute() const;
  PrefixEstimate Load() const;
  PrefixEstimate DraftFirst() const;
  PrefixEstimate Remote() const;
  PrefixEstimate RemotePlain() const;
  PrefixEstimate BestRemote() const;
  double RowSeconds() const;
  double PromptsBehind() const;
  double RemoteLookupRate() const;
  double Provisional() const;
  PrefixWay PickWithVerifier(const PrefixPlan& plan) const;
  double SinceMeasured(int draft_len) const;
  // Other nodes see the same crowd and leave it as this one does: half of theirs stay.
  int NumThere() const { return in_.num_remote + (in_.num_elsewhere + 1) / 2; }
  bool HasDraft() const { return in_.draft_tokens > 0 && in_.max_draft_len > 0; }
  std::string Reason(const PrefixPlan& plan) const;

  const PrefixPlanInput& in_;
  const CostModel& costs_;
  const double bytes_per_s_, queue_s_;
};

double Planner::DraftStep(int num_sharing) const {
  PassShape shape;
  for (int i = 0; i < num_sharing; ++i) shape.AddDraft(1, in_.draft_kv_bytes);
  return costs_.PassSeconds(shape);
}

double Planner::Verify(int draft_len, int num_sharing) const {
  PassShape shape;
  for (int i = 0; i < num_sharing; ++i)
    shape.AddFull(draft_len + 1, in_.prompt_tokens + draft_len, draft_len + 1);
  return costs_.PassSeconds(shape);
}

// Of a token where the full KV is here: plain, by look-up, or in rounds of the best length. Passes
// take turns with those that draft for the others, who stay with the verifier.
double Planner::TokenSeconds() const {
  const int n = in_.num_active;
  const double turn_s = in_.num_remote > 1 ? DraftStep(in_.num_remote - 1) : 0;
  double best = Verify(0, n) + turn_s;
  if (in_.lookup_run > 0 && in_.max_draft_len > 0)
    best = std::min(best, (Verify(kLookupDraft, n) + turn_s) / in_.lookup_run);
  for (const int len : kLengths) {
    if (len > in_.max_draft_len) break;
    const double round_s = len * (DraftStep(n) + turn_s) + Verify(len, n) + turn_s;
    best = std::min(best, round_s / ExpectedEmitted(in_.agreement, len));
  }
  return best;
}

// The prompt's rest on the draft KV.
double Planner::Provisional() const {
  double seconds = 0;
  for (int64_t pos = in_.draft_tokens; pos < in_.prompt_tokens - 1; pos += kChunkRows) {
    PassShape shape;
    shape.AddDraft(std::min(kChunkRows, in_.prompt_tokens - 1 - pos), in_.draft_kv_bytes);
    shape.logit_rows = 0;
    seconds += costs_.PassSeconds(shape);
  }
  return seconds;
}

PrefixEstimate Planner::Recompute() const {
  PrefixEstimate e;
  e.possible = in_.fits_here;
  const double token_s = TokenSeconds();
  e.tokens_per_s = 1 / token_s;
  e.first_s = in_.prompts_ahead_s + Prefill(in_.known_tokens, in_.prompt_tokens);
  e.last_s = e.first_s + static_cast<double>(in_.max_tokens - 1) * token_s;
  return e;
}

PrefixEstimate Planner::Load() const {
  PrefixEstimate e;
  e.possible = in_.fits_here && in_.prefix_tokens > in_.known_tokens;
  if (!e.possible) return e;
  // One question how much there is, one for the blocks.
  const int64_t have = std::min(in_.prefix_tokens, in_.prompt_tokens - 1);
  const double full_s = queue_s_ + 2 * in_.round_trip_s + Link(in_.full_bytes);
  const double token_s = TokenSeconds();
  e.tokens_per_s = 1 / token_s;
  e.link_bytes = in_.full_bytes;
  const double begin_s = std::max(full_s, in_.prompts_ahead_s);
  e.first_s = begin_s + Prefill(have, in_.prompt_tokens);
  // A verifier answers meanwhile; what it has emitted is computed here with the prompt's rest.
  const PrefixEstimate remote = BestRemote();
  double emitted = 1;
  double ready_s = e.first_s;
  if (remote.possible && remote.first_s < full_s) {
    e.first_s = remote.first_s;
    emitted += (full_s - remote.first_s) * remote.tokens_per_s * kRemoteBesideLoad;
    emitted = std::min(emitted, static_cast<double>(in_.max_tokens));
    ready_s = begin_s + Prefill(have, in_.prompt_tokens + static_cast<int64_t>(emitted));
  }
  e.last_s = ready_s + (static_cast<double>(in_.max_tokens) - emitted) * token_s;
  return e;
}

PrefixEstimate Planner::DraftFirst() const {
  PrefixEstimate e;
  // With a verifier there is nothing to draft for: it verifies while blocks arrive.
  e.possible = in_.fits_here && !in_.verifier && in_.prefix_tokens > in_.known_tokens && HasDraft();
  if (!e.possible) return e;
  const double draft_s = queue_s_ + 2 * in_.round_trip_s + Link(in_.draft_bytes);
  const double full_s = draft_s + in_.round_trip_s + Link(in_.full_bytes);
  const double spare_s = full_s - draft_s - Provisional();
  const int64_t have = std::min(in_.prefix_tokens, in_.prompt_tokens - 1);
  const int64_t suffix = in_.prompt_tokens - have;
  const double token_s = TokenSeconds();
  e.tokens_per_s = 1 / token_s;
  e.link_bytes = in_.full_bytes + in_.draft_bytes;
  e.last_s = std::numeric_limits<double>::infinity();
  for (const int len : kLengths) {
    if (len > std::min<int64_t>(in_.max_draft_len, in_.max_tokens - 1)) break;
    const double late_s = std::max(0.0, len * DraftStep(in_.num_active) - spare_s);
    PassShape pass;
    pass.AddFull(suffix + len, in_.prompt_tokens + len, len + 1);
    const double first_s = full_s + late_s + costs_.PassSeconds(pass);
    const double emitted = ExpectedEmitted(in_.agreement, len);
    const double last_s =
        first_s + std::max(0.0, static_cast<double>(in_.max_tokens) - emitted) * token_s;
    if (last_s >= e.last_s) continue;
    e.first_s = first_s;
    e.last_s = last_s;
    e.draft_len = len;
  }
  e.possible = e.draft_len > 0;
  return e;
}

// Of the link, for the exact rows of one token.
double Planner::RowSeconds() const {
  const double rows_per_s = in_.verifier_bytes_per_s > 0 ? in_.verifier_bytes_per_s : bytes_per_s_;
  return static_cast<double>(in_.row_bytes) / rows_per_s;
}

// At the verifier: prompts of those that came later are computed between an answer's steps.
double Planner::PromptsBehind() const {
  return std::max(0.0, in_.verifier_prompts_s - in_.verifier_ready_s);
}

// How many times as long as when it was measured a question takes: some have left since.
double Planner::SinceMeasured(int draft_len) const {
  if (in_.num_measured <= 0) return 1;
  const int others = NumThere() - in_.num_remote;
  const int measured = std::max(1, static_cast<int>(std::lround(in_.num_measured)));
  return Verify(draft_len, NumThere()) / Verify(draft_len, measured + others);
}

// Tokens a second of questions about what look-up proposes.
double Planner::RemoteLookupRate() const {
  if (in_.lookup_run <= 0 || in_.max_draft_len == 0) return 0;
  const double question_s = in_.remote_lookup_s > 0
                                ? in_.remote_lookup_s * SinceMeasured(kLookupDraft)
                                : in_.verifier_round_trip_s + Verify(kLookupDraft, NumThere());
  return in_.lookup_run / std::max(1e-9, question_s);
}

PrefixEstimate Planner::Remote() const {
  PrefixEstimate e;
  e.possible = in_.verifier && HasDraft();
  if (!e.possible) return e;
  const double draft_s =
      in_.draft_bytes == 0 ? 0 : queue_s_ + 2 * in_.round_trip_s + Link(in_.draft_bytes);
  double first_round_s = 0;
  for (const int len : kLengths) {
    if (len > in_.max_draft_len) break;
    const double emitted = ExpectedEmitted(in_.agreement, len);
    const double round_s = len * DraftStep(in_.num_active) + in_.verifier_round_trip_s +
                           Verify(len, NumThere()) + emitted * RowSeconds();
    if (emitted / round_s <= e.tokens_per_s) continue;
    e.tokens_per_s = emitted / round_s;
    e.draft_len = len;
    first_round_s = round_s;
  }
  e.possible = e.draft_len > 0;
  if (in_.remote_tokens_per_s > 0)
    e.tokens_per_s = in_.remote_tokens_per_s / SinceMeasured(e.draft_len);
  e.tokens_per_s = std::max(e.tokens_per_s, RemoteLookupRate());
  e.first_s = std::max(in_.verifier_ready_s, draft_s + Provisional()) + first_round_s;
  const double emitted = ExpectedEmitted(in_.agreement, e.draft_len);
  e.last_s =
      e.first_s + PromptsBehind() +
      std::max(0.0, static_cast<double>(in_.max_tokens) - emitted) / std::max(1e-9, e.tokens_per_s);
  e.link_bytes = in_.draft_bytes;
  return e;
}

PrefixEstimate Planner::RemotePlain() const {
  PrefixEstimate e;
  e.possible = in_.verifier;
  if (!e.possible) return e;
  const double tokens = std::max(1, in_.verifier_plain_tokens);
  const double question_s = in_.verifier_round_trip_s + tokens * Verify(0, NumThere());
  e.tokens_per_s = in_.remote_plain_tokens_per_s > 0
                       ? in_.remote_plain_tokens_per_s / SinceMeasured(0)
                       : tokens / question_s;
  // Look-up needs no draft KV; where there is one it is counted with that.
  if (!HasDraft()) e.tokens_per_s = std::max(e.tokens_per_s, RemoteLookupRate());
  e.first_s = in_.verifier_ready_s + question_s;
  e.last_s =
      e.first_s + PromptsBehind() +
      std::max(0.0, static_cast<double>(in_.max_tokens) - tokens) / std::max(1e-9, e.tokens_per_s);
  return e;
}

PrefixEstimate Planner::BestRemote() const {
  const PrefixEstimate drafts = Remote(), plain = RemotePlain();
  return drafts.possible && drafts.last_s <= plain.last_s ? drafts : plain;
}

std::string Planner::Reason(const PrefixPlan& plan) const {
  const PrefixEstimate& picked = plan.of(plan.way);
  std::string text =
      absl::StrFormat("%s: last token after %.2f s", PrefixWayName(plan.way), picked.last_s);
  const char* before = " (";
  for (int i = 0; i < kNumPrefixWays; ++i) {
    const auto way = static_cast<PrefixWay>(i);
    if (way == plan.way || !plan.of(way).possible) continue;
    absl::StrAppendFormat(&text, "%s%s %.2f s", before, PrefixWayName(way), plan.of(way).last_s);
    before = ", ";
  }
  if (before[0] == ',') text += ")";
  if (!in_.verifier && picked.last_s > plan.of(PrefixWay::kRecompute).last_s)
    absl::StrAppendFormat(&text, "; loading may take %.2f s", in_.patience_s);
  if (!in_.fits_here) text += "; no room here for the full KV";
  if (plan.way == PrefixWay::kLoad && HasDraft() && plan.of(PrefixWay::kDraftFirst).possible)
    absl::StrAppendFormat(&text, "; a draft KV of %.0f%% would delay the blocks by %.2f s",
                          100.0 * static_cast<double>(in_.draft_bytes) /
                              std::max(1.0, static_cast<double>(in_.full_bytes)),
                          Link(in_.draft_bytes));
  return text;
}

// Of two ways that stay there the faster one; another only where that gains more than the
// predictions are worth.
PrefixWay Planner::PickWithVerifier(const PrefixPlan& plan) const {
  PrefixWay way = PrefixWay::kRemotePlain;
  const PrefixEstimate& drafts = plan.of(PrefixWay::kRemote);
  // Drafts are what the verifier has most room for.
  if (drafts.possible && kVerifierIsLeftAt * drafts.last_s <= plan.of(way).last_s)
    way = PrefixWay::kRemote;
  const bool crowd = in_.num_active + NumThere() > 2;
  double best_s = (crowd ? kCrowdIsLeftAt : kVerifierIsLeftAt) * BestRemote().last_s;
  for (const PrefixWay here : {PrefixWay::kRecompute, PrefixWay::kLoad}) {
    if (!plan.of(here).possible || plan.of(here).last_s >= best_s) continue;
    best_s = plan.of(here).last_s;
    way = here;
  }
  return way;
}

PrefixPlan Planner::Plan() const {
  PrefixPlan plan;
  plan.estimates = {Recompute(), Load(), DraftFirst(), Remote(), RemotePlain()};
  if (in_.verifier) {
    plan.way = PickWithVerifier(plan);
    plan.reason = Reason(plan);
    return plan;
  }
  const PrefixEstimate& load = plan.of(PrefixWay::kLoad);
  if (load.possible && load.first_s <= in_.patience_s) plan.way = PrefixWay::kLoad;
  for (int i = static_cast<int>(plan.way) + 1; i < kNumPrefixWays; ++i) {
    const auto way = static_cast<PrefixWay>(i);
    if (plan.of(way).possible && plan.of(way).last_s < plan.of(plan.way).last_s) plan.way = way;
  }
  plan.reason = Reason(plan);
  return plan;
}

}  // namespace

const char* PrefixWayName(PrefixWay way) {
  switch (way) {
    case PrefixWay::kRecompute:
      return "recompute";
    case PrefixWay::kLoad:
      return "load";
    case PrefixWay::kDraftFirst:
      return "draft-first";
    case PrefixWay::kRemotePlain:
      return "remote-plain";
    case PrefixWay::kRemote:
      break;
  }
  return "remote";
}

double ExpectedEmitted(double agreement, int draft_len) {
  const double a = std::clamp(agreement, 0.0, 1.0);
  if (a > 1 - 1e-9) return draft_len + 1;
  return (1 - std::pow(a, draft_len + 1)) / (1 - a);
}

double PrefillSeconds(const CostModel& costs, int64_t begin, int64_t end) {
  double seconds = 0;
  for (int64_t pos = begin; pos < end; pos += kChunkRows) {
    const int64_t rows = std::min(kChunkRows, end - pos);
    PassShape shape;
    shape.AddFull(rows, pos + rows / 2, pos + rows == end ? 1 : 0);
    seconds += costs.PassSeconds(shape);
  }
  return seconds;
}

PrefixPlan PlanPrefix(const PrefixPlanInput& input, const CostModel& costs) {
  return Planner(input, costs).Plan();
}

}  // namespace vericache
