#include "sim/sim_executor.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace vericache {
namespace {

template <typename... Args>
absl::Status Broken(const Args&... args) {
  return absl::InternalError(absl::StrCat(args...));
}

bool DraftsOnKv(DraftMode mode) { return UsesDraftKv(mode); }

}  // namespace

struct SimExecutor::Pass {
  SimPass shape;
  double stream_bytes = 0;  // to come during the pass
  double proposal_s = 0;
  double bytes_per_s = 1;
  bool drafts = false, verifies = false;
};

int64_t SimExecutor::State::ClosedBytes() const {
  return computed_rows / kBlockTokens * kBlockTokens * request->info.full_bytes_per_token;
}

int64_t SimExecutor::State::RamBytes(int64_t new_rows) const {
  const RequestInfo& info = request->info;
  if (!admitted) return 0;
  int64_t bytes = info.fixed_bytes;
  const bool decoding = computed_rows >= target_rows() && num_emitted > 0;
  if (with_draft_kv && decoding) {
    bytes += static_cast<int64_t>(request->draft_share * static_cast<double>(tokens())) *
             info.draft_bytes_per_token;
    bytes += static_cast<int64_t>(drafted.size()) * info.tail_bytes_per_token;
  }
  if (spillable) {
    const int64_t open =
        CeilDiv(computed_rows + new_rows, kBlockTokens) - computed_rows / kBlockTokens;
    return bytes + hot_bytes + open * kBlockTokens * info.full_bytes_per_token;
  }
  return bytes + RoundUp(computed_rows + new_rows, kBlockTokens) * info.full_bytes_per_token;
}

SimExecutor::SimExecutor(const Scenario& scenario)
    : scenario_(scenario), random_(scenario.seed ^ 0x5eed) {
  for (const SimRequest& request : scenario_.requests) {
    State state{&request,
                AcceptanceDraw(request.acceptance,
                               random_.Fork(static_cast<uint64_t>(request.info.id) + 77))};
    state.computed_rows = request.info.cached_tokens;
    state.num_emitted = request.info.emitted_tokens;
    const int64_t full =
        RoundUp(request.info.prompt_tokens + request.info.max_tokens, kBlockTokens) *
        request.info.full_bytes_per_token;
    state.spillable = full <= scenario_.limits.spill_bytes && scenario_.limits.staging_bytes > 0 &&
                      request.info.min_staging_bytes <= scenario_.limits.staging_bytes;
    requests_.emplace(request.info.id, std::move(state));
  }
}

void SimExecutor::End(State* state, SimEnd end) {
  if (state->first_emit_s >= 0) stats_.decode_s += state->last_emit_s - state->first_emit_s;
  link_.Drop(state->request->info.id);
  state->end = end;
  state->admitted = false;
  state->holds_full = false;
  ++stats_.num_ended[static_cast<int>(end)];
}

void SimExecutor::Cancel(RequestId id) {
  State& state = requests_.at(id);
  state.must_release = true;
  End(&state, SimEnd::kCancelled);
}

void SimExecutor::Refuse(RequestId id) { End(&requests_.at(id), SimEnd::kRefused); }

void SimExecutor::Ask(RequestId id, int draft_len, double now_s) {
  State& state = requests_.at(id);
  state.question_len = draft_len;
  state.asked_s = now_s;
  state.num_passed_by = 0;
  ++stats_.num_questions;
}

absl::Status SimExecutor::CheckEnd() const {
  for (const auto& [id, state] : requests_) {
    if (state.end == SimEnd::kNone) return Broken("request ", id, " never ended");
    if (state.must_release) return Broken("request ", id, " was cancelled and never released");
    const int64_t wanted = std::min(state.request->info.max_tokens, state.request->answer_tokens);
    if (state.end == SimEnd::kFinished && state.num_emitted != wanted) {
      return Broken("request ", id, " emitted ", state.num_emitted, " of ", wanted);
    }
    if (state.end == SimEnd::kFinished && state.question_len >= 0)
      return Broken("request ", id, " was asked and ended without an answer");
  }
  if (link_.StagingHeld() > 0) return Broken("staging is held after the end");
  return absl::OkStatus();
}

