// Runs many requests at once: asks the scheduler for a step, executes it, reports back.
//
//   RequestLoop loop(parts, options);
//   loop.Add(...);             // any number, at any time between steps
//   while (loop.Step()) {}     // finished requests are handed to their callbacks
//
// The one place between what is decided (scheduler/, plain data) and what is computed (engine/).
// THREADS: none; one owner calls.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "api/draft_sizes.h"
#include "api/proposals.h"
#include "base/thread_pool.h"
#include "engine/prefill.h"
#include "engine/prompt_job.h"
#include "engine/sequence.h"
#include "engine/step.h"
#include "kv/kv_tier.h"
#include "scheduler/scheduler.h"
#include "vericache/batch.h"
#include "vericache/stats.h"

namespace vericache {

// What a pass should take on a machine of this class.
PassGuess GuessPass(const Model& model, int num_threads);

struct LoopParts {
  const Model* model = nullptr;
  Forward* forward = nullptr;
  ThreadPool* pool = nullptr;
  KvTier* tier = nullptr;          // null: all K/V in RAM, without a limit
  ModelProposer* small = nullptr;  // null: no model proposes
  // What earlier loops have learned, for this one to go on with; null: nothing.
  std::shared_ptr<Experience> experience;
};

// What passes of the model should take on a machine of this class, before any was measured.
// link_bytes_per_s: 0: the scheduler's guess.
std::shared_ptr<Experience> NewExperience(const Model& model, int num_threads,
                                          double link_bytes_per_s);

struct LoopOptions {
  StaggerPolicy stagger = StaggerPolicy::kStaggered;
  size_t kv_memory = 0;      // 0: without a limit
  size_t staging_bytes = 0;  // of it, for all requests together
  size_t rebuild_bytes = 0;  // of it, kept free: a draft KV is made from one layer at a time
  int max_running = 64;
  // Each sequence has its own plan of hot blocks and staging (Sequence::memory); the scheduler
  // leaves memory alone. Otherwise it shares kv_memory out.
  bool planned_memory = false;
  int64_t max_pass_rows = 512;
  double link_bytes_per_s = 0;  // first guess; 0: the scheduler's
  // Told before each pass what of kv_memory a prefix cache may hold in RAM. May be empty.
  std::function<void(int64_t bytes)> on_cache_room;
  bool timeline = false;  // keep TimelineEvents
};

// What happens to one request. All may be empty.
struct LoopHooks {
  int64_t index = 0;  // TimelineEvent::request
  // After each step that gave it tokens or drafted some. False: cancel it.
  std::function<bool(const Sequence&)> on_step;
  // Prompt rows done and in all. False: cancel it.
  std::function<bool(int64_t done, int64_t total)> on_prefill;
  // Of a remote sequence: its prompt has been computed, or its question has been answered, and it
  // goes on. It waits for Ask() from here on.
  std::function<void(const Sequence&)> on_parked;
  // Exactly once, whatever became of it; the sequence's finish and error say what.
  std::function<void(std::unique_ptr<Sequence>, const RequestTimes&)> on_end;
};

// Where the K/V of all requests lie now; blocks that two share count twice.
struct KvBytes {
  uint64_t ram = 0, spilled = 0;
};

class RequestLoop {
 public:
  RequestLoop(const LoopParts& parts, const LoopOptions& options);
  ~RequestLoop();

