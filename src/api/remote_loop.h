// Runs many answers at once whose full KV verifiers elsewhere have: drafts here, asks there.
//
//   RemoteLoop loop(impl, verifiers, options);
//   loop.Add(...);                                  // any number, at any time between steps
//   while (!loop.empty()) if (!loop.Step()) loop.Wait();
//
// A request fetches its draft KV and opens a session at a verifier, beside each other; then it
// drafts and asks in turn. Whatever waits for another machine does so on a worker thread, one call
// a request; the owner's thread takes what came back and runs one pass for all that have something
// to draft. So while the questions of some are away, others draft, and one whose own is away drafts
// on behind it where nobody else has anything to do (api/remote_job.h).
// A request that is expected to end sooner here is handed back (remote_loop_ways.cc): at once, or
// when its full blocks have been loaded, while the verifier goes on answering. Never back again.
// THREADS: none but what says so; one owner calls, who also owns the engine meanwhile.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api/draft_shelf.h"
#include "api/remote_job.h"
#include "base/worker_threads.h"
#include "engine/drafter.h"
#include "engine/prefix_loader.h"
#include "remote/circuit_breaker.h"
#include "scheduler/answer_length.h"
#include "scheduler/prefix_plan.h"
#include "scheduler/remote_length.h"
#include "vericache/remote.h"

namespace vericache {

struct WorkHere {
  int requests = 0;
  int64_t prompt_rows = 0;  // of them, still to be computed
};

struct RemoteLoopOptions {
  RemoteOptions remote;
  int64_t max_pass_rows = 512;  // provisional rows of one pass, all requests together
  int max_calls = 64;           // at once
  double max_burst_s = 0;       // between two replies, as far as a token takes; 0: any
  // Bytes of draft KV, those kept for later requests included; who finds no room is decoded
  // plainly at the verifier. 0: no limit.
  uint64_t draft_memory = 0;
  uint64_t kept_drafts = uint64_t{256} << 20;  // of it, at most, for later requests
  // A verifier that was lost is left alone for so long, then for longer.
  BreakerOptions breaker{.failures = 1};
  // What this node computes without a verifier. May be empty: nothing.
  std::function<WorkHere()> work_here;
  // The verifiers are the loop's alone: its end need not wait for calls that hang.
  bool interrupts = false;
  // Something has come back: Step() has work. From any thread. May be empty.
  std::function<void()> on_event;
};

struct RemoteEnd {
  std::unique_ptr<Sequence> sequence;
  RemoteStats stats;
  RequestTimes times;
  enum class Kind : uint8_t {
    kDone,       // sequence->done()
    kCancelled,  // by Cancel() or a hook
    // Go on with what it has emitted: no verifier is left (stats.fallback says why), or this node
    // is expected to be faster (stats.plan: "load" or "recompute").
    kHandedOver,
  } kind = Kind::kDone;
  bool by_choice = false;                // handed over because it is faster
  std::unique_ptr<PrefixLookup> lookup;  // then, if its full blocks were loaded
};

// What happens to one request. All but on_end may be empty.
struct RemoteHooks {
  // After each reply that gave it tokens. False: cancel it.
  std::function<bool(const Sequence&)> on_step;
  // Rows of the prompt that the verifier has, and in all. False: cancel it.
  std::function<bool(int64_t done, int64_t total)> on_prefill;
  // This node has room for the sequence's full KV. Empty: it never goes on here by choice.
  std::function<bool(const Sequence&)> fits_here;
  // Begins to load the sequence's full blocks, for on_end, and calls `on_done` once they are here,
  // from any thread. Null: it cannot be.
  std::function<std::shared_ptr<PrefixLoad>(Sequence*, std::function<void()> on_done)> start_load;
  // Takes what was loaded for a sequence that stays where it is: TokensInMemory() counts it from
  // now on. Empty: nothing is kept.
  std::function<void(const Sequence&, std::unique_ptr<PrefixLookup>)> keep_load;
  // Exactly once. May Add().
  std::function<void(RemoteEnd)> on_end;
};

// Sums over all requests.
struct RemoteTotals {
  int64_t requests = 0, fallbacks = 0, failed_calls = 0, opened = 0, replies = 0;
  int64_t rounds = 0, drafted = 0, accepted = 0, emitted = 0, ahead = 0, looked_up = 0;
  int64_t provisional_rows = 0;
  uint64_t rows_bytes = 0, draft_bytes = 0, full_bytes = 0;  // that crossed the link
  std::array<int64_t, kNumPrefixWays> ways{};                // requests, by what was picked
  int64_t fetched_drafts = 0, shared_drafts = 0;
  int64_t num_passes = 0;
  double pass_s = 0;
};

using RemoteId = int64_t;

// ERRORS: kInvalidArgument.
absl::Status CheckRemoteOptions(const RemoteOptions& options);

class RemoteLoop {
 public:
  // REQUIRES: the engine's digest is computed; `impl` and the verifiers outlive *this.
  RemoteLoop(EngineAccess::Impl* impl, std::vector<RemoteVerifier*> verifiers,
             RemoteLoopOptions options);
  // Waits until sessions are closed and calls are over. on_end is not called any more.
  ~RemoteLoop();