absl::Status SimExecutor::ApplyDrops(const StepPlan& plan) {
  for (const Failure& failure : plan.fail) {
    State& state = requests_.at(failure.id);
    if (state.end != SimEnd::kNone) return Broken("request ", failure.id, " failed after its end");
    if (scenario_.faults.retry_chance <= 0) return Broken("failed without a fault");
    End(&state, SimEnd::kFailed);
    state.must_release = true;
  }
  for (const RequestId id : plan.release) {
    State& state = requests_.at(id);
    if (!state.must_release) return Broken("request ", id, " released for no reason");
    state.must_release = false;
  }
  for (const auto& [id, state] : requests_) {
    if (state.must_release) return Broken("request ", id, " was not released by the next plan");
  }
  return ApplyPreemptions(plan);
}

absl::Status SimExecutor::ApplyPreemptions(const StepPlan& plan) {
  bool takes_work = false;
  for (const Preemption& preemption : plan.preempt) {
    State& state = requests_.at(preemption.id);
    takes_work = takes_work || (state.admitted && !state.idle());
    stats_.num_idle_preempted += state.idle();
    if (state.end != SimEnd::kNone) return Broken("preempted after its end: ", preemption.id);
    if (!state.admitted && !(preemption.drop_full_kv && state.holds_full)) {
      return Broken("request ", preemption.id, " preempted, but holds nothing");
    }
    ++stats_.num_preempted;
    link_.Drop(preemption.id);
    state.admitted = false;
    state.preempted = true;
    state.hot_bytes = state.hot_grant = 0;
    state.drafted.clear();
    state.last_emit_s = -1;
    if (preemption.drop_full_kv) {
      state.computed_rows = 0;
      state.holds_full = false;
    }
  }
  for (const auto& [id, state] : requests_)
    if (takes_work && state.admitted && state.idle())
      return Broken("one with work was preempted, and request ", id, ", which is idle, was not");
  for (const HotGrant& grant : plan.hot) {
    State& state = requests_.at(grant.id);
    if (grant.bytes < 0) return Broken("negative hot grant");
    state.hot_grant = grant.bytes;
    state.hot_bytes = std::min(state.hot_bytes, grant.bytes);
  }
  return absl::OkStatus();
}

absl::Status SimExecutor::ApplyAdmissions(const StepPlan& plan) {
  for (const Admission& admission : plan.admit) {
    const auto found = requests_.find(admission.id);
    if (found == requests_.end()) return Broken("unknown request admitted");
    State& state = found->second;
    if (state.admitted || state.end != SimEnd::kNone) {
      return Broken("request ", admission.id, " admitted twice or after its end");
    }
    if (state.idle()) return Broken("request ", admission.id, " admitted, and nobody asks it");
    if (admission.resumed != state.preempted) return Broken("resumed without preemption, or not");
    state.admitted = true;
    state.holds_full = state.spillable;
    state.with_draft_kv = admission.with_draft_kv;
  }
  return absl::OkStatus();
}

absl::Status SimExecutor::StartFetches(const StepPlan& plan) {
  for (const FetchStart& fetch : plan.fetch) {
    const State& state = requests_.at(fetch.id);
    if (!state.admitted || link_.Holds(fetch.id)) return Broken("fetch started twice");
    link_.Start(fetch.id, static_cast<double>(fetch.staging_bytes));
  }
  double staging = link_.StagingHeld();
  for (const Work& work : plan.work) {
    if (!link_.Holds(work.id)) staging += static_cast<double>(work.staging_bytes);
  }
  if (staging > static_cast<double>(scenario_.limits.staging_bytes)) {
    return Broken("staging of ", staging, " bytes, there are ", scenario_.limits.staging_bytes);
  }
  return absl::OkStatus();
}

