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
  double DraftStep() const;
  double Verify(int draft_len) const;
  double TokenSeconds() const;
  PrefixEstimate Recompute() const;
  PrefixEstimate Load() const;
  PrefixEstimate DraftFirst() const;
  PrefixEstimate Remote() const;
  double Provisional() const;
  bool HasDraft() const { return in_.draft_tokens > 0 && in_.max_draft_len > 0; }
  std::string Reason(const PrefixPlan& plan) const;

  const PrefixPlanInput& in_;
  const CostModel& costs_;
  const double bytes_per_s_, queue_s_;
};

double Planner::DraftStep() const {
  PassShape shape;
  shape.AddDraft(1, in_.draft_kv_bytes);
  return costs_.PassSeconds(shape);
}

double Planner::Verify(int draft_len) const {
  PassShape shape;
  shape.AddFull(draft_len + 1, in_.prompt_tokens + draft_len, draft_len + 1);
  return costs_.PassSeconds(shape);
}

// Of a token where the full KV is here: plain, or in rounds of the best length.
double Planner::TokenSeconds() const {
  double best = Verify(0);
  for (const int len : kLengths) {
    if (len > in_.max_draft_len) break;
    best = std::min(best, (len * DraftStep() + Verify(len)) / ExpectedEmitted(in_.agreement, len));
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
  e.possible = true;
  e.first_s = Prefill(in_.known_tokens, in_.prompt_tokens);
  e.last_s = e.first_s + static_cast<double>(in_.max_tokens - 1) * TokenSeconds();
  return e;
}

PrefixEstimate Planner::Load() const {
  PrefixEstimate e;
  e.possible = in_.prefix_tokens > in_.known_tokens;
  if (!e.possible) return e;
  // One question how much there is, one for the blocks.
  const int64_t have = std::min(in_.prefix_tokens, in_.prompt_tokens - 1);
  e.first_s =
      queue_s_ + 2 * in_.round_trip_s + Link(in_.full_bytes) + Prefill(have, in_.prompt_tokens);
  e.last_s = e.first_s + static_cast<double>(in_.max_tokens - 1) * TokenSeconds();
  e.link_bytes = in_.full_bytes;
  return e;
}

PrefixEstimate Planner::DraftFirst() const {
  PrefixEstimate e;
  e.possible = in_.prefix_tokens > in_.known_tokens && HasDraft();
  if (!e.possible) return e;
  const double draft_s = queue_s_ + 2 * in_.round_trip_s + Link(in_.draft_bytes);
  const double full_s = draft_s + in_.round_trip_s + Link(in_.full_bytes);
  const double spare_s = full_s - draft_s - Provisional();
  const int64_t have = std::min(in_.prefix_tokens, in_.prompt_tokens - 1);
  const int64_t suffix = in_.prompt_tokens - have;
  const double token_s = TokenSeconds();
  e.link_bytes = in_.full_bytes + in_.draft_bytes;
  e.last_s = std::numeric_limits<double>::infinity();
  for (const int len : kLengths) {
    if (len > std::min<int64_t>(in_.max_draft_len, in_.max_tokens - 1)) break;
    const double late_s = std::max(0.0, len * DraftStep() - spare_s);
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

PrefixEstimate Planner::Remote() const {
  PrefixEstimate e;
  e.possible = in_.verifier && HasDraft();
  if (!e.possible) return e;
  const double rows_per_s = in_.verifier_bytes_per_s > 0 ? in_.verifier_bytes_per_s : bytes_per_s_;
  const double start_s = queue_s_ + 2 * in_.round_trip_s + Link(in_.draft_bytes) + Provisional();
  double best = std::numeric_limits<double>::infinity();
  for (const int len : kLengths) {
    if (len > in_.max_draft_len) break;
    const double emitted = ExpectedEmitted(in_.agreement, len);
    const double round_s = len * DraftStep() + in_.verifier_round_trip_s + Verify(len) +
                           emitted * static_cast<double>(in_.row_bytes) / rows_per_s;
    if (round_s / emitted >= best) continue;
    best = round_s / emitted;
    e.first_s = start_s + round_s;
    e.last_s = e.first_s + std::max(0.0, static_cast<double>(in_.max_tokens) - emitted) * best;
    e.draft_len = len;
  }
  e.possible = e.draft_len > 0;
  e.link_bytes = in_.draft_bytes;
  return e;
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
  if (picked.last_s > plan.of(PrefixWay::kRecompute).last_s)
    absl::StrAppendFormat(&text, "; loading may take %.2f s", in_.patience_s);
  if (plan.way == PrefixWay::kLoad && HasDraft() && plan.of(PrefixWay::kDraftFirst).possible)
    absl::StrAppendFormat(&text, "; a draft KV of %.0f%% would delay the blocks by %.2f s",
                          100.0 * static_cast<double>(in_.draft_bytes) /
                              std::max(1.0, static_cast<double>(in_.full_bytes)),
                          Link(in_.draft_bytes));
  return text;
}

PrefixPlan Planner::Plan() const {
  PrefixPlan plan;
  plan.estimates = {Recompute(), Load(), DraftFirst(), Remote()};
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