  // Takes a sequence that has nothing computed but what a session or a cache gave it, and perhaps
  // tokens of its answer, whose K/V are computed with the prompt's.
  // ERRORS: kResourceExhausted: it can never fit, with numbers; hooks.on_end is not called.
  absl::StatusOr<RequestId> Add(std::unique_ptr<Sequence> sequence, const DraftSizes& sizes,
                                LoopHooks hooks, int priority = 0, double max_burst_s = 0);
  // The same for a sequence whose drafts come from outside: it computes its prompt, and then what
  // Ask() wants. It may begin with tokens that were emitted elsewhere. Its K/V stay in memory as
  // far as others leave room. ERRORS: as Add().
  absl::StatusOr<RequestId> AddRemote(std::unique_ptr<Sequence> sequence, LoopHooks hooks,
                                      int priority = 0);
  // Which of `drafted` hold: a verification of as many of them as a pass, the memory and the answer
  // have room for. Of none: `plain_tokens` tokens, a pass each. hooks.on_parked or on_end follow.
  // ERRORS: those of Scheduler::Ask().
  absl::Status Ask(RequestId id, absl::Span<const TokenId> drafted, int plain_tokens);
  // The sequence of a request that has not ended, for reading between steps; null otherwise.
  const Sequence* Find(RequestId id) const;
  // What Add() would refuse; `id` is its name in messages. THREADS: safe beside anything else.
  absl::Status CheckFits(const Sequence& sequence, const DraftSizes& sizes, RequestId id) const;
  absl::Status CheckRemoteFits(const Sequence& sequence, RequestId id) const;
  // Makes the sequence's draft KV smaller until it fits beside what the request needs in any case,
  // and says what of it the scheduler must know. One that cannot be made to fit is left as it is:
  // it will not be made. `modes`: as DraftSizes has them. together: so many requests like this one
  // are there; a draft KV that is not much smaller may let more of them run at once.
  // REQUIRES: together >= 1. THREADS: as CheckFits().
  DraftSizes FitDraft(uint32_t modes, int together, Sequence* sequence) const;
  // Takes effect with the next step.
  void Cancel(RequestId id);
  // One pass. False: there is nothing to do but wait for questions.
  bool Step();

  // COST: looks at every block.
  KvBytes kv_bytes() const;
  SchedulerUsage usage() const { return scheduler_.usage(); }
  const DraftChoice* LastChoice(RequestId id) const { return scheduler_.LastChoice(id); }
  // All but `seconds` and on_... of it is kept here.
  const BatchReport& report() const { return report_; }
  std::vector<TimelineEvent> TakeTimeline() { return std::move(timeline_); }

 private:
  struct Running;
  double Now() const;
  RequestInfo InfoOf(const Sequence& sequence, const DraftSizes& sizes, int priority,
                     double max_burst_s) const;
  Running& At(RequestId id) { return *running_.at(id); }
  RequestInfo RemoteInfoOf(const Sequence& sequence, int priority) const;
  absl::StatusOr<RequestId> AddRequest(RequestInfo info, std::unique_ptr<Sequence> sequence,
                                       LoopHooks hooks);
  static void PutQuestion(int length, Running* running);
  void Park(RequestId id, WorkKind kind);
  void Apply(const StepPlan& plan);
  void Admit(const Admission& admission);
  void Preempt(const Preemption& preemption);
  void PlanItems(const StepPlan& plan);
  void Propose(const StepPlan& plan);
  void CatchUp(const StepPlan& plan);
  // Staging for what the step reads from the tier. Who finds none sits the step out (kRetry).
  void HoldStaging(const StepPlan& plan);
  bool TakeBackFetch();
  void TakeDraft(const StepItem& item, double pass_s, Running* running, WorkResult* result);
  WorkResult ResultOf(const Work& work, const StepItem& item, double pass_s);
  void End(RequestId id);
  void Record(const StepPlan& plan, double begin_s, double end_s);

  const LoopParts parts_;
  const LoopOptions options_;
  Scheduler scheduler_;
  Prefill prefill_;
  StepRunner runner_;
  RequestId next_id_ = 1;
  std::map<RequestId, std::unique_ptr<Running>> running_;
  std::vector<StepItem> items_;
  std::vector<ProposalWish> wishes_;
  std::vector<TimelineEvent> timeline_;
  bool has_freed_ = false;  // memory of a request, since it was last returned to the system
  double start_s_ = 0;      // on NowSeconds()'s clock
  BatchReport report_;
};

}  // namespace vericache
