// What things will take: shapes of passes, and a request's share of them.

#include <algorithm>

#include "scheduler/scheduler_impl.h"

namespace vericache {
namespace {

// First guesses until a mode has been measured (DraftController learns a factor on them): a small
// model's step in passes, rows a two-level step checks, tokens it keeps.
constexpr double kDraftModelPasses = 0.3;
constexpr int kTwoLevelRows = 5;
constexpr double kTwoLevelTokens = 2;
// The cost of a further row is the secant from one row to the draft length used last, within this.
constexpr int kMinSecant = 4, kMaxSecant = 64;

int Index(DraftMode mode) { return static_cast<int>(mode); }

}  // namespace

int Scheduler::Impl::NumDecoding() const {
  return static_cast<int>(std::count_if(entries_.begin(), entries_.end(),
                                        [](const auto& e) { return e.second->decoding(); }));
}

PassShape Scheduler::Impl::BaseShape() const {
  PassShape shape;
  shape.num_rows = shape.logit_rows = std::max(1, NumDecoding());
  return shape;
}

PassShape Scheduler::Impl::DraftPassShape() const {
  PassShape shape = BaseShape();
  for (const auto& [id, entry] : entries_) {
    if (!entry->decoding() || !entry->draft_kv_fits) continue;
    if (!entry->has_choice || !UsesDraftKv(entry->controller.choice().mode)) continue;
    shape.draft_bytes += static_cast<double>(entry->draft_bytes);
  }
  return shape;
}

PassShape Scheduler::Impl::VerifyShape(const RequestEntry& entry, int draft_len) const {
  PassShape shape;
  shape.AddFull(draft_len + 1, entry.num_tokens() + draft_len, draft_len + 1);
  if (entry.info.reselects && UsesDraftKv(entry.controller.choice().mode))
    shape.chosen_tokens = static_cast<double>(entry.num_tokens());
  return shape;
}

PassShape Scheduler::Impl::PrefillShape(const RequestEntry& entry, int64_t rows) const {
  PassShape shape;
  shape.AddFull(rows, entry.computed_rows + CeilDiv(rows, 2), 0);
  return shape;
}

PassShape Scheduler::Impl::ShapeOf(const PlannedWork& planned, int logit_rows) const {
  PassShape shape;
  if (planned.work.kind == WorkKind::kDraft) {
    shape.AddDraft(planned.work.rows, planned.draft_bytes);
  } else {
    shape.AddFull(planned.work.rows, planned.context, logit_rows);
    if (planned.reselects) shape.chosen_tokens = static_cast<double>(planned.context);
  }
  return shape;
}

RoundCosts Scheduler::Impl::CostsFor(const RequestEntry& entry) const {
  const PassShape base = BaseShape();
  const double num_sharing = base.num_rows;
  const double share_s = costs_.PassSeconds(base) / num_sharing;
  PassShape draft_kv;
  draft_kv.draft_bytes = static_cast<double>(
      std::max(entry.draft_bytes, entry.num_tokens() * entry.info.draft_bytes_per_token));

  RoundCosts costs;
  costs.token_s[Index(DraftMode::kDraftKv)] = share_s + costs_.ExtraSeconds(base, draft_kv);
  costs.token_s[Index(DraftMode::kDraftModel)] = kDraftModelPasses * share_s;
  PassShape two_level;
  two_level.AddDraft(kTwoLevelRows - 1, 0);
  two_level.draft_bytes = kTwoLevelRows * draft_kv.draft_bytes;
  const double two_level_s = (share_s + costs_.ExtraSeconds(base, two_level)) / kTwoLevelTokens;
  costs.token_s[Index(DraftMode::kNgramDraftKv)] = two_level_s;
  costs.token_s[Index(DraftMode::kModelDraftKv)] = two_level_s + kDraftModelPasses * share_s;

  PassShape plain = VerifyShape(entry, 0);
  plain.chosen_tokens = 0;
  plain.num_rows = plain.logit_rows = 0;  // its row is in `base`
  costs.verify_s = share_s + costs_.ExtraSeconds(base, plain);
  const int last_len = entry.has_choice ? entry.controller.choice().draft_len : 16;
  const int secant = std::clamp(last_len, kMinSecant, kMaxSecant);
  PassShape wide = VerifyShape(entry, secant);
  wide.chosen_tokens = 0;
  wide.num_rows -= 1;
  wide.logit_rows -= 1;
  const double wide_s = costs_.ExtraSeconds(base, wide) - (costs.verify_s - share_s);
  costs.row_s = std::clamp(wide_s / secant, 0.0, costs.verify_s);

  PassShape chosen;
  if (entry.info.reselects) chosen.chosen_tokens = static_cast<double>(entry.num_tokens());
  costs.choose_s = costs_.ExtraSeconds(base, chosen);

  costs.fetch_s = costs_.FetchSeconds(entry.StreamedBytes());
  costs.staging_s = costs_.FetchSeconds(limits_.staging_bytes);
  costs.alone = usage().num_running <= 1;
  return costs;
}

StreamNeed Scheduler::Impl::NeedFor(const RequestEntry& entry, int draft_len) const {
  StreamNeed need;
  need.bytes = entry.StreamedBytes();
  need.min_staging_bytes = entry.info.min_staging_bytes;
  need.verify_s = costs_.ExtraSeconds(DraftPassShape(), VerifyShape(entry, draft_len));
  need.rows = draft_len + 1;
  return need;
}

// The most rows that lengthen the step by at most `budget_s`; at least one, so that it moves.
int64_t Scheduler::Impl::PrefillRows(const RequestEntry& entry, int64_t max_rows,
                                     double budget_s) const {
  const PassShape base = DraftPassShape();
  int64_t lo = 1, hi = std::max<int64_t>(1, max_rows);
  while (lo < hi) {
    const int64_t mid = (lo + hi + 1) / 2;
    if (costs_.ExtraSeconds(base, PrefillShape(entry, mid)) <= budget_s) {
      lo = mid;
    } else {
      hi = mid - 1;
    }
  }
  return lo;
}

// A part of what the pass costs once, and all of what this work adds to it.
double Scheduler::Impl::ShareSeconds(const PlannedWork& planned) const {
  PassShape unit;
  unit.num_rows = unit.logit_rows = 1;
  const double unit_s = costs_.PassSeconds(unit);
  const double alone_s = costs_.PassSeconds(ShapeOf(planned, planned.work.rows));
  return std::max(0.0, alone_s - unit_s) + unit_s / static_cast<double>(planned_.size());
}

double Scheduler::Impl::PredictPass() const {
  PassShape shape;
  double stall_s = 0;
  for (const PlannedWork& planned : planned_) {
    const bool prefill = planned.work.kind == WorkKind::kPrefill;
    const PassShape part = ShapeOf(planned, prefill ? 0 : planned.work.rows);
    shape.Add(part);
    const Reservation* at = rings_.Find(planned.work.id);
    if (at != nullptr && at->verify_slot == 0) stall_s += at->stall_s;
  }
  return costs_.PassSeconds(shape) + stall_s;
}

void Scheduler::Impl::SetRingRates() {
  const bool prefilling = std::any_of(entries_.begin(), entries_.end(), [](const auto& e) {
    return e.second->phase == Phase::kPrefill;
  });
  rings_.SetRates(costs_.PassSeconds(DraftPassShape()) + (prefilling ? limits_.prefill_chunk_s : 0),
                  costs_.link_bytes_per_s());
}

}  // namespace vericache
