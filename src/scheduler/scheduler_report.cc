// What was learned from a step: costs, agreement, and where each request stands now.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace vericache {
namespace {

// Verification computes logits from left to right in groups and stops at the first mismatch.
constexpr int64_t kLogitGroup = 8;

bool IsTime(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

}  // namespace

const WorkResult* Scheduler::Impl::ResultOf(const StepReport& report, RequestId id) const {
  for (const WorkResult& result : report.results) {
    if (result.id == id) return &result;
  }
  return nullptr;
}

absl::Status Scheduler::Impl::CheckResult(const PlannedWork& planned,
                                          const WorkResult& result) const {
  const Work& work = planned.work;
  const bool verify = work.kind == WorkKind::kVerify, draft = work.kind == WorkKind::kDraft;
  // A prompt may bring a draft of its own.
  const int most_drafted = verify ? work.draft_len : draft ? work.rows : kMaxDraftLen;
  const bool good =
      result.kind == work.kind && result.rows >= 0 && result.rows <= work.rows &&
      result.num_drafted >= 0 && result.num_drafted <= most_drafted && result.num_accepted >= 0 &&
      result.num_accepted <= (draft ? 0 : result.num_drafted) && result.num_emitted >= 0 &&
      result.num_emitted <= (draft ? 0 : result.num_accepted + 1) && IsTime(result.proposal_s) &&
      IsTime(result.fetch_s) && result.fetched_bytes >= 0 && result.draft_bytes >= 0 &&
      result.hot_bytes >= 0;
  if (!good) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step_idx_, ": the result of request ", work.id,
                     " does not match its work (kind, rows, drafted, accepted or emitted)"));
  }
  const RequestEntry* entry = Find(work.id);
  if (entry == nullptr || entry->serial != planned.serial) return absl::OkStatus();  // cancelled
  if (result.outcome != WorkOutcome::kDone) return absl::OkStatus();
  const bool moves = !verify || result.num_emitted >= 1;
  const bool last_row = work.kind == WorkKind::kPrefill && entry->num_emitted == 0 &&
                        entry->computed_rows + result.rows == entry->target_rows();
  const bool emits = work.kind != WorkKind::kPrefill || (result.num_emitted > 0) == last_row;
  const bool goes_on = result.num_emitted < entry->tokens_left();
  const bool rows_good = work.kind != WorkKind::kPrefill || result.rows >= 1;
  if (moves && emits && goes_on && rows_good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "step ", step_idx_, ": request ", work.id, " emitted ", result.num_emitted, " of ",
      entry->tokens_left(), " tokens left and is reported as going on; report it as finished"));
}