absl::Status SimExecutor::CheckRemote(const Work& work, const State& state) const {
  if (work.kind == WorkKind::kPrefill) return absl::OkStatus();
  if (work.kind == WorkKind::kDraft) return Broken("remote request ", work.id, " drafts here");
  if (state.question_len < 0) return Broken("nobody asked request ", work.id);
  if (work.draft_len > state.question_len)
    return Broken("request ", work.id, " was asked for ", state.question_len, " tokens, not ",
                  work.draft_len);
  return absl::OkStatus();
}

absl::Status SimExecutor::CheckWork(const Work& work) const {
  const auto found = requests_.find(work.id);
  if (found == requests_.end()) return Broken("work for an unknown request");
  const State& state = found->second;
  const RequestInfo& info = state.request->info;
  if (!state.admitted || state.end != SimEnd::kNone) {
    return Broken("work for request ", work.id, ", which is not running");
  }
  if (work.rows < 1) return Broken("work of ", work.rows, " rows");
  if ((info.modes & ModeBit(work.mode)) == 0 && work.mode != DraftMode::kPlain) {
    return Broken("mode ", DraftModeName(work.mode), " was not allowed");
  }
  if (DraftsOnKv(work.mode) && !state.with_draft_kv) return Broken("no draft KV to draft on");
  if (state.request->info.remote)
    if (absl::Status s = CheckRemote(work, state); !s.ok()) return s;
  const bool streams =
      state.spillable && work.kind != WorkKind::kDraft && state.ClosedBytes() > state.hot_bytes;
  if (streams && work.staging_bytes < info.min_staging_bytes) {
    return Broken("request ", work.id, " reads spilled KV and has ", work.staging_bytes,
                  " bytes of staging, not ", info.min_staging_bytes);
  }
  const int64_t missing = state.target_rows() - state.computed_rows;
  if (work.kind == WorkKind::kPrefill) {
    return work.rows <= missing ? absl::OkStatus() : Broken("prefill beyond the known tokens");
  }
  if (missing > 0 || state.num_emitted == 0) return Broken("decoding before prefill is done");
  const int64_t left = info.max_tokens - state.num_emitted;
  const int64_t drafted = static_cast<int64_t>(state.drafted.size());
  if (work.kind == WorkKind::kDraft) {
    const bool good =
        DraftsOnKv(work.mode) && drafted + work.rows <= kMaxDraftLen && drafted + work.rows < left;
    return good ? absl::OkStatus() : Broken("draft too long: ", drafted, " + ", work.rows);
  }
  if (work.draft_len > kMaxDraftLen || work.draft_len >= left || work.rows != work.draft_len + 1) {
    return Broken("verification of ", work.draft_len, " tokens, ", left, " left");
  }
  if (DraftsOnKv(work.mode) && work.draft_len != drafted) {
    return Broken("verification of ", work.draft_len, " tokens, drafted ", drafted);
  }
  if (info.fixed_draft_len != kAutoDraftLen && work.draft_len > info.fixed_draft_len) {
    return Broken("draft of ", work.draft_len, " where ", info.fixed_draft_len, " was asked for");
  }
  return absl::OkStatus();
}

absl::Status SimExecutor::CheckMemory(const StepPlan& plan) {
  int64_t bytes = scenario_.limits.staging_bytes;
  bytes += std::min(plan.prefix_cache_bytes, scenario_.prefix_cache_bytes);
  int64_t disk = 0;
  for (const auto& [id, state] : requests_) {
    int64_t new_rows = 0, tail = 0;
    for (const Work& work : plan.work) {
      if (work.id != id) continue;
      if (work.kind != WorkKind::kDraft) new_rows = work.rows;
      if (work.kind == WorkKind::kDraft)
        tail = work.rows * state.request->info.tail_bytes_per_token;
      // Hot blocks may grow to the grant in this step.
      if (state.spillable) tail += std::max<int64_t>(0, state.hot_grant - state.hot_bytes);
    }
    bytes += state.RamBytes(new_rows) + tail;
    if (state.holds_full) {
      disk += RoundUp(state.computed_rows + new_rows, kBlockTokens) *
              state.request->info.full_bytes_per_token;
    }
  }
  stats_.peak_kv_bytes = std::max(stats_.peak_kv_bytes, bytes);
  if (bytes > scenario_.limits.kv_bytes) {
    return Broken("KV of ", bytes, " bytes, the budget is ", scenario_.limits.kv_bytes);
  }
  if (disk > scenario_.limits.spill_bytes) return Broken("spilled ", disk, " bytes");
  return absl::OkStatus();
}

