#include "api/remote_loop.h"

#include <algorithm>
#include <utility>

#include "api/verifier_host.h"
#include "base/check.h"
#include "base/common_tokens.h"
#include "base/text.h"

namespace vericache {
namespace {

constexpr double kCloseSeconds = 1;  // for sessions to be closed at the end

// No other question to the same verifier will fare better.
bool IsFinal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsUnauthenticated(status) ||
         absl::IsPermissionDenied(status) || absl::IsInvalidArgument(status) ||
         absl::IsOutOfRange(status) || absl::IsUnimplemented(status);
}

// It says something about the verifier, not about one request or session.
bool IsVerifiersFault(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsDataLoss(status) || absl::IsFailedPrecondition(status) ||
         absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnimplemented(status);
}

// What passes should take on a machine of this class, at both ends.
RemoteGuess GuessOf(const EngineAccess::Impl& impl) {
  const PassGuess pass = GuessPass(*impl.model, impl.pool->num_threads());
  RemoteGuess guess;
  guess.verify_s = pass.pass_s + pass.output_s;
  guess.draft_step_s = pass.pass_s;
  guess.row_share = std::min(1.0, (pass.row_s + pass.logit_row_s) / guess.verify_s);
  return guess;
}

}  // namespace

absl::Status CheckRemoteOptions(const RemoteOptions& o) {
  if (o.draft_len < 0 || o.draft_len > kMaxDraftLen || o.plain_tokens < 1 || o.tries < 1 ||
      o.early_tokens < 0 || !(o.wait_s >= 0) || !(o.stall_s > 0))
    return absl::InvalidArgumentError("senseless options of remote drafting");
  return absl::OkStatus();
}

struct RemoteLoop::Peer {
  RemoteVerifier* verifier = nullptr;
  CircuitBreaker breaker;
  int num_jobs = 0;
  bool is_lost = false;  // to some request, since it was last of use
  explicit Peer(RemoteVerifier* v, const BreakerOptions& options) : verifier(v), breaker(options) {}
};

struct RemoteLoop::Job {
  RemoteId id = 0;
  RemoteJob state;
  RemoteHooks hooks;
  bool cancelled = false;
  Fetch fetch = Fetch::kWanted;
  bool calling = false;     // a call is under way
  int64_t peer = -1;        // < 0: none is chosen
  std::vector<bool> lost;   // [peers]
  int failures = 0;         // of the current one, since it was last of use
  std::string session;      // "": none is open
  bool first_reply = true;  // of the session: its question waited for the prompt
  std::string why;          // the last thing that failed
  double progress_s = 0;    // when the verifier last was seen to compute the prompt
  int64_t prompt_done = -1;
  double added_s = 0, ask_s = 0;
  RequestTimes times;

  Job(const EngineAccess::Impl* impl, std::unique_ptr<Sequence> s, const Request& request)
      : state(impl, std::move(s), request) {}
  bool asking() const { return calling && !session.empty(); }
};

// What a worker has brought back.
struct RemoteLoop::Event {
  enum class Kind : uint8_t { kDraft, kOpened, kReply } kind = Kind::kDraft;
  RemoteId id = 0;
  size_t peer = 0;
  std::optional<DraftKv> draft;
  absl::StatusOr<std::string> session = absl::UnknownError("");
  absl::StatusOr<RemoteVerified> reply = absl::UnknownError("");
  double seconds = 0;
};

RemoteLoop::RemoteLoop(EngineAccess::Impl* impl, std::vector<RemoteVerifier*> verifiers,
                       RemoteLoopOptions options)
    : impl_(impl),
      options_(std::move(options)),
      drafter_(impl->model.get(), impl->forward.get()),
      shelf_(options_.draft_memory > 0 ? std::min(options_.draft_memory / 2, options_.kept_drafts)
                                       : options_.kept_drafts),
      costs_(GuessOf(*impl)),
      workers_(options_.max_calls) {
  for (RemoteVerifier* verifier : verifiers)
    peers_.push_back(std::make_unique<Peer>(verifier, options_.breaker));
}

RemoteLoop::~RemoteLoop() {
  while (!jobs_.empty()) {
    Job& job = *jobs_.begin()->second;
    if (!job.session.empty()) Close(job.peer, job.session);
    jobs_.erase(jobs_.begin());
  }
  if (!options_.interrupts || workers_.WaitIdle(kCloseSeconds)) return;
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
  std::vector<RemoteId> ids;
  for (const auto& [id, job] : jobs_) ids.push_back(id);
  for (const RemoteId id : ids) Advance(id);
}

