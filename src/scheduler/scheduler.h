// START HERE for scheduling: decides what each forward pass does. Plain data in, plain data out.
//
//   loop:  Add / Ask / Cancel;  plan = Schedule(now);  execute;  Report(report)
//
// One order serves all decisions: a request's *virtual arrival*, arrival - priority * aging_s. It
// is linear aging (a level of priority is worth aging_s of waiting), and since all requests age
// alike the order of two never changes: admission and rows go by it, memory is taken from its end.
// The first one is never preempted and always moves, so nobody starves and nothing livelocks.
// A request ends exactly once: refused by Add, finished or failed by a report, failed by a plan
// (too many retries), or cancelled. Deterministic: no clock, no random numbers, no hash order.
// A remote request that nobody asks is behind all others, the one idle for longest last: its memory
// is taken first, and it is admitted again with its next question.
//
// THREADS: none; one owner calls.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/cost_model.h"
#include "scheduler/draft_controller.h"
#include "scheduler/experience.h"
#include "scheduler/step_plan.h"

namespace vericache {

struct SchedulerOptions {
  StaggerPolicy stagger = StaggerPolicy::kStaggered;
  ControllerOptions controller;
  int max_retries = 3;  // consecutive kRetry results before a request is failed
};

struct SchedulerUsage {       // for invariants and metrics
  int64_t charged_bytes = 0;  // promised of Limits::kv_bytes, staging included
  int64_t staging_bytes = 0;  // reserved of Limits::staging_bytes by fetches that have started
  int num_running = 0;
  int num_waiting = 0;  // preempted ones included
  int num_idle = 0;     // of both: remote ones that nobody asks
};

class Scheduler {
 public:
  // experience: where it learns, and goes on learning; null: it begins with the limits' guesses.
  // REQUIRES: 0 <= staging_bytes <= kv_bytes; max_pass_rows >= 1; max_running >= 1.
  Scheduler(const Limits& limits, const SchedulerOptions& options,
            std::shared_ptr<Experience> experience = nullptr);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // ERRORS: kInvalidArgument: sizes out of range. kAlreadyExists: the id is in use.
  //         kResourceExhausted: it can never fit, even alone; the message has the numbers. Others
  //         are not touched.
  absl::Status Add(const RequestInfo& info, double now_s);
  // Whether its draft KV would fit beside what it needs in any case, were it alone, or with
  // together - 1 others like it. REQUIRES: together >= 1.
  bool DraftKvFits(const RequestInfo& info, int together = 1) const;

  // Takes effect with the next plan, which lists it in `release` if it holds anything.
  // ERRORS: kNotFound: unknown or ended already.
  absl::Status Cancel(RequestId id);

  // A question to a remote request: its next verification checks up to draft_len tokens. The
  // request's virtual arrival is the question's from here on.
  // ERRORS: kNotFound; kFailedPrecondition: not remote, its prompt is not done, or a question is
  //         being answered; kInvalidArgument: draft_len is not in [0, MaxQuestion()], or as long as
  //         what is left to emit.
  absl::Status Ask(RequestId id, int draft_len, double now_s);
  int MaxQuestion() const;

  // REQUIRES: the previous plan was reported, unless it was idle; now_s never decreases.
  StepPlan Schedule(double now_s);

  // ERRORS: kInvalidArgument: the report does not match the plan; nothing is changed.
  absl::Status Report(const StepReport& report);

  SchedulerUsage usage() const;
  const CostModel& cost_model() const;
  // Why the running round of `id` is as it is; nullptr if unknown or before its first round.
  const DraftChoice* LastChoice(RequestId id) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vericache