  // REQUIRES: nothing of the sequence is computed; max_tokens > 0.
  RemoteId Add(std::unique_ptr<Sequence> sequence, const Request& request, RemoteHooks hooks);
  // Takes effect with the next step.
  void Cancel(RemoteId id);
  // Takes what has come back, then runs at most one pass. False: there is nothing to do but wait.
  bool Step();
  // Returns when something has come back. REQUIRES: Step() has returned false, and !empty().
  void Wait();

  bool empty() const { return jobs_.empty(); }
  size_t num_jobs() const { return jobs_.size(); }
  // Step() would do something.
  bool ready() const;
  // Some verifier may be tried.
  bool HasVerifier();
  int num_verifiers_up();
  // One that was handed over has ended. by_itself: not by its limit or by who asked.
  void ObserveAnswer(int64_t tokens, bool by_itself) { length_.Observe(tokens, by_itself); }
  const RemoteTotals& totals() const { return totals_; }
  uint64_t draft_bytes() const;

 private:
  enum class Fetch : uint8_t { kWanted, kRunning, kAwaitsOther, kOver };
  struct Job;
  struct Peer;
  struct Event;

  void TakeEvents();
  void TakeEvent(Event* event);
  void StartFetch(Job* job);
  bool OtherFetches(const Job& job) const;
  void FetchIsOver(Job* job, PrefixCache::StoredDraft found);
  void FetchForThoseThatWaited();
  void Advance(RemoteId id);
  bool PickVerifier(Job* job);
  const Peer* LikelyPeer(const Job& job) const;
  void Open(Job* job);
  void Ask(Job* job);
  void Call(Job* job, std::function<void(Event*)> call);
  void Close(size_t peer, const std::string& session);
  void TakeCrowd(const Job& job, const RemoteVerified& reply);
  void TakeReply(Job* job, const Event& event);
  void TakeTokens(Job* job, const Event& event);
  void Lost(Job* job, const absl::Status& status);
  void LeaveVerifier(Job* job);
  bool PrepareRound(Job* job);
  RemoteLength ChooseLength(const Job& job) const;
  int LookUpLength(Job* job, const RemoteLength& planned);
  RemoteLengthLimits LimitsOf(const Job& job) const;
  void ChooseWay(Job* job);
  bool OtherLoads(const Job& job) const;
  double LookupRunOf(const Sequence& s) const;
  void ObserveLookup(const Sequence& s);
  PrefixPlanInput PlanInputOf(const Job& job) const;
  void AddCrowd(const Job& job, PrefixPlanInput* in) const;
  struct PromptRows {
    int64_t before = 0, behind = 0;
  };
  PromptRows PromptRowsThere(const Job& job) const;
  void TakeWay(Job* job, PrefixWay way, const PrefixPlanInput& in);
  bool StartLoad(Job* job);
  void DropLoad(Job* job);
  void CountLoaded(Job* job);
  void TakeLoads();
  void Stay(Job* job, int64_t loaded);
  bool MayLeave(const Job& job) const;
  bool PlanPass();
  void RunPass();
  void End(RemoteId id, RemoteEnd::Kind kind);
  bool MakeRoom(uint64_t bytes);
  void Push(std::unique_ptr<Event> event);

  EngineAccess::Impl* const impl_;
  const RemoteLoopOptions options_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::map<RemoteId, std::unique_ptr<Job>> jobs_;
  RemoteId next_id_ = 1;
  Drafter drafter_;
  DraftShelf shelf_;
  RemoteCosts costs_;
  SharedAcceptance acceptance_;  // in mode kDraftKv
  AnswerLength length_;
  double lookup_tokens_ = 0, lookup_rounds_ = 0;  // of answers before, the newest most
  RemoteTotals totals_;
  double last_step_s_ = -1;  // when the last pass ended; < 0: nobody waited for one since
  // Of the pass.
  std::vector<Job*> filling_, stepping_;
  std::vector<DraftRows> step_rows_;
  std::vector<RowGroup> batch_;
  HiddenRows hidden_;

  mutable std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::unique_ptr<Event>> events_;  // guarded by mutex_
  WorkerThreads workers_;                       // goes first: its tasks use what is above
};

}  // namespace vericache
