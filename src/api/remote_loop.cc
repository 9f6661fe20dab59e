#include "api/remote_loop.h"

#include <algorithm>
#include <utility>

#include "api/remote_loop_impl.h"
#include "api/verifier_host.h"

namespace vericache {
namespace {

constexpr double kCloseSeconds = 1;  // for sessions to be closed at the end

// What passes should take at both ends: as if the verifier's machine were this one.
RemoteGuess GuessOf(const CostModel& costs) {
  constexpr int kRows = 8;  // more, for the slope
  PassShape one, more, step;
  one.AddFull(1, 1, 1);
  more.AddFull(1 + kRows, 1 + kRows, 1 + kRows);
  step.AddDraft(1, 0);
  RemoteGuess guess;
  guess.verify_s = std::max(1e-6, costs.PassSeconds(one));
  guess.draft_step_s = costs.PassSeconds(step);
  guess.row_share =
      std::clamp((costs.PassSeconds(more) - guess.verify_s) / (kRows * guess.verify_s), 0.0, 1.0);
  return guess;
}

}  // namespace

absl::Status CheckRemoteOptions(const RemoteOptions& o) {
  if (o.draft_len < 0 || o.draft_len > kMaxDraftLen || o.plain_tokens < 1 || o.tries < 1 ||
      o.early_tokens < 0 || !(o.wait_s >= 0) || !(o.stall_s > 0))
    return absl::InvalidArgumentError("senseless options of remote drafting");
  return absl::OkStatus();
}

RemoteLoop::RemoteLoop(EngineAccess::Impl* impl, std::vector<RemoteVerifier*> verifiers,
                       RemoteLoopOptions options)
    : impl_(impl),
      options_(std::move(options)),
      drafter_(impl->model.get(), impl->forward.get()),
      shelf_(options_.draft_memory > 0 ? std::min(options_.draft_memory / 2, options_.kept_drafts)
                                       : options_.kept_drafts),
      costs_(GuessOf(impl->Learned()->costs)),
      workers_(options_.max_calls) {
  for (RemoteVerifier* verifier : verifiers)
    peers_.push_back(std::make_unique<Peer>(verifier, options_.breaker));
}

RemoteLoop::~RemoteLoop() {
  while (!jobs_.empty()) {
    Job& job = *jobs_.begin()->second;
    if (!job.session.empty()) Close(job.peer, job.session);
    if (job.load != nullptr) job.load->Cancel();
    jobs_.erase(jobs_.begin());
  }
  const bool idle = workers_.WaitIdle(kCloseSeconds);
  {
    // Sessions whose requests ended before they were open.
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& event : events_)
      if (event != nullptr && event->session.ok()) Close(event->peer, *event->session);
  }
  if (idle || !options_.interrupts) return;
  for (const auto& peer : peers_) peer->verifier->Interrupt();
}

RemoteId RemoteLoop::Add(std::unique_ptr<Sequence> sequence, const Request& request,
                         RemoteHooks hooks) {
  const RemoteId id = next_id_++;
  auto owned = std::make_unique<Job>(impl_, std::move(sequence), request);
  Job* job = owned.get();
  job->id = id;
  job->hooks = std::move(hooks);
  job->lost.resize(peers_.size());
  job->added_s = NowSeconds();
  ++totals_.requests;
  jobs_.emplace(id, std::move(owned));
  StartFetch(job);
  // What can be known at once is told with the next step, not from in here.
  Push(nullptr);
  return id;
}

void RemoteLoop::Cancel(RemoteId id) {
  const auto found = jobs_.find(id);
  if (found != jobs_.end()) found->second->cancelled = true;
  Push(nullptr);
}

// --- What comes from workers -----------------------------------------------------------------

// null: look around.
void RemoteLoop::Push(std::unique_ptr<Event> event) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(std::move(event));
  }
  came_.notify_one();
  if (options_.on_event) options_.on_event();
}

void RemoteLoop::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  came_.wait(lock, [&] { return !events_.empty(); });
}