// A running request waits for those before it in order, and for its slot in the rings; it is not
// passed by those behind it for longer than the rings look ahead.
absl::Status SimExecutor::CheckFairness(const StepPlan& plan) {
  double last_s = -1e300;
  std::set<RequestId> worked;
  for (const Work& work : plan.work) {
    worked.insert(work.id);
    last_s = std::max(last_s, VirtualArrival(work.id));
  }
  for (auto& [id, state] : requests_) {
    const bool passed =
        state.admitted && !state.idle() && !worked.contains(id) && VirtualArrival(id) < last_s;
    state.num_passed_by = passed ? state.num_passed_by + 1 : 0;
    if (state.num_passed_by > 3 * kMaxDraftLen) {
      return Broken("request ", id, " was passed by for ", state.num_passed_by, " steps");
    }
  }
  return absl::OkStatus();
}

double SimExecutor::VirtualArrival(RequestId id) const {
  const State& state = requests_.at(id);
  const double arrival_s = std::max(state.request->arrival_s, state.asked_s);
  return arrival_s - state.request->info.priority * scenario_.limits.aging_s;
}

absl::StatusOr<StepReport> SimExecutor::Execute(const StepPlan& plan, double now_s) {
  if (absl::Status s = ApplyDrops(plan); !s.ok()) return s;
  if (absl::Status s = ApplyAdmissions(plan); !s.ok()) return s;
  if (absl::Status s = StartFetches(plan); !s.ok()) return s;
  int64_t rows = 0;
  std::set<RequestId> seen;
  for (const Work& work : plan.work) {
    if (!seen.insert(work.id).second) return Broken("two works for request ", work.id);
    if (absl::Status s = CheckWork(work); !s.ok()) return s;
    rows += work.rows;
  }
  if (rows > scenario_.limits.max_pass_rows) return Broken("a pass of ", rows, " rows");
  if (!std::isfinite(plan.predicted_s)) return Broken("prediction is not a number");
  if (absl::Status s = CheckMemory(plan); !s.ok()) return s;

  StepReport report;
  report.step_idx = plan.step_idx;
  Pass pass;
  const HardwareModel& hw = scenario_.hardware;
  pass.bytes_per_s = hw.link_bytes_per_s * random_.Noise(hw.noise);
  if (random_.Chance(scenario_.faults.slow_chance)) pass.bytes_per_s *= 0.1;
  for (const Work& work : plan.work) report.results.push_back(RunWork(work, &pass));
  RunLink(&pass, &report);
  report.end_s = now_s + report.pass_s + pass.proposal_s;
  report.prefix_cache_bytes = std::min(plan.prefix_cache_bytes, scenario_.prefix_cache_bytes);
  Settle(plan, &report);
  if (absl::Status s = CheckFairness(plan); !s.ok()) return s;
  return report;
}

WorkResult SimExecutor::RunWork(const Work& work, Pass* pass) {
  State& state = requests_.at(work.id);
  WorkResult result;
  result.id = work.id;
  result.kind = work.kind;
  switch (work.kind) {
    case WorkKind::kPrefill:
      RunPrefill(work, &state, pass, &result);
      break;
    case WorkKind::kDraft:
      RunDraft(work, &state, pass, &result);
      break;
    case WorkKind::kVerify:
      RunVerify(work, &state, pass, &result);
      break;
  }
  return result;
}

