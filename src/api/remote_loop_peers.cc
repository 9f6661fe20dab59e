// The loop's verifiers: who asks which, what they answer, and when one counts as lost.
#include <algorithm>
#include <utility>

#include "api/remote_loop_impl.h"
#include "base/text.h"

namespace vericache {
namespace {

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

}  // namespace

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

// The verifier that it has, or would get. Null: there is none at all.
const RemoteLoop::Peer* RemoteLoop::LikelyPeer(const Job& job) const {
  if (job.peer >= 0) return peers_[job.peer].get();
  if (peers_.empty()) return nullptr;
  const auto fewest =
      std::min_element(peers_.begin(), peers_.end(),
                       [](const auto& a, const auto& b) { return a->num_jobs < b->num_jobs; });
  return fewest->get();
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

// What the verifier has told of all its requests, without those of this node.
void RemoteLoop::TakeCrowd(const Job& job, const RemoteVerified& reply) {
  int num_own = 0, num_own_prompts = 0;
  for (const auto& [id, other] : jobs_) {
    if (other->peer != job.peer || other->session.empty()) continue;
    ++num_own;
    num_own_prompts += id != job.id && other->state.sequence().num_emitted() == 0 ? 1 : 0;
  }
  Peer& peer = *peers_[job.peer];
  const int num_prompts = std::max(reply.num_prompts, peer.num_prompts);
  peer.num_disturbed = num_prompts > 0 ? peer.num_disturbed + 1 : 0;
  peer.num_prompts = reply.num_prompts;
  peer.num_own = std::max(1, num_own);
  peer.num_others = std::max(0, reply.num_answering + reply.num_prompts - num_own);
  peer.num_other_prompts = std::clamp(reply.num_prompts - num_own_prompts, 0, peer.num_others);
}

void RemoteLoop::TakeReply(Job* job, const Event& event) {
  if (!event.reply.ok()) return Lost(job, event.reply.status());
  TakeCrowd(*job, *event.reply);
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
  // What others' prompts have delayed says little, unless they never end.
  if (!job->first_reply && !peer.disturbed())
    costs_.ObserveQuestion({static_cast<int>(asked), static_cast<int>(event.reply->emitted.size()),
                            event.seconds, event.reply->busy_s, peer.num_own});
  job->first_reply = false;
  if (asked > 0 && !job->state.looks_up())
    acceptance_.Observe(DraftMode::kDraftKv, static_cast<int>(asked),
                        static_cast<int>(stats.accepted - before.accepted));
  ++totals_.replies;
  totals_.rounds += stats.rounds - before.rounds;
  totals_.drafted += stats.drafted - before.drafted;
  totals_.accepted += stats.accepted - before.accepted;
  totals_.emitted += stats.remote_tokens - before.remote_tokens;
  totals_.ahead += stats.ahead_tokens - before.ahead_tokens;
  totals_.looked_up += stats.looked_up - before.looked_up;
  totals_.rows_bytes += stats.rows_bytes - before.rows_bytes;
  const double now = NowSeconds() - job->added_s;
  RequestTimes& times = job->times;
  if (times.first_token_s == 0) {
    times.first_token_s = times.prefill_s = now;
  }
  if (job->hooks.on_step && !job->hooks.on_step(job->state.sequence())) job->cancelled = true;
}

}  // namespace vericache