bool RemoteLoop::ready() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!events_.empty()) return true;
  }
  return std::any_of(jobs_.begin(), jobs_.end(), [this](const auto& entry) {
    const Job& job = *entry.second;
    if (job.fetch != Fetch::kOver) return false;
    return job.asking() ? options_.remote.drafts_ahead && job.state.MayDraftAhead()
                        : job.state.has_round() && !job.state.DraftIsWhole();
  });
}

void RemoteLoop::TakeEvents() {
  std::vector<std::unique_ptr<Event>> events;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    events.swap(events_);
  }
  if (events.empty()) return;
  for (const auto& event : events)
    if (event != nullptr) TakeEvent(event.get());
  TakeLoads();
  std::vector<RemoteId> ids;
  for (const auto& [id, job] : jobs_) ids.push_back(id);
  for (const RemoteId id : ids) Advance(id);
}

void RemoteLoop::TakeEvent(Event* event) {
  const auto found = jobs_.find(event->id);
  Job* job = found == jobs_.end() ? nullptr : found->second.get();
  switch (event->kind) {
    case Event::Kind::kDraft:
      if (event->draft.draft.has_value()) {
        ++totals_.fetched_drafts;
        totals_.draft_bytes += event->draft.draft->num_bytes();
      }
      if (job != nullptr) FetchIsOver(job, std::move(event->draft));
      break;
    case Event::Kind::kOpened:
      if (job == nullptr) {
        if (event->session.ok()) Close(event->peer, *event->session);
        return;
      }
      job->calling = false;
      if (!event->session.ok()) return Lost(job, event->session.status());
      job->session = *std::move(event->session);
      job->first_reply = true;
      job->progress_s = NowSeconds();
      job->prompt_done = -1;
      ++job->state.stats().opened;
      ++totals_.opened;
      break;
    case Event::Kind::kReply:
      if (job == nullptr) return;  // cancelled meanwhile, its session is closed
      job->calling = false;
      TakeReply(job, *event);
      break;
  }
}

// --- A request's way -----------------------------------------------------------------------------

// Whatever it can begin now. *job may be gone afterwards.
void RemoteLoop::Advance(RemoteId id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  Job* job = found->second.get();
  if (job->state.sequence().done()) return End(id, RemoteEnd::Kind::kDone);
  if (job->cancelled) return End(id, RemoteEnd::Kind::kCancelled);
  ChooseWay(job);
  if (MayLeave(*job)) return End(id, RemoteEnd::Kind::kHandedOver);
  if (job->peer < 0 && !PickVerifier(job)) return End(id, RemoteEnd::Kind::kHandedOver);
  const bool drafted = PrepareRound(job);
  if (job->calling) return;
  if (job->session.empty()) return Open(job);
  if (drafted) Ask(job);
}

// True: its next question can be asked.
bool RemoteLoop::PrepareRound(Job* job) {
  if (job->asking()) return false;
  if (job->fetch != Fetch::kOver) {
    // The first tokens need not wait for a draft KV.
    if (options_.remote.early_tokens == 0 || job->session.empty()) return false;
    job->state.StartRound(0, options_.remote.early_tokens);
    return true;
  }
  if (!job->state.has_round()) {
    if (!MakeRoom(0)) job->state.DropDraftKv();
    const RemoteLength chosen = ChooseLength(*job);
    RemoteStats& stats = job->state.stats();
    stats.draft_len = chosen.draft_len;
    stats.round_trip_s = chosen.round_trip_s;
    stats.verify_s = chosen.verify_s;
    stats.row_s = chosen.row_s;
    stats.draft_token_s = chosen.step_s;
    stats.agreement = chosen.agreement;
    stats.tokens_per_s = chosen.tokens_per_s;
    stats.plain_tokens_per_s = chosen.plain_tokens_per_s;
    if (const int length = LookUpLength(job, chosen); length > 0) {
      job->state.StartLookup(length);
      return true;
    }
    // A draft KV that cannot draft this time wants its rows soon.
    const bool waits = job->state.draft_bytes() > 0 && job->state.most_drafted() == 0;
    job->state.StartRound(chosen.draft_len, waits ? 1 : chosen.plain_tokens);
  }
  return job->state.DraftIsWhole();
}

