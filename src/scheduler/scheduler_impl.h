// The scheduler's insides, one file for each question: scheduler.cc (who comes and goes),
// scheduler_memory.cc (who may hold what), scheduler_costs.cc (what things will take),
// scheduler_rounds.cc (what each request does in this step), scheduler_report.cc (what was
// learned).
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/cost_model.h"
#include "scheduler/request_entry.h"
#include "scheduler/scheduler.h"
#include "scheduler/stagger.h"

namespace vericache {

// A request is admitted beside others only with room for a draft of this length for each of them,
// so that it is not preempted a moment later.
constexpr int kHeadroomTokens = 16;

class Scheduler::Impl {
 public:
  Impl(const Limits& limits, const SchedulerOptions& options,
       std::shared_ptr<Experience> experience);

  absl::Status Add(const RequestInfo& info, double now_s);
  bool DraftKvFits(const RequestInfo& info, int together);
  absl::Status Cancel(RequestId id);
  absl::Status Ask(RequestId id, int draft_len, double now_s);
  int MaxQuestion() const {
    return static_cast<int>(std::min<int64_t>(kMaxDraftLen, limits_.max_pass_rows - 1));
  }
  StepPlan Schedule(double now_s);
  absl::Status Report(const StepReport& report);
  SchedulerUsage usage() const;
  const RequestEntry* Find(RequestId id) const;
  const CostModel& cost_model() const { return costs_; }

 private:
  struct PlannedWork {
    Work work;
    int64_t serial = 0;
    int64_t context = 0;      // tokens its last row attends to
    int64_t draft_bytes = 0;  // of its draft KV
    bool reselects = false;   // it chooses the draft KV anew
    double share_s = 0;       // predicted seconds, for sharing out the measured ones
  };

  // --- scheduler.cc
  absl::Status CheckInfo(const RequestInfo& info) const;
  absl::Status CheckFits(const RequestEntry& entry) const;
  std::unique_ptr<RequestEntry> MakeEntry(const RequestInfo& info);
  void Forget(RequestId id);
  std::vector<RequestEntry*> InOrder();

  // --- scheduler_memory.cc
  int64_t capacity() const { return limits_.kv_bytes - limits_.staging_bytes; }
  int64_t ChargedBytes() const;
  bool Prefilling() const;  // a prompt whose blocks are spilled
  int64_t HotGrant(const RequestEntry& entry, int64_t left) const;
  int64_t SpillBytesHeld() const;
  void Admit(StepPlan* plan);
  bool TryAdmit(RequestEntry* entry, StepPlan* plan);
  bool PreemptIdle(StepPlan* plan);
  void MakeSpillRoom(const RequestEntry& head, StepPlan* plan);
  void Preempt(RequestEntry* entry, StepPlan* plan);
  // The most draft tokens, at most `wanted`, this round's memory allows; preempts later requests
  // if not even a plain step fits. -1: the request itself had to be preempted.
  int FitRound(RequestEntry* entry, int wanted, StepPlan* plan);
  std::vector<RequestEntry*> CacheOrder() const;
  void GrantCaches(StepPlan* plan);

  // --- scheduler_costs.cc
  int NumDecoding() const;
  PassShape BaseShape() const;       // a row for each request that decodes, no KV
  PassShape DraftPassShape() const;  // the same with their draft KV
  PassShape VerifyShape(const RequestEntry& entry, int draft_len) const;
  PassShape PrefillShape(const RequestEntry& entry, int64_t rows) const;
  PassShape ShapeOf(const PlannedWork& planned, int logit_rows) const;
  RoundCosts CostsFor(const RequestEntry& entry) const;
  StreamNeed NeedFor(const RequestEntry& entry, int draft_len) const;
  int64_t PrefillRows(const RequestEntry& entry, int64_t max_rows, double budget_s) const;
  double ShareSeconds(const PlannedWork& planned) const;
  double PredictPass() const;
  void SetRingRates();

  // --- scheduler_rounds.cc
  void StartRounds(StepPlan* plan);
  void StartRound(RequestEntry* entry, StepPlan* plan);
  void StartQuestion(RequestEntry* entry, StepPlan* plan);
  void FitParked(StepPlan* plan);
  static int VerifyLength(const RequestEntry& entry);  // drafted tokens that kReady is to check
  int BurstLength(RequestEntry* entry, const RoundCosts& costs) const;
  bool BurstIsDue(const RequestEntry& entry) const;
  void PlaceAll();
  void PlaceRound(RequestEntry* entry);
  void PlaceReady(RequestEntry* entry, bool stopped_early, bool urgent);
  void PlacePrefill(RequestEntry* entry);
  bool BarrierReached() const;
  int DraftSteps(const RequestEntry& entry, int draft_len) const;
  void PlanWork(StepPlan* plan);
  void PlanReserved(StepPlan* plan);
  void PlanUnreserved(StepPlan* plan);
  void PlanVerify(RequestEntry* entry, StepPlan* plan);
  void PlanDraft(RequestEntry* entry, StepPlan* plan);
  void PlanPrefill(RequestEntry* entry, int64_t rows, StepPlan* plan);
  void AddWork(const RequestEntry& entry, const Work& work, int64_t context, StepPlan* plan);
  void PlanFetches(StepPlan* plan);

  // --- scheduler_report.cc
  absl::Status CheckReport(const StepReport& report) const;
  absl::Status CheckResult(const PlannedWork& planned, const WorkResult& result) const;
  void LearnCosts(const StepReport& report);
  void Apply(const PlannedWork& planned, const WorkResult& result, double share_s, double end_s);
  void ApplyPrefill(const WorkResult& result, double end_s, RequestEntry* entry);
  void ApplyDraft(const WorkResult& result, RequestEntry* entry);
  void ApplyVerify(const WorkResult& result, double end_s, RequestEntry* entry);
  void Retry(RequestEntry* entry);
  const WorkResult* ResultOf(const StepReport& report, RequestId id) const;

  Limits limits_;
  SchedulerOptions options_;
  std::shared_ptr<Experience> experience_;
  CostModel& costs_;
  SharedAcceptance& shared_;
  StaggerRings rings_;
  std::map<RequestId, std::unique_ptr<RequestEntry>> entries_;
  std::vector<RequestEntry*> order_;  // rebuilt by Schedule
  std::vector<RequestId> to_release_;
  std::vector<Failure> to_fail_;
  std::vector<PlannedWork> planned_;
  bool verifying_ = false;    // lock-step: all have drafted, not all have verified
  bool outstanding_ = false;  // a plan with work was handed out and not reported
  int64_t step_idx_ = -1;
  int64_t next_serial_ = 0;
  int64_t rows_left_ = 0;           // of the pass being planned
  int64_t prefill_bytes_left_ = 0;  // the same
  double now_s_ = 0;
};

}  // namespace vericache