absl::Status Scheduler::Impl::CheckReport(const StepReport& report) const {
  if (!outstanding_ || report.step_idx != step_idx_) {
    return absl::InvalidArgumentError(
        absl::StrCat("report of step ", report.step_idx, ", expected step ", step_idx_));
  }
  if (!IsTime(report.pass_s) || !IsTime(report.stall_s) || !std::isfinite(report.end_s) ||
      report.stall_s > report.pass_s || report.results.size() != planned_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("report of step ", step_idx_, ": times out of range, or ",
                     report.results.size(), " results for ", planned_.size(), " works"));
  }
  for (const PlannedWork& planned : planned_) {
    const WorkResult* result = ResultOf(report, planned.work.id);
    if (result == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("report of step ", step_idx_, ": no result of request ", planned.work.id));
    }
    if (absl::Status status = CheckResult(planned, *result); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void Scheduler::Impl::LearnCosts(const StepReport& report) {
  PassShape shape;
  for (const PlannedWork& planned : planned_) {
    const WorkResult& result = *ResultOf(report, planned.work.id);
    if (result.rows == 0) continue;
    PlannedWork ran = planned;
    ran.work.rows = result.rows;
    int64_t logits = 0;
    if (planned.work.kind == WorkKind::kVerify) {
      logits = std::min<int64_t>(result.rows, RoundUp(result.num_accepted + 1, kLogitGroup));
    }
    const PassShape part = ShapeOf(ran, static_cast<int>(logits));
    shape.Add(part);
    if (result.outcome != WorkOutcome::kRetry) {
      costs_.ObserveFetch(result.fetched_bytes, result.fetch_s);
    }
  }
  costs_.ObservePass(shape, report.pass_s - report.stall_s);
}

absl::Status Scheduler::Impl::Report(const StepReport& report) {
  if (absl::Status status = CheckReport(report); !status.ok()) return status;
  outstanding_ = false;
  now_s_ = std::max(now_s_, report.end_s);
  // Measured seconds are shared out as predicted; waiting for the link goes to those who streamed.
  double predicted_s = 0, streamed = 0;
  for (PlannedWork& planned : planned_) {
    planned.share_s = ShareSeconds(planned);
    predicted_s += planned.share_s;
    streamed += static_cast<double>(planned.work.streamed_bytes);
  }
  const double scale = predicted_s > 0 ? (report.pass_s - report.stall_s) / predicted_s : 0;
  LearnCosts(report);
  for (const PlannedWork& planned : planned_) {
    const RequestEntry* entry = Find(planned.work.id);
    if (entry == nullptr || entry->serial != planned.serial) continue;  // cancelled meanwhile
    double share_s = planned.share_s * scale;
    if (streamed > 0) {
      share_s += report.stall_s * static_cast<double>(planned.work.streamed_bytes) / streamed;
    }
    Apply(planned, *ResultOf(report, planned.work.id), share_s, report.end_s);
  }
  rings_.Advance();
  return absl::OkStatus();
}

void Scheduler::Impl::Apply(const PlannedWork& planned, const WorkResult& result, double share_s,
                            double end_s) {
  RequestEntry* entry = entries_.at(planned.work.id).get();
  if (planned.work.kind != WorkKind::kDraft) rings_.Release(planned.work.id);
  if (result.outcome == WorkOutcome::kFinished || result.outcome == WorkOutcome::kFailed) {
    Forget(planned.work.id);
    return;
  }
  entry->draft_bytes = result.draft_bytes;
  entry->hot_bytes =
      entry->spillable ? std::min(result.hot_bytes, entry->hot_grant_bytes) : result.hot_bytes;
  entry->round_s += share_s + result.proposal_s;
  const bool drafting = planned.work.kind == WorkKind::kDraft;
  entry->draft_s += (drafting ? share_s : 0) + result.proposal_s;
  if (result.outcome == WorkOutcome::kRetry) {
    Retry(entry);
    return;
  }
  entry->num_retries = 0;
  switch (planned.work.kind) {
    case WorkKind::kPrefill:
      ApplyPrefill(result, end_s, entry);
      break;
    case WorkKind::kDraft:
      ApplyDraft(result, entry);
      break;
    case WorkKind::kVerify:
      ApplyVerify(result, end_s, entry);
      break;
  }
}

void Scheduler::Impl::Retry(RequestEntry* entry) {
  if (++entry->num_retries <= options_.max_retries) return;
  const RequestId id = entry->info.id;
  to_fail_.push_back(
      {id, absl::StrCat("the full KV of request ", id, " could not be read, ", entry->num_retries,
                        " times in a row; check --kv-dir, or raise --kv-memory")});
  to_release_.push_back(id);
  Forget(id);
}

void Scheduler::Impl::ApplyPrefill(const WorkResult& result, double end_s, RequestEntry* entry) {
  entry->computed_rows += result.rows;
  entry->prefill_rows = 0;
  if (entry->computed_rows < entry->target_rows()) return;
  entry->num_emitted += result.num_emitted;
  entry->computed_rows += std::max(0, result.num_emitted - 1);  // of a draft that came with it
  entry->last_emit_s = end_s;
  entry->phase = entry->info.remote ? Phase::kParked : Phase::kStart;
  if (!entry->prompt_done) entry->parked_s = end_s;
  entry->prompt_done = true;
}

void Scheduler::Impl::ApplyDraft(const WorkResult& result, RequestEntry* entry) {
  DraftController& controller = entry->controller;
  for (int i = 0; i < result.num_drafted; ++i) {
    const bool known = i < static_cast<int>(result.confidence.size());
    controller.OnDrafted(known ? result.confidence[i] : -1.0);
  }
  entry->num_draft_steps += 1;
  entry->num_draft_tokens += result.num_drafted;
  if (result.num_drafted == 0) controller.SetDraftLen(controller.num_drafted());  // gave up
}

void Scheduler::Impl::ApplyVerify(const WorkResult& result, double end_s, RequestEntry* entry) {
  entry->num_emitted += result.num_emitted;
  entry->computed_rows += result.num_emitted;
  entry->last_emit_s = end_s;
  entry->round_len = 0;
  if (entry->info.remote) {
    entry->phase = Phase::kParked;
    entry->question_len = -1;
    entry->parked_s = end_s;
    return;
  }
  RoundOutcome outcome;
  outcome.num_drafted = result.num_drafted;
  outcome.num_accepted = result.num_accepted;
  outcome.num_emitted = result.num_emitted;
  outcome.seconds = entry->round_s;
  outcome.draft_seconds = entry->draft_s;
  outcome.plain_step_s = entry->plain_step_s;
  entry->controller.OnRound(outcome);
  entry->phase = Phase::kStart;
}

}  // namespace vericache