RemoteLengthLimits RemoteLoop::LimitsOf(const Job& job) const {
  RemoteLengthLimits limits;
  limits.most = static_cast<int>(job.state.most_drafted());
  limits.plain_tokens = options_.remote.plain_tokens;
  limits.num_active = static_cast<int>(jobs_.size());
  limits.max_burst_s = options_.max_burst_s;
  return limits;
}

RemoteLength RemoteLoop::ChooseLength(const Job& job) const {
  const RemoteJob& state = job.state;
  const int given =
      state.request().draft_len > 0 ? state.request().draft_len : options_.remote.draft_len;
  RemoteLengthLimits limits = LimitsOf(job);
  if (job.plain) limits.most = 0;
  // Plain decoding is judged once drafts have been seen, and drafts are tried again in between.
  constexpr int64_t kFirstRounds = 3, kProbeRounds = 8;
  const int64_t rounds = state.stats().rounds;
  limits.may_be_plain = rounds >= kFirstRounds && rounds % kProbeRounds != 0;
  RemoteLength chosen =
      costs_.Choose(state.acceptance(), acceptance_.Mean(DraftMode::kDraftKv), limits);
  if (given > 0) chosen.draft_len = std::min(given, limits.most);
  return chosen;
}

// Of what look-up proposes: as many tokens as pay, if that is faster than the round `planned`; 0
// otherwise. It costs no pass here, so it is tried in each answer until that shows what it is
// worth.
int RemoteLoop::LookUpLength(Job* job, const RemoteLength& planned) {
  constexpr double kHopedFor = 0.8;   // agreement, before an answer has shown its own
  constexpr int kMostUntilShown = 8;  // tokens proposed meanwhile
  constexpr double kShownBy = 16;     // drafted tokens
  constexpr double kTriedFrom = 0.5;  // of the planned rate, for the hope until then
  // A given length is one of the draft KV.
  if (job->plain || options_.remote.draft_len > 0) return 0;
  const AcceptanceEstimate& seen = job->state.lookup_acceptance();
  const bool shown = seen.trials() >= kShownBy;
  RemoteLengthLimits limits = LimitsOf(*job);
  limits.most = job->state.LookUp(shown ? kMaxDraftLen : kMostUntilShown);
  limits.may_be_plain = false;
  limits.costs_steps = false;
  if (limits.most == 0) return 0;
  const RemoteLength found = costs_.Choose(seen, kHopedFor, limits);
  const double least = shown ? planned.tokens_per_s : kTriedFrom * planned.tokens_per_s;
  return found.tokens_per_s > least ? found.draft_len : 0;
}

void RemoteLoop::End(RemoteId id, RemoteEnd::Kind kind) {
  const auto found = jobs_.find(id);
  const std::unique_ptr<Job> job = std::move(found->second);
  jobs_.erase(found);
  // A question that is away ends with it.
  if (!job->session.empty()) Close(job->peer, job->session);
  LeaveVerifier(job.get());
  ++totals_.ways[static_cast<int>(job->way)];
  ObserveLookup(job->state.sequence());
  RemoteEnd end;
  end.kind = kind;
  end.stats = job->state.stats();
  end.times = job->times;
  end.times.end_s = NowSeconds() - job->added_s;
  if (kind == RemoteEnd::Kind::kDone && job->fetch != Fetch::kOver)
    end.stats.reason = "the answer was over before its draft KV was here";
  if (kind == RemoteEnd::Kind::kHandedOver) {
    end.stats.verifier.clear();
    end.stats.handed_over_s = end.times.end_s;
    end.by_choice = MayLeave(*job);
    if (!end.by_choice) {
      ++totals_.fallbacks;
      end.stats.fallback = job->why;
    }
  }
  if (job->load != nullptr) {
    CountLoaded(job.get());
    end.stats.full_bytes = job->state.stats().full_bytes;
    if (end.by_choice) {
      end.lookup = job->load->Take();
    } else {
      job->load->Cancel();
    }
  }
  if (job->fetch == Fetch::kRunning) FetchForThoseThatWaited();
  end.sequence = job->state.Release();
  const Sequence& s = *end.sequence;
  if (kind == RemoteEnd::Kind::kDone && !job->state.request().ignore_eos)
    ObserveAnswer(s.num_emitted(), s.finish == FinishReason::kStop);
  if (job->hooks.on_end) job->hooks.on_end(std::move(end));
}