void SimExecutor::Stream(const Work& work, State* state, Pass* pass, WorkResult* result) {
  const double bytes = static_cast<double>(
      state->spillable ? std::max<int64_t>(0, state->ClosedBytes() - state->hot_bytes) : 0);
  const double staged = link_.Take(work.id);
  if (bytes <= 0) return;
  double missing = std::max(0.0, bytes - staged);
  if (random_.Chance(scenario_.faults.short_chance)) missing *= 1.5;
  pass->stream_bytes += missing;
  result->fetched_bytes = static_cast<int64_t>(bytes);
  result->fetch_s = bytes / pass->bytes_per_s + scenario_.hardware.link_latency_s;
  if (random_.Chance(scenario_.faults.retry_chance)) {
    result->outcome = WorkOutcome::kRetry;
    ++stats_.num_retried;
  }
}

void SimExecutor::RunPrefill(const Work& work, State* state, Pass* pass, WorkResult* result) {
  Stream(work, state, pass, result);
  pass->shape.rows += work.rows;
  pass->shape.full_bytes +=
      static_cast<double>(state->computed_rows) * scenario_.hardware.full_bytes_per_token;
  pass->shape.pairs += work.rows * (static_cast<double>(state->computed_rows) + work.rows / 2.0);
  result->rows = work.rows;
}

void SimExecutor::RunDraft(const Work& work, State* state, Pass* pass, WorkResult* result) {
  const double tokens = static_cast<double>(state->tokens());
  const RequestInfo& info = state->request->info;
  const double draft_bytes = tokens * static_cast<double>(info.draft_bytes_per_token);
  pass->drafts = true;
  pass->shape.rows += work.rows;
  pass->shape.logit_rows += work.rows;
  pass->shape.draft_bytes += draft_bytes;
  pass->shape.pairs += work.rows * draft_bytes / scenario_.hardware.full_bytes_per_token;
  result->rows = work.rows;
  if (work.mode == DraftMode::kModelDraftKv) {
    result->proposal_s = (work.rows - 1) * scenario_.draft_model_pass_s;
  }
  if (random_.Chance(scenario_.faults.gives_up_chance)) return;
  const bool two_level = work.mode != DraftMode::kDraftKv;
  for (int i = 0; i < work.rows; ++i) {
    const auto drafted =
        state->draw.Draw(work.mode, state->num_emitted, static_cast<int>(state->drafted.size()));
    state->drafted.push_back(drafted.agrees);
    result->confidence.push_back(drafted.confidence);
    ++result->num_drafted;
    // A proposal the draft KV does not confirm ends the step after the draft KV's own token.
    if (two_level && random_.Chance(0.4)) break;
  }
}

void SimExecutor::RunVerify(const Work& work, State* state, Pass* pass, WorkResult* result) {
  Stream(work, state, pass, result);
  pass->verifies = true;
  int num_drafted = work.draft_len;
  std::vector<bool> agrees = state->drafted;
  if (!DraftsOnKv(work.mode)) {
    if (work.mode == DraftMode::kNgram && !state->draw.FindsProposal()) num_drafted = 0;
    if (work.mode == DraftMode::kDraftModel) {
      result->proposal_s = num_drafted * scenario_.draft_model_pass_s;
    }
    agrees.clear();
    const DraftMode drafted_by = state->request->info.remote ? DraftMode::kDraftKv : work.mode;
    for (int i = 0; i < num_drafted; ++i) {
      agrees.push_back(state->draw.Draw(drafted_by, state->num_emitted, i).agrees);
    }
  }
  const double context = static_cast<double>(state->tokens()) + num_drafted;
  result->rows = num_drafted + 1;
  result->num_drafted = num_drafted;
  int accepted = 0;
  while (accepted < num_drafted && agrees[accepted]) ++accepted;
  pass->shape.rows += result->rows;
  pass->shape.logit_rows += std::min<double>(result->rows, RoundUp(accepted + 1, 8));
  pass->shape.full_bytes += context * scenario_.hardware.full_bytes_per_token;
  pass->shape.pairs += result->rows * context;
  if (result->outcome == WorkOutcome::kRetry) return;
  const RequestInfo& info = state->request->info;
  const int64_t left =
      std::min(info.max_tokens, state->request->answer_tokens) - state->num_emitted;
  result->num_emitted = static_cast<int>(std::min<int64_t>(accepted + 1, left));
  result->num_accepted = std::min(accepted, result->num_emitted);
  if (result->num_emitted == left) result->outcome = WorkOutcome::kFinished;
  if (random_.Chance(scenario_.faults.fail_chance)) result->outcome = WorkOutcome::kFailed;
}