void RemoteLoop::TakeEvent(Event* event) {
  const auto found = jobs_.find(event->id);
  Job* job = found == jobs_.end() ? nullptr : found->second.get();
  switch (event->kind) {
    case Event::Kind::kDraft:
      if (event->draft.has_value()) {
        ++totals_.fetched_drafts;
        totals_.draft_bytes += event->draft->num_bytes();
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

// --- The draft KV ------------------------------------------------------------------------------

// One that begins like this one fetches what both will use.
bool RemoteLoop::OtherFetches(const Job& job) const {
  const Sequence& s = job.state.sequence();
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    const Job& other = *entry.second;
    const Sequence& o = other.state.sequence();
    if (other.fetch != Fetch::kRunning ||
        other.state.request().prefix_salt != job.state.request().prefix_salt ||
        o.spec.ToString() != s.spec.ToString())
      return false;
    return 2 * CommonTokens(s.tokens, o.tokens) >=
           std::max<int64_t>(2 * kBlockTokens, s.num_prompt);
  });
}

void RemoteLoop::StartFetch(Job* job) {
  const Sequence& s = job->state.sequence();
  const Request& request = job->state.request();
  if (!s.spec.enabled || !request.use_prefix_cache || !impl_->PrefixesHold()) {
    job->fetch = Fetch::kOver;
    return;
  }
  const std::vector<TokenId> prompt(s.tokens.begin(), s.tokens.begin() + s.num_prompt);
  std::optional<DraftKv> kept = shelf_.Find(prompt, request.prefix_salt, s.spec.ToString());
  if (kept.has_value()) {
    ++totals_.shared_drafts;
    FetchIsOver(job, std::move(kept));
    return;
  }
  if (OtherFetches(*job)) {
    job->fetch = Fetch::kAwaitsOther;
    return;
  }
  job->fetch = Fetch::kRunning;
  workers_.Post([this, id = job->id, prompt, salt = request.prefix_salt, spec = s.spec,
                 seconds = impl_->RecomputeSeconds(s)] {
    auto event = std::make_unique<Event>();
    event->id = id;
    event->draft = impl_->prefixes->FindDraftAlone(prompt, salt, spec, seconds);
    Push(std::move(event));
  });
}

void RemoteLoop::FetchIsOver(Job* job, std::optional<DraftKv> draft) {
  job->fetch = Fetch::kOver;
  const Sequence& s = job->state.sequence();
  if (draft.has_value()) {
    const absl::Span<const TokenId> prompt = absl::MakeConstSpan(s.tokens).first(s.num_prompt);
    shelf_.Put(prompt, job->state.request().prefix_salt, s.spec.ToString(), *draft);
    if (MakeRoom(draft->num_bytes())) job->state.TakeDraftKv(*std::move(draft));
  }
  FetchForThoseThatWaited();
}

// Each looks for itself: in what has come, or at the store.
void RemoteLoop::FetchForThoseThatWaited() {
  for (const auto& [id, job] : jobs_) {
    if (job->fetch != Fetch::kAwaitsOther) continue;
    job->fetch = Fetch::kWanted;
    StartFetch(job.get());
  }
}

uint64_t RemoteLoop::draft_bytes() const {
  uint64_t bytes = shelf_.num_bytes();
  for (const auto& [id, job] : jobs_) bytes += job->state.draft_bytes();
  return bytes;
}

// What is kept for later goes first.
bool RemoteLoop::MakeRoom(uint64_t bytes) {
  if (options_.draft_memory == 0) return true;
  const uint64_t used = draft_bytes() + bytes;
  if (used > options_.draft_memory) shelf_.Free(used - options_.draft_memory);
  return draft_bytes() + bytes <= options_.draft_memory;
}

// --- Verifiers ---------------------------------------------------------------------------------

bool RemoteLoop::HasVerifier() { return num_verifiers_up() > 0; }

int RemoteLoop::num_verifiers_up() {
  return static_cast<int>(std::count_if(peers_.begin(), peers_.end(),
                                        [](const auto& p) { return p->breaker.MayTry(); }));
}

// The one with the fewest requests, of those the first, that this request has not lost.
bool RemoteLoop::PickVerifier(Job* job) {
  std::vector<size_t> order;
  for (size_t i = 0; i < peers_.size(); ++i)
    if (!job->lost[i]) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return peers_[a]->num_jobs < peers_[b]->num_jobs; });
  for (const size_t i : order) {
    if (!peers_[i]->breaker.Allow()) {
      if (job->why.empty()) job->why = StrCat(peers_[i]->verifier->name(), ": was lost just now");
      continue;
    }
    job->peer = static_cast<int64_t>(i);
    job->failures = 0;
    ++peers_[i]->num_jobs;
    return true;
  }
  return false;
}

