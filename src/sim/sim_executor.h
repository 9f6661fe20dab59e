// Does what a StepPlan says on a simulated machine, and judges it: it keeps its own books of
// tokens, memory and staging, and any plan that breaks a promise of the scheduler is an error.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/step_plan.h"
#include "sim/acceptance_model.h"
#include "sim/sim_link.h"
#include "sim/sim_random.h"
#include "sim/workload.h"

namespace vericache {

enum class SimEnd : uint8_t { kNone, kFinished, kFailed, kCancelled, kRefused };

struct SimStats {
  double seconds = 0, compute_s = 0, stall_s = 0, link_busy_s = 0, draft_s = 0, verify_s = 0;
  int64_t num_steps = 0, num_rounds = 0, num_emitted = 0, num_preempted = 0, num_retried = 0;
  int64_t num_drafted = 0, num_accepted = 0;
  int64_t peak_kv_bytes = 0;
  int64_t num_questions = 0, num_idle_preempted = 0;  // of remote requests
  double max_burst_s = 0;      // longest time between two tokens, once a request has had ten rounds
  double decode_s = 0;         // from the first token of a request to its end, all requests
  double predicted_error = 0;  // sum over steps of |predicted / measured - 1|
  int64_t num_ended[5] = {};   // by SimEnd
};

class SimExecutor {
 public:
  explicit SimExecutor(const Scenario& scenario);

  // ERRORS: kInternal: the plan breaks an invariant; the message says which.
  absl::StatusOr<StepReport> Execute(const StepPlan& plan, double now_s);

  void Cancel(RequestId id);  // the next plan must release it
  void Refuse(RequestId id);
  void Ask(RequestId id, int draft_len, double now_s);
  // Remote, and without work until somebody asks.
  bool IsIdle(RequestId id) const { return requests_.at(id).idle(); }
  bool IsAdmitted(RequestId id) const { return requests_.at(id).admitted; }
  // Of the request, or of the question that it is to answer.
  double VirtualArrival(RequestId id) const;
  absl::Status CheckEnd() const;  // each request ended exactly once and holds nothing
  SimEnd end_of(RequestId id) const { return requests_.at(id).end; }
  int64_t emitted_of(RequestId id) const { return requests_.at(id).num_emitted; }
  const SimStats& stats() const { return stats_; }

 private:
  struct State {
    const SimRequest* request = nullptr;
    AcceptanceDraw draw;
    SimEnd end = SimEnd::kNone;
    bool arrived_before = false;  // has been admitted once
    bool admitted = false, preempted = false, with_draft_kv = false, must_release = false;
    bool holds_full = false;  // spilled full KV on disk
    bool spillable = false;
    int64_t computed_rows = 0, num_emitted = 0;
    int64_t hot_grant = 0, hot_bytes = 0;
    std::vector<bool> drafted;  // whether each drafted token agrees
    double last_emit_s = -1;
    int64_t num_rounds = 0;
    double first_emit_s = -1;
    int64_t num_passed_by = 0;  // steps in a row without work in which a later one had some
    bool prompt_done = false;
    int question_len = -1;  // of a remote one: what is asked; < 0: nothing
    double asked_s = -1;

    bool idle() const {
      return request->info.remote && prompt_done && question_len < 0 && end == SimEnd::kNone;
    }
    int64_t tokens() const { return request->info.prompt_tokens + num_emitted; }
    int64_t target_rows() const {
      return num_emitted == 0 ? request->info.prompt_tokens : tokens() - 1;
    }
    int64_t ClosedBytes() const;
    int64_t RamBytes(int64_t new_rows) const;
  };
  struct Pass;

  absl::Status ApplyDrops(const StepPlan& plan);
  absl::Status ApplyAdmissions(const StepPlan& plan);
  absl::Status StartFetches(const StepPlan& plan);
  absl::Status CheckWork(const Work& work) const;
  absl::Status CheckRemote(const Work& work, const State& state) const;
  absl::Status ApplyPreemptions(const StepPlan& plan);
  absl::Status CheckMemory(const StepPlan& plan);
  absl::Status CheckFairness(const StepPlan& plan);
  WorkResult RunWork(const Work& work, Pass* pass);
  void RunPrefill(const Work& work, State* state, Pass* pass, WorkResult* result);
  void RunDraft(const Work& work, State* state, Pass* pass, WorkResult* result);
  void RunVerify(const Work& work, State* state, Pass* pass, WorkResult* result);
  void Stream(const Work& work, State* state, Pass* pass, WorkResult* result);
  void RunLink(Pass* pass, StepReport* report);
  void Settle(const StepPlan& plan, StepReport* report);
  void End(State* state, SimEnd end);

  Scenario scenario_;
  SimRandom random_;
  SimLink link_;
  std::map<RequestId, State> requests_;
  SimStats stats_;
};

}  // namespace vericache