// The pass ends when its arithmetic is done and the last of its bytes are there; what link time is
// left goes to those reading ahead.
void SimExecutor::RunLink(Pass* pass, StepReport* report) {
  const HardwareModel& hw = scenario_.hardware;
  const double compute_s = PassSeconds(hw, pass->shape) * random_.Noise(hw.noise);
  double link_s = pass->stream_bytes / pass->bytes_per_s;
  if (link_s > 0) link_s += hw.link_latency_s;
  report->pass_s = std::max(compute_s, link_s);
  report->stall_s = report->pass_s - compute_s;
  for (const WorkResult& result : report->results) pass->proposal_s += result.proposal_s;
  const double spare_s = report->pass_s + pass->proposal_s - link_s;
  stats_.link_busy_s += link_s + link_.Run(spare_s, pass->bytes_per_s);
  stats_.compute_s += compute_s + pass->proposal_s;
  stats_.stall_s += report->stall_s;
  (pass->verifies ? stats_.verify_s : stats_.draft_s) += compute_s;
}

void SimExecutor::Settle(const StepPlan& plan, StepReport* report) {
  ++stats_.num_steps;
  stats_.seconds = report->end_s;
  stats_.predicted_error += std::abs(plan.predicted_s / report->pass_s - 1);
  for (WorkResult& result : report->results) {
    State& state = requests_.at(result.id);
    if (result.kind == WorkKind::kPrefill && result.outcome == WorkOutcome::kDone) {
      state.computed_rows += result.rows;
      if (state.num_emitted == 0 && state.computed_rows == state.target_rows()) {
        state.num_emitted = result.num_emitted = 1;
        ++stats_.num_emitted;
        state.first_emit_s = report->end_s;
        if (std::min(state.request->info.max_tokens, state.request->answer_tokens) == 1) {
          result.outcome = WorkOutcome::kFinished;
        }
      }
      if (state.computed_rows == state.target_rows()) {
        state.last_emit_s = report->end_s;
        state.prompt_done = true;
      }
    }
    if (result.kind == WorkKind::kVerify && result.outcome != WorkOutcome::kRetry) {
      state.computed_rows += result.num_emitted;
      state.num_emitted += result.num_emitted;
      state.drafted.clear();
      state.question_len = -1;
      ++stats_.num_rounds;
      stats_.num_emitted += result.num_emitted;
      stats_.num_drafted += result.num_drafted;
      stats_.num_accepted += result.num_accepted;
      if (state.last_emit_s >= 0 && ++state.num_rounds > 10) {  // the costs are known by then
        stats_.max_burst_s = std::max(stats_.max_burst_s, report->end_s - state.last_emit_s);
      }
      state.last_emit_s = report->end_s;
    }
    if (state.spillable && result.kind != WorkKind::kDraft) {
      state.hot_bytes = std::min(state.hot_grant, state.ClosedBytes());
    }
    result.hot_bytes = state.hot_bytes;
    if (state.with_draft_kv && state.num_emitted > 0) {
      result.draft_bytes =
          static_cast<int64_t>(state.request->draft_share * static_cast<double>(state.tokens())) *
          state.request->info.draft_bytes_per_token;
    }
    if (result.outcome == WorkOutcome::kFinished) End(&state, SimEnd::kFinished);
    if (result.outcome == WorkOutcome::kFailed) End(&state, SimEnd::kFailed);
  }
}

}  // namespace vericache