void RemoteLoop::Call(Job* job, std::function<void(Event*)> call) {
  job->calling = true;
  job->ask_s = NowSeconds();
  workers_.Post([this, id = job->id, peer = static_cast<size_t>(job->peer), call] {
    auto event = std::make_unique<Event>();
    event->id = id;
    event->peer = peer;
    const double begin_s = NowSeconds();
    call(event.get());
    event->seconds = NowSeconds() - begin_s;
    Push(std::move(event));
  });
}

void RemoteLoop::Open(Job* job) {
  Call(job, [verifier = peers_[job->peer]->verifier, open = job->state.MakeOpen()](Event* event) {
    event->kind = Event::Kind::kOpened;
    event->session = verifier->Open(open);
  });
}

void RemoteLoop::Ask(Job* job) {
  RemoteVerify question = job->state.MakeQuestion(job->session, options_.remote.wait_s);
  Call(job, [verifier = peers_[job->peer]->verifier, question = std::move(question)](Event* event) {
    event->kind = Event::Kind::kReply;
    event->reply = verifier->Verify(question);
  });
}

void RemoteLoop::Close(size_t peer, const std::string& session) {
  workers_.Post([verifier = peers_[peer]->verifier, session] { verifier->Close(session); });
}

void RemoteLoop::LeaveVerifier(Job* job) {
  if (job->peer < 0) return;
  --peers_[job->peer]->num_jobs;
  job->peer = -1;
  job->session.clear();
}

// Counts a failed call; after enough of them the next verifier is tried.
void RemoteLoop::Lost(Job* job, const absl::Status& status) {
  Peer& peer = *peers_[job->peer];
  ++job->state.stats().failed_calls;
  ++totals_.failed_calls;
  ++job->failures;
  job->why = StrCat(peer.verifier->name(), ": ", status.message());
  // A session that is not known there, or has failed, is opened anew.
  if (!absl::IsDataLoss(status) && !absl::IsUnavailable(status) &&
      !absl::IsDeadlineExceeded(status))
    job->session.clear();
  // What others have lost is not tried twice.
  if (job->failures < options_.remote.tries && !IsFinal(status) && !peer.is_lost) return;
  impl_->Tell(StrCat("verifier lost: ", job->why));
  // One that does not answer closes the session by itself, in time.
  if (!job->session.empty() && !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status))
    Close(job->peer, job->session);
  if (IsVerifiersFault(status)) {
    peer.breaker.Failed();
    peer.is_lost = true;
  }
  job->lost[job->peer] = true;
  LeaveVerifier(job);
}

void RemoteLoop::TakeReply(Job* job, const Event& event) {
  if (!event.reply.ok()) return Lost(job, event.reply.status());
  if (event.reply->ready) return TakeTokens(job, event);
  const RemoteVerified& reply = *event.reply;
  ++totals_.replies;
  const double now = NowSeconds();
  if (reply.prompt_done > job->prompt_done) job->progress_s = now;
  job->prompt_done = std::max(job->prompt_done, reply.prompt_done);
  if (now - job->progress_s > options_.remote.stall_s)
    return Lost(job, absl::AbortedError(
                         StrCat("it has computed nothing for ", options_.remote.stall_s, " s")));
  if (job->hooks.on_prefill && job->state.sequence().num_emitted() == 0 && reply.prompt_total > 0 &&
      !job->hooks.on_prefill(reply.prompt_done, reply.prompt_total))
    job->cancelled = true;
}

