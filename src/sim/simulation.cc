#include "sim/simulation.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "scheduler/scheduler.h"

namespace vericache {
namespace {

class Run {
 public:
  Run(const Scenario& scenario, const SimOptions& options)
      : scenario_(scenario),
        options_(options),
        scheduler_(scenario.limits, scenario.options),
        executor_(scenario_),
        questions_(scenario.seed ^ 0xa5c) {}

  absl::StatusOr<SimStats> ToEnd();

 private:
  absl::Status Step();
  absl::Status Arrive(const SimRequest& request);
  absl::Status CancelDue(double until_s);
  absl::Status AskDue();
  void PlanQuestions();
  double NextEvent() const;
  absl::Status CheckOrder(const StepPlan& plan);
  absl::Status CheckUsage() const;
  void Print(const StepPlan& plan, const StepReport& report) const;

  Scenario scenario_;
  SimOptions options_;
  Scheduler scheduler_;
  SimExecutor executor_;
  size_t next_arrival_ = 0;
  double now_s_ = 0;
  bool done_ = false;
  std::map<RequestId, double> waiting_;  // id -> virtual arrival, of those with work
  std::map<RequestId, double> due_;      // idle remote requests: when they are asked
  SimRandom questions_;
};

bool Impossible(const Limits& limits, const RequestInfo& info) {
  const int64_t full =
      RoundUp(info.prompt_tokens + info.max_tokens, kBlockTokens) * info.full_bytes_per_token;
  const bool can_stream = limits.staging_bytes > 0 &&
                          info.min_staging_bytes <= limits.staging_bytes &&
                          full <= limits.spill_bytes;
  const int64_t open = limits.prefill_bytes + kBlockTokens * info.full_bytes_per_token;
  return info.fixed_bytes + (can_stream ? open : full) > limits.kv_bytes - limits.staging_bytes;
}

absl::Status Run::Arrive(const SimRequest& request) {
  const absl::Status added = scheduler_.Add(request.info, request.arrival_s);
  const bool impossible = Impossible(scenario_.limits, request.info);
  if (added.ok() == impossible) {
    return absl::InternalError(absl::StrCat("request ", request.info.id, " was ",
                                            added.ok() ? "taken" : "refused",
                                            " wrongly: ", added.message()));
  }
  if (impossible) {
    executor_.Refuse(request.info.id);
  } else {
    waiting_[request.info.id] =
        request.arrival_s - request.info.priority * scenario_.limits.aging_s;
  }
  return absl::OkStatus();
}

absl::Status Run::CancelDue(double until_s) {
  for (size_t i = 0; i < next_arrival_; ++i) {
    const SimRequest& request = scenario_.requests[i];
    const RequestId id = request.info.id;
    if (request.cancel_s < 0 || request.cancel_s > until_s) continue;
    if (executor_.end_of(id) != SimEnd::kNone) continue;
    if (absl::Status s = scheduler_.Cancel(id); !s.ok()) {
      // Failed by the scheduler after its last report: the next plan says so.
      if (absl::IsNotFound(s)) continue;
      return s;
    }
    executor_.Cancel(id);
    waiting_.erase(id);
  }
  return absl::OkStatus();
}

void Run::PlanQuestions() {
  for (size_t i = 0; i < next_arrival_; ++i) {
    const SimRequest& request = scenario_.requests[i];
    if (!executor_.IsIdle(request.info.id) || due_.contains(request.info.id)) continue;
    double think_s = -request.think_s * std::log(1 - questions_.Uniform());
    if (questions_.Chance(request.lull_chance)) think_s *= 100;
    due_[request.info.id] = now_s_ + think_s;
  }
}

absl::Status Run::AskDue() {
  for (auto it = due_.begin(); it != due_.end();) {
    const RequestId id = it->first;
    const double due_s = it->second;
    if (executor_.end_of(id) == SimEnd::kNone && due_s > now_s_) {
      ++it;
      continue;
    }
    it = due_.erase(it);
    if (executor_.end_of(id) != SimEnd::kNone) continue;
    const SimRequest& request = scenario_.requests[id];
    const int64_t left = request.info.max_tokens - executor_.emitted_of(id);
    const int64_t most =
        std::min<int64_t>({request.most_drafted, scheduler_.MaxQuestion(), left - 1});
    const int draft_len = static_cast<int>(questions_.Int(0, most));
    if (scheduler_.Ask(id, static_cast<int>(left), now_s_).ok())
      return absl::InternalError("a question for more than is left was taken");
    if (absl::Status s = scheduler_.Ask(id, draft_len, now_s_); !s.ok()) {
      if (absl::IsNotFound(s)) continue;  // failed; the next plan says so
      return s;
    }
    if (scheduler_.Ask(id, draft_len, now_s_).ok())
      return absl::InternalError("two questions at once were taken");
    executor_.Ask(id, draft_len, now_s_);
    if (!executor_.IsAdmitted(id)) waiting_[id] = executor_.VirtualArrival(id);
  }
  return absl::OkStatus();
}

double Run::NextEvent() const {
  double next_s = std::numeric_limits<double>::infinity();
  if (next_arrival_ < scenario_.requests.size())
    next_s = scenario_.requests[next_arrival_].arrival_s;
  for (const auto& [id, due_s] : due_) next_s = std::min(next_s, due_s);
  return next_s;
}

// Whoever is admitted, nobody with an earlier virtual arrival is left waiting.
absl::Status Run::CheckOrder(const StepPlan& plan) {
  for (const Preemption& preemption : plan.preempt) {
    if (!executor_.IsIdle(preemption.id))
      waiting_[preemption.id] = executor_.VirtualArrival(preemption.id);
  }
  for (const Admission& admission : plan.admit) waiting_.erase(admission.id);
  for (const Failure& failure : plan.fail) waiting_.erase(failure.id);
  for (const Admission& admission : plan.admit) {
    const double own = executor_.VirtualArrival(admission.id);
    for (const auto& [id, virtual_arrival_s] : waiting_) {
      if (virtual_arrival_s < own) {
        return absl::InternalError(
            absl::StrCat("request ", admission.id, " passed request ", id, ", which waits"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Run::CheckUsage() const {
  const SchedulerUsage usage = scheduler_.usage();
  if (usage.charged_bytes > scenario_.limits.kv_bytes ||
      usage.staging_bytes > scenario_.limits.staging_bytes) {
    return absl::InternalError(absl::StrCat("promised ", usage.charged_bytes, " bytes and ",
                                            usage.staging_bytes, " of staging"));
  }
  return absl::OkStatus();
}

void Run::Print(const StepPlan& plan, const StepReport& report) const {
  std::printf("step %lld  t=%.4f  pass %.4f (predicted %.4f, stall %.4f)",
              static_cast<long long>(plan.step_idx), now_s_, report.pass_s, plan.predicted_s,
              report.stall_s);
  for (const Admission& a : plan.admit) std::printf("  +%lld", static_cast<long long>(a.id));
  for (const Preemption& p : plan.preempt) std::printf("  -%lld", static_cast<long long>(p.id));
  for (const FetchStart& f : plan.fetch) std::printf("  <%lld", static_cast<long long>(f.id));
  for (size_t i = 0; i < plan.work.size(); ++i) {
    const Work& w = plan.work[i];
    const char* const kKinds[] = {"prefill", "draft", "verify"};
    std::printf("  [%lld %s %s %d", static_cast<long long>(w.id), kKinds[static_cast<int>(w.kind)],
                DraftModeName(w.mode), w.rows);
    if (w.kind == WorkKind::kVerify) std::printf(" -> %d", report.results[i].num_emitted);
    const DraftChoice* choice = scheduler_.LastChoice(w.id);
    if (w.kind == WorkKind::kVerify && choice != nullptr) {
      std::printf(" %s a=%.3f %.1f/s plain %.1f/s", ChoiceReasonName(choice->reason),
                  choice->agreement, choice->tokens_per_s, choice->plain_tokens_per_s);
    }
    std::printf("]");
  }
  std::printf("\n");
}

absl::Status Run::Step() {
  while (next_arrival_ < scenario_.requests.size() &&
         scenario_.requests[next_arrival_].arrival_s <= now_s_) {
    if (absl::Status s = Arrive(scenario_.requests[next_arrival_++]); !s.ok()) return s;
  }
  if (absl::Status s = CancelDue(now_s_); !s.ok()) return s;
  PlanQuestions();
  if (absl::Status s = AskDue(); !s.ok()) return s;
  const StepPlan plan = scheduler_.Schedule(now_s_);
  if (absl::Status s = CheckOrder(plan); !s.ok()) return s;
  absl::StatusOr<StepReport> report = executor_.Execute(plan, now_s_);
  if (!report.ok()) return report.status();
  if (absl::Status s = CheckUsage(); !s.ok()) return s;
  if (plan.idle()) {
    const SchedulerUsage usage = scheduler_.usage();
    if (usage.num_running + usage.num_waiting > usage.num_idle)
      return absl::InternalError("idle with work left");
    const double next_s = NextEvent();
    done_ = std::isinf(next_s);
    if (!done_) now_s_ = std::max(now_s_, next_s);
    return absl::OkStatus();
  }
  if (options_.verbose) Print(plan, *report);
  now_s_ = report->end_s;
  // Half of the cancellations arrive while the pass runs: its results are then nobody's.
  if (plan.step_idx % 2 == 0) {
    if (absl::Status s = CancelDue(now_s_); !s.ok()) return s;
  }
  for (const WorkResult& result : report->results) {
    if (executor_.end_of(result.id) != SimEnd::kNone) waiting_.erase(result.id);
  }
  return scheduler_.Report(*report);
}

absl::StatusOr<SimStats> Run::ToEnd() {
  for (int64_t step = 0; !done_; ++step) {
    absl::Status status = step < options_.max_steps
                              ? Step()
                              : absl::InternalError("more steps than the work can need");
    if (!status.ok()) {
      return absl::InternalError(
          absl::StrCat("step ", step, ", t=", now_s_, ": ", status.message()));
    }
  }
  if (absl::Status s = executor_.CheckEnd(); !s.ok()) return s;
  const SchedulerUsage usage = scheduler_.usage();
  if (usage.charged_bytes != scenario_.limits.staging_bytes || usage.staging_bytes != 0) {
    return absl::InternalError("memory is promised after the end");
  }
  return executor_.stats();
}

}  // namespace

absl::StatusOr<SimStats> RunScenario(const Scenario& scenario, const SimOptions& options) {
  Run run(scenario, options);
  return run.ToEnd();
}

}  // namespace vericache