// --- Passes --------------------------------------------------------------------------------------

// Drafts that somebody waits for; where there are none, those behind a question.
bool RemoteLoop::PlanPass() {
  filling_.clear();
  stepping_.clear();
  const auto plan = [this](Job* job) {
    (job->state.rows_behind() > 0 ? filling_ : stepping_).push_back(job);
  };
  for (const auto& [id, job] : jobs_) {
    if (job->fetch != Fetch::kOver || job->asking()) continue;
    if (job->state.has_round() && !job->state.DraftIsWhole()) plan(job.get());
  }
  if (!filling_.empty() || !stepping_.empty()) return true;
  if (!options_.remote.drafts_ahead) return false;
  for (const auto& [id, job] : jobs_)
    if (job->asking() && job->state.MayDraftAhead()) plan(job.get());
  return !filling_.empty() || !stepping_.empty();
}

void RemoteLoop::RunPass() {
  batch_.clear();
  const size_t steps = std::min<size_t>(stepping_.size(), kMaxPassRows / 2);
  step_rows_.resize(std::max(step_rows_.size(), steps));
  for (size_t i = 0; i < steps; ++i) step_rows_[i].sequence = &stepping_[i]->state.sequence();
  if (steps > 0) drafter_.Plan(absl::MakeSpan(step_rows_).first(steps), &batch_);
  int64_t rows = std::clamp<int64_t>(options_.max_pass_rows, 1, kMaxPassRows / 2);
  std::vector<std::pair<Job*, int64_t>> filled;
  for (Job* job : filling_) {
    if (rows == 0) break;
    batch_.push_back(job->state.PlanRows(rows));
    filled.emplace_back(job, std::ssize(batch_.back().tokens));
    rows -= filled.back().second;
  }
  const double begin_s = NowSeconds();
  impl_->forward->Run(batch_, &hidden_);
  if (steps > 0) drafter_.Settle(hidden_, 0, /*with_confidence=*/false);
  const double pass_s = NowSeconds() - begin_s;
  ++totals_.num_passes;
  totals_.pass_s += pass_s;
  // As a request sees it: passes of what this node computes for others come in between.
  const double wait_s = last_step_s_ >= 0 ? begin_s - last_step_s_ : 0;
  last_step_s_ = begin_s + pass_s;
  if (filled.empty()) costs_.ObserveStep(wait_s + pass_s, static_cast<int>(steps));
  // What this node would take for other passes is judged by these.
  PassShape shape;
  for (const auto& [job, num_rows] : filled)
    shape.AddDraft(num_rows, static_cast<int64_t>(job->state.draft_bytes()));
  shape.logit_rows = 0;
  for (size_t i = 0; i < steps; ++i)
    shape.AddDraft(1, static_cast<int64_t>(stepping_[i]->state.draft_bytes()));
  impl_->Learned()->costs.ObservePass(shape, pass_s);
  for (const auto& [job, num_rows] : filled) {
    job->state.TakeRows(num_rows, pass_s);
    totals_.provisional_rows += num_rows;
  }
  for (size_t i = 0; i < steps; ++i) stepping_[i]->state.TakeStep(pass_s);
  for (const auto* jobs : {&filling_, &stepping_}) {
    for (Job* job : *jobs)
      if (!job->asking() && !job->calling && !job->session.empty() && job->state.DraftIsWhole())
        Ask(job);
  }
}

bool RemoteLoop::Step() {
  TakeEvents();
  if (!PlanPass()) {
    last_step_s_ = -1;
    const std::lock_guard<std::mutex> lock(mutex_);
    return !events_.empty();
  }
  RunPass();
  return true;
}

}  // namespace vericache