void RemoteLoop::TakeTokens(Job* job, const Event& event) {
  RemoteStats& stats = job->state.stats();
  const RemoteStats before = stats;
  const int64_t asked = job->state.num_asked();
  const absl::Status status = job->state.Take(*event.reply, event.seconds);
  if (!status.ok()) return Lost(job, status);
  Peer& peer = *peers_[job->peer];
  peer.breaker.Succeeded();
  peer.is_lost = false;
  stats.verifier = peer.verifier->name();
  job->failures = 0;
  if (!job->first_reply)
    costs_.ObserveQuestion({static_cast<int>(asked), static_cast<int>(event.reply->emitted.size()),
                            event.seconds, event.reply->busy_s});
  job->first_reply = false;
  if (asked > 0)
    acceptance_.Observe(DraftMode::kDraftKv, static_cast<int>(asked),
                        static_cast<int>(stats.accepted - before.accepted));
  ++totals_.replies;
  totals_.rounds += stats.rounds - before.rounds;
  totals_.drafted += stats.drafted - before.drafted;
  totals_.accepted += stats.accepted - before.accepted;
  totals_.emitted += stats.remote_tokens - before.remote_tokens;
  totals_.ahead += stats.ahead_tokens - before.ahead_tokens;
  totals_.rows_bytes += stats.rows_bytes - before.rows_bytes;
  const double now = NowSeconds() - job->added_s;
  RequestTimes& times = job->times;
  if (times.first_token_s == 0) {
    times.first_token_s = times.prefill_s = now;
  }
  if (job->hooks.on_step && !job->hooks.on_step(job->state.sequence())) job->cancelled = true;
}

// --- A request's way -----------------------------------------------------------------------------

// Whatever it can begin now. *job may be gone afterwards.
void RemoteLoop::Advance(RemoteId id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  Job* job = found->second.get();
  if (job->state.sequence().done()) return End(id, RemoteEnd::Kind::kDone);
  if (job->cancelled) return End(id, RemoteEnd::Kind::kCancelled);
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
    // A draft KV that cannot draft this time wants its rows soon.
    const bool waits = job->state.draft_bytes() > 0 && job->state.most_drafted() == 0;
    job->state.StartRound(chosen.draft_len, waits ? 1 : chosen.plain_tokens);
  }
  return job->state.DraftIsWhole();
}

RemoteLength RemoteLoop::ChooseLength(const Job& job) const {
  const RemoteJob& state = job.state;
  const int given =
      state.request().draft_len > 0 ? state.request().draft_len : options_.remote.draft_len;
  RemoteLengthLimits limits;
  limits.most = static_cast<int>(state.most_drafted());
  limits.plain_tokens = options_.remote.plain_tokens;
  limits.num_active = static_cast<int>(jobs_.size());
  limits.max_burst_s = options_.max_burst_s;
  // Plain decoding is judged once drafts have been seen, and drafts are tried again in between.
  constexpr int64_t kFirstRounds = 3, kProbeRounds = 8;
  const int64_t rounds = state.stats().rounds;
  limits.may_be_plain = rounds >= kFirstRounds && rounds % kProbeRounds != 0;
  RemoteLength chosen =
      costs_.Choose(state.acceptance(), acceptance_.Mean(DraftMode::kDraftKv), limits);
  if (given > 0) chosen.draft_len = std::min(given, limits.most);
  return chosen;
}

void RemoteLoop::End(RemoteId id, RemoteEnd::Kind kind) {
  const auto found = jobs_.find(id);
  const std::unique_ptr<Job> job = std::move(found->second);
  jobs_.erase(found);
  // A question that is away ends with it.
  if (!job->session.empty()) Close(job->peer, job->session);
  LeaveVerifier(job.get());
  RemoteEnd end;
  end.kind = kind;
  end.stats = job->state.stats();
  if (kind == RemoteEnd::Kind::kHandedOver) {
    ++totals_.fallbacks;
    end.stats.verifier.clear();
    end.stats.fallback = job->why;
  }
  end.times = job->times;
  end.times.end_s = NowSeconds() - job->added_s;
  if (job->fetch == Fetch::kRunning) FetchForThoseThatWaited();
  end.sequence = job->state.Release();
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
  if (filled.empty()) costs_.ObserveStep(pass_s, static_cast<int>(steps));
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
    const std::lock_guard<std::mutex> lock(mutex_);
    return !events_.empty();
  }
  RunPass();
  return true;
}

}  // namespace vericache
