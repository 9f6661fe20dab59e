#include "api/verifier_host.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/common_tokens.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "kv/codecs/row_codec.h"
#include "kv/kv_rows.h"

namespace vericache {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMaxWaitSeconds = 60;
constexpr int kMaxPlainTokens = 256;
constexpr size_t kMostEvents = 100000;
constexpr int kLoaders = 2;  // prefixes that are read from a store at once
constexpr auto kLookAround = std::chrono::milliseconds(500);  // for sessions nobody wants any more

Clock::duration Seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

// Whoever knows it may ask: nobody can guess it.
std::string RandomName() {
  thread_local std::random_device device;
  std::string bytes;
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = device();
    bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return HexOf({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

absl::Status Differs(std::string_view what, const std::string& ours, const std::string& theirs) {
  if (ours == theirs) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat("the verifier has another ", what, " (", ours,
                                              ") than the serving node: load the ",
                                              "same model with the same settings on both"));
}

absl::Status CheckIds(absl::Span<const int32_t> ids, int64_t vocab_size) {
  for (const int32_t id : ids)
    if (id < 0 || id >= vocab_size)
      return absl::InvalidArgumentError(
          StrCat("token id ", id, " is outside 0 to ", vocab_size - 1));
  return absl::OkStatus();
}

RemoteFinish FinishOf(FinishReason reason) {
  if (reason == FinishReason::kStop) return RemoteFinish::kStop;
  return reason == FinishReason::kLength ? RemoteFinish::kLength : RemoteFinish::kNone;
}

LoopOptions LoopOptionsOf(EngineAccess::Impl* impl, const VerifierOptions& options) {
  LoopOptions loop = impl->MakeServiceLoopOptions();
  loop.max_running = options.max_sessions;
  loop.rebuild_bytes = 0;  // there is no draft KV
  loop.stagger = options.lock_step ? StaggerPolicy::kLockStep : StaggerPolicy::kStaggered;
  loop.timeline = options.timeline;
  loop.on_cache_room = [impl](int64_t bytes) { impl->LimitPrefixes(bytes); };
  return loop;
}

}  // namespace

absl::Status CheckIdentity(const RemoteIdentity& ours, const RemoteIdentity& theirs) {
  VC_RETURN_IF_ERROR(Differs("numeric contract", ours.contract, theirs.contract));
  VC_RETURN_IF_ERROR(Differs("model file", ours.model_digest, theirs.model_digest));
  VC_RETURN_IF_ERROR(Differs("tokenizer", ours.tokenizer_digest, theirs.tokenizer_digest));
  VC_RETURN_IF_ERROR(Differs("KV format", ours.kv_format, theirs.kv_format));
  return ours.rope == theirs.rope
             ? absl::OkStatus()
             : absl::FailedPreconditionError(
                   "the verifier has other rope settings than the serving node: give both the "
                   "same --rope flags");
}

RemoteIdentity RemoteIdentityOf(const EngineAccess::Impl& impl) {
  const PrefixIdentity from = impl.Identity();
  return {from.model_digest, from.tokenizer_digest, from.rope, from.kv_format, from.contract};
}

PassVerifier::PassVerifier(std::unique_ptr<Engine> engine, const VerifierOptions& options)
    : engine_(std::move(engine)),
      impl_(EngineAccess::Of(engine_.get())),
      options_(options),
      identity_(RemoteIdentityOf(*impl_)),
      row_bytes_(impl_->model->config.kv_shape().bytes_per_token()),
      loop_(impl_->MakeLoopParts(), LoopOptionsOf(impl_, options)),
      loader_(kLoaders),
      thread_([this] { Run(); }) {}

PassVerifier::~PassVerifier() { Stop(); }

void PassVerifier::Stop() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  settled_.notify_all();
  if (thread_.joinable()) thread_.join();
}

VerifierStats PassVerifier::stats() const {
  const Lock lock(mutex_);
  VerifierStats stats = stats_;
  stats.sessions = static_cast<int64_t>(sessions_.size());
  for (const auto& [name, session] : sessions_) {
    stats.prompts += session->work == Work::kPrompt;
    stats.questions += session->work == Work::kQuestion;
  }
  return stats;
}

std::vector<TimelineEvent> PassVerifier::TakeTimeline() {
  const Lock lock(mutex_);
  std::vector<TimelineEvent> events(std::make_move_iterator(timeline_.begin()),
                                    std::make_move_iterator(timeline_.end()));
  timeline_.clear();
  return events;
}

absl::Status PassVerifier::CheckRoom(uint64_t kv_bytes) const {
  if (stopping_) return absl::UnavailableError("the verifier is stopping");
  if (static_cast<int>(sessions_.size()) >= options_.max_sessions)
    return absl::ResourceExhaustedError(
        StrCat("the verifier has ", sessions_.size(), " sessions, no more fit: ask later"));
  if (options_.kv_memory > 0 && kv_bytes_ + kv_bytes > options_.kv_memory)
    return absl::ResourceExhaustedError(
        StrCat("the session needs up to ", kv_bytes, " bytes of K/V; ", kv_bytes_, " of ",
               options_.kv_memory, " are promised: ask later, or for fewer tokens"));
  return absl::OkStatus();
}

absl::StatusOr<std::string> PassVerifier::Open(const RemoteOpen& open) {
  VC_RETURN_IF_ERROR(CheckIdentity(identity_, open.identity));
  auto session = std::make_shared<Session>();
  Request& request = session->request;
  request.prompt_token_ids = open.prompt_ids;
  request.max_tokens = open.max_tokens;
  request.sampling = open.sampling;
  request.draft = "off";
  request.ignore_eos = open.ignore_eos;
  request.use_prefix_cache = open.use_prefix_cache;
  request.prefix_salt = open.prefix_salt;
  VC_ASSIGN_OR_RETURN(session->sequence, impl_->MakeSequence(request, nullptr));
  Sequence& s = *session->sequence;
  VC_RETURN_IF_ERROR(CheckIds(open.emitted_ids, impl_->model->config.vocab_size));
  session->num_before = static_cast<int64_t>(open.emitted_ids.size());
  if (session->num_before >= s.max_tokens)
    return absl::InvalidArgumentError(StrCat("the answer has ", session->num_before, " of ",
                                             s.max_tokens, " tokens: nothing is left to verify"));
  VC_RETURN_IF_ERROR(loop_.CheckRemoteFits(s, 0));
  session->emitted = open.emitted_ids;
  session->num_prompt = s.num_prompt;
  session->max_tokens = s.max_tokens;
  session->prompt_total = s.num_prompt + std::max<int64_t>(0, session->num_before - 1);
  session->kv_bytes = CeilDiv(s.num_prompt + s.max_tokens, kBlockTokens) * s.full.block_bytes();
  s.on_verified = [raw = session.get(), vocab = impl_->model->config.vocab_size](
                      TokenId, const float* logits) {
    raw->new_hashes.push_back(LogitsChain::HashOf(logits, vocab));
    return false;
  };
  const Lock lock(mutex_);
  if (absl::Status room = CheckRoom(session->kv_bytes); !room.ok()) {
    ++stats_.refused;
    return room;
  }
  session->used = Clock::now();
  session->serial = next_serial_++;
  changed_ = true;
  kv_bytes_ += session->kv_bytes;
  ++stats_.opened;
  const std::string name = RandomName();
  sessions_.emplace(name, std::move(session));
  wake_.notify_one();
  return name;
}

// What it has computed is freed by the computing thread; whoever waits for it is told.
void PassVerifier::Erase(std::map<std::string, SessionPtr>::iterator at) {
  kv_bytes_ -= at->second->kv_bytes;
  at->second->closed = true;
  sessions_.erase(at);
  changed_ = true;
  wake_.notify_one();
}

void PassVerifier::Close(const std::string& name) {
  {
    const Lock lock(mutex_);
    const auto found = sessions_.find(name);
    if (found == sessions_.end()) return;
    Erase(found);
  }
  settled_.notify_all();
}

absl::Status PassVerifier::CheckQuestion(const RemoteVerify& r) const {
  if (static_cast<int64_t>(r.drafted.size()) > options_.max_drafted)
    return absl::InvalidArgumentError(
        StrCat(r.drafted.size(), " drafted ids are more than ", options_.max_drafted));
  VC_RETURN_IF_ERROR(CheckIds(r.drafted, impl_->model->config.vocab_size));
  if (r.plain_tokens < 1 || r.plain_tokens > kMaxPlainTokens)
    return absl::InvalidArgumentError(
        StrCat("plain_tokens is ", r.plain_tokens, ", expected 1 to ", kMaxPlainTokens));
  if (!(r.wait_s >= 0)) return absl::InvalidArgumentError("wait_s is not a number of seconds");
  return absl::OkStatus();
}

// ERRORS: kDeadlineExceeded: it is not idle yet.
absl::Status PassVerifier::WaitUntilIdle(Session* session, Time deadline, Lock* lock) {
  const bool over = settled_.wait_until(*lock, deadline, [&] {
    return stopping_ || session->closed || session->work == Work::kNone;
  });
  if (stopping_) return absl::UnavailableError("the verifier is stopping");
  if (session->closed) return absl::NotFoundError("the session has been closed");
  return over ? absl::OkStatus() : absl::DeadlineExceededError("not ready");
}

absl::StatusOr<RemoteVerified> PassVerifier::Verify(const RemoteVerify& request) {
  VC_RETURN_IF_ERROR(CheckQuestion(request));
  const Time begin = Clock::now();
  const Time deadline = begin + Seconds(std::min(request.wait_s, kMaxWaitSeconds));
  Lock lock(mutex_);
  const auto found = sessions_.find(request.session);
  if (found == sessions_.end())
    return absl::NotFoundError("no such session: it was closed, or nobody asked it for too long");
  const SessionPtr session = found->second;
  ++session->num_waiting;
  absl::StatusOr<RemoteVerified> answer = AskIdle(request, session.get(), deadline, &lock);
  if (answer.ok()) FinishRows(request, &*answer, &lock);
  --session->num_waiting;
  session->used = Clock::now();
  if (answer.ok()) answer->busy_s = std::chrono::duration<double>(Clock::now() - begin).count();
  if (answer.ok()) CountOthers(*session, &*answer);
  if (!absl::IsDeadlineExceeded(answer.status())) return answer;
  RemoteVerified pending;
  CountOthers(*session, &pending);
  pending.prompt_done = session->prompt_done;
  pending.prompt_total = session->prompt_total;
  return pending;
}

// Sessions that nobody has asked for two seconds may be forgotten ones.
void PassVerifier::CountOthers(const Session& asking, RemoteVerified* answer) const {
  answer->num_answering = 1;
  for (const auto& [name, other] : sessions_) {
    if (other.get() == &asking || other->finish != FinishReason::kNone || !other->status.ok() ||
        (other->num_waiting == 0 && Clock::now() - other->used > std::chrono::seconds(2)))
      continue;
    ++(other->work == Work::kPrompt ? answer->num_prompts : answer->num_answering);
  }
}

// As the question wants them. Lets go of the lock meanwhile.
void PassVerifier::FinishRows(const RemoteVerify& r, RemoteVerified* answer, Lock* lock) {
  if (r.rows_as == RemoteRows::kPacked && !answer->rows.empty()) {
    lock->unlock();
    answer->rows = PackRows(impl_->model->config.kv_shape(), answer->rows);
    lock->lock();
  }
  stats_.rows_bytes += answer->rows.size();
}

// Tokens behind num_known that the session has and the question's draft foretells. *has_answer:
// no pass is needed: the draft ends there, or goes on otherwise than the answer.
int64_t PassVerifier::CountSettled(const Session& session, const RemoteVerify& r,
                                   bool* has_answer) {
  const absl::Span<const TokenId> news = absl::MakeConstSpan(session.emitted).subspan(r.num_known);
  const auto [here, there] =
      std::mismatch(news.begin(), news.end(), r.drafted.begin(), r.drafted.end());
  *has_answer = session.finish != FinishReason::kNone || here != news.end() ||
                (!news.empty() && there == r.drafted.end());
  return here - news.begin();
}

absl::StatusOr<RemoteVerified> PassVerifier::AskIdle(const RemoteVerify& r, Session* session,
                                                     Time deadline, Lock* lock) {
  VC_RETURN_IF_ERROR(WaitUntilIdle(session, deadline, lock));
  VC_RETURN_IF_ERROR(session->status);
  const int64_t num_emitted = std::ssize(session->emitted);
  if (r.num_known < session->num_before || r.num_known > num_emitted)
    return absl::InvalidArgumentError(StrCat("the serving node knows ", r.num_known,
                                             " tokens of an answer whose verifier has ",
                                             session->num_before, " to ", num_emitted));
  if (r.rows_begin > session->num_rows)
    return absl::InvalidArgumentError(
        StrCat("rows from ", r.rows_begin, " on are asked for; ", session->num_rows, " are there"));
  bool has_answer = false;
  const int64_t num_settled = CountSettled(*session, r, &has_answer);
  session->rows_wanted = r.rows_begin;
  if (!has_answer) {
    session->drafted.assign(r.drafted.begin() + num_settled, r.drafted.end());
    session->plain_tokens = r.plain_tokens;
    Begin(Work::kQuestion, session);
    VC_RETURN_IF_ERROR(WaitUntilIdle(session, deadline, lock));
    VC_RETURN_IF_ERROR(session->status);
  }
  // Another answer has taken them along, or nothing had to be computed.
  const bool goes_on = session->finish == FinishReason::kNone;
  if (goes_on && r.rows_begin >= 0 && session->rows_at != r.rows_begin) {
    session->rows_wanted = r.rows_begin;
    Begin(Work::kRows, session);
    VC_RETURN_IF_ERROR(WaitUntilIdle(session, deadline, lock));
    VC_RETURN_IF_ERROR(session->status);
  }
  return MakeAnswer(r, session);
}

void PassVerifier::Begin(Work work, Session* session) {
  session->work = work;
  session->taken = false;
  session->rows_at = -1;
  session->rows.clear();
  changed_ = true;
  wake_.notify_one();
}

RemoteVerified PassVerifier::MakeAnswer(const RemoteVerify& r, Session* session) {
  RemoteVerified answer;
  answer.ready = true;
  answer.prompt_done = answer.prompt_total = session->prompt_total;
  answer.emitted.assign(session->emitted.begin() + r.num_known, session->emitted.end());
  answer.row_hashes.assign(session->row_hashes.begin() + (r.num_known - session->num_before),
                           session->row_hashes.end());
  answer.finish = FinishOf(session->finish);
  if (r.rows_begin < 0 || session->rows_at != r.rows_begin) return answer;
  answer.rows = std::move(session->rows);
  session->rows.clear();
  session->rows_at = -1;
  return answer;
}

// --- The thread that computes --------------------------------------------------------------------

void PassVerifier::Run() {
  Lock lock(mutex_);
  while (!stopping_) {
    CloseForgotten();
    changed_ = false;
    const std::vector<SessionPtr> work = TakeWork();
    lock.unlock();
    TakeLoaded();
    for (const SessionPtr& session : work) DoWork(session);
    const bool more = loop_.Step();
    PublishStats();
    lock.lock();
    if (!more) wake_.wait_for(lock, kLookAround, [this] { return stopping_ || changed_; });
  }
}

void PassVerifier::CloseForgotten() {
  const Time oldest = Clock::now() - Seconds(options_.idle_s);
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const auto at = it++;
    if (at->second->num_waiting > 0 || at->second->used >= oldest) continue;
    ++stats_.expired;
    Erase(at);
  }
  for (const auto& [id, session] : in_loop_)
    if (session->closed) loop_.Cancel(id);
}

// All questions, and one prompt: the next one may begin like it.
std::vector<PassVerifier::SessionPtr> PassVerifier::TakeWork() {
  std::vector<SessionPtr> work;
  SessionPtr prompt;
  for (const auto& [name, session] : sessions_) {
    if (session->work == Work::kNone || session->taken) continue;
    if (session->work == Work::kPrompt) {
      if (prompt != nullptr && prompt->serial < session->serial) continue;
      if (!AwaitsPrompt(*session)) prompt = session;
      continue;
    }
    session->taken = true;
    work.push_back(session);
  }
  std::sort(work.begin(), work.end(),
            [](const SessionPtr& a, const SessionPtr& b) { return a->serial < b->serial; });
  if (prompt == nullptr) return work;
  prompt->taken = true;
  changed_ = true;  // there may be another one
  work.push_back(std::move(prompt));
  return work;
}

// Tokens that both begin with, if one may have the other's K/V.
int64_t PassVerifier::CommonPrompt(const Session& a, const Session& b) {
  const Request &ours = a.request, &theirs = b.request;
  if (!ours.use_prefix_cache || !theirs.use_prefix_cache || ours.prefix_salt != theirs.prefix_salt)
    return 0;
  return CommonTokens(ours.prompt_token_ids, theirs.prompt_token_ids);
}

// Who begins like one whose prompt is being read or computed waits for it, if that is sooner than
// both doing the same side by side.
bool PassVerifier::AwaitsPrompt(const Session& session) const {
  if (impl_->prefixes == nullptr) return false;
  for (const SessionPtr& other : loading_)
    if (CommonPrompt(session, *other) >= kBlockTokens) return true;
  for (const auto& [id, other] : in_loop_) {
    if (other->begun) continue;
    const int64_t common = CommonPrompt(session, *other);
    const int64_t left = other->prompt_total - other->prompt_done;
    if (common >= kBlockTokens && left <= session.num_prompt + common) return true;
  }
  return false;
}

void PassVerifier::DoWork(const SessionPtr& session) {
  if (session->work == Work::kPrompt) {
    LoadPrefix(session);
  } else if (session->work == Work::kQuestion) {
    const absl::Status asked = loop_.Ask(session->id, session->drafted, session->plain_tokens);
    if (!asked.ok()) Settle(asked, nullptr, session.get());
  } else if (const Sequence* s = loop_.Find(session->id); s != nullptr) {
    Settle(absl::OkStatus(), s, session.get());
  } else {
    Settle(absl::NotFoundError("the session has ended"), nullptr, session.get());
  }
}

// What another session has of the same beginning: under a budget the prefix cache has what is left
// of it, which is often nothing.
void PassVerifier::BorrowPrefix(const Request& request, Sequence* s) const {
  if (impl_->prefixes == nullptr || !request.use_prefix_cache) return;
  const Sequence* best = nullptr;
  int64_t longest = kBlockTokens - 1;
  for (const auto& [id, other] : in_loop_) {
    const Sequence* theirs = loop_.Find(id);
    if (theirs == nullptr || !other->request.use_prefix_cache ||
        other->request.prefix_salt != request.prefix_salt)
      continue;
    // The prompt's last row is always computed: its logits choose the first token.
    const int64_t most = std::min(theirs->full.num_tokens(), s->num_prompt - 1);
    const int64_t common = CommonTokens(absl::MakeConstSpan(theirs->tokens).first(most), s->tokens);
    if (common <= longest) continue;
    longest = common;
    best = theirs;
  }
  if (best != nullptr) s->full = best->full.Fork(longest);
}

// A store is read beside the passes of others.
void PassVerifier::LoadPrefix(const SessionPtr& session) {
  Sequence& s = *session->sequence;
  BorrowPrefix(session->request, &s);
  std::unique_ptr<PrefixLookup> lookup = impl_->PlanPrefix(session->request, s, PrefixUse::kShared);
  session->load = loader_.StartOrLoad(&lookup, [this] {
    const Lock lock(mutex_);
    changed_ = true;
    wake_.notify_one();
  });
  if (session->load == nullptr) return UsePrefix(std::move(lookup), session);
  loading_.push_back(session);
}

void PassVerifier::TakeLoaded() {
  std::vector<SessionPtr> loaded;
  std::erase_if(loading_, [&](const SessionPtr& session) {
    {
      const Lock lock(mutex_);
      if (session->closed) session->load->Cancel();
    }
    if (!session->load->done()) return false;
    loaded.push_back(session);
    return true;
  });
  for (const SessionPtr& session : loaded)
    UsePrefix(std::exchange(session->load, nullptr)->Take(), session);
}

void PassVerifier::UsePrefix(std::unique_ptr<PrefixLookup> lookup, const SessionPtr& session) {
  if (lookup != nullptr)
    impl_->TakePrefix(std::move(lookup), PrefixUse::kShared, session->sequence.get());
  BeginPrompt(session);
}

void PassVerifier::BeginPrompt(const SessionPtr& session) {
  std::unique_ptr<Sequence> s = std::move(session->sequence);
  session->cached_tokens = s->full.num_tokens();
  {
    const Lock lock(mutex_);
    session->prompt_done = session->cached_tokens;
  }
  s->tokens.insert(s->tokens.end(), session->emitted.begin(), session->emitted.end());
  LoopHooks hooks;
  hooks.index = session->serial;
  hooks.on_prefill = [this, session](int64_t done, int64_t total) {
    const Lock lock(mutex_);
    if (!session->begun) session->prompt_done = done;
    return !session->closed;
  };
  hooks.on_parked = [this, session](const Sequence& sequence) {
    PromptIsOver(sequence, session.get());
    Settle(absl::OkStatus(), &sequence, session.get());
  };
  hooks.on_end = [this, session](std::unique_ptr<Sequence> sequence, const RequestTimes&) {
    in_loop_.erase(session->id);
    if (absl::IsCancelled(sequence->error)) sequence->finish = FinishReason::kNone;
    PromptIsOver(*sequence, session.get());
    absl::Status status = sequence->error;
    if (status.ok() && !sequence->done()) status = absl::NotFoundError("the session was closed");
    Settle(std::move(status), sequence.get(), session.get());
  };
  const absl::StatusOr<RequestId> id = loop_.AddRemote(std::move(s), std::move(hooks));
  if (!id.ok()) return Settle(id.status(), nullptr, session.get());
  session->id = *id;
  in_loop_.emplace(*id, session);
}

// Computed, or given up: the rows that are there hold all the same.
void PassVerifier::PromptIsOver(const Sequence& s, Session* session) {
  if (std::exchange(session->begun, true)) return;
  impl_->KeepPrefix(session->request, s, session->cached_tokens);
}

// Rows that cannot be read are missed by the other side's drafts alone.
void PassVerifier::CopyRows(const Sequence& s, int64_t begin, std::string* rows) const {
  const int64_t most = std::max<int64_t>(1, options_.max_rows_bytes / row_bytes_);
  const int64_t end = std::min(s.full.num_tokens(), begin + most);
  if (begin < end && !AppendRows(s.full, begin, end, rows).ok()) rows->clear();
}

// Its work is done, or has come to its end with `status`. s: null where nothing has changed.
void PassVerifier::Settle(absl::Status status, const Sequence* s, Session* session) {
  std::string rows;
  const int64_t begin = session->rows_wanted;
  const bool copies = s != nullptr && status.ok() && !s->done() && begin >= 0;
  if (copies) CopyRows(*s, begin, &rows);
  {
    const Lock lock(mutex_);
    if (s != nullptr && status.ok()) {
      const auto news = s->tokens.begin() + session->num_prompt + std::ssize(session->emitted);
      session->emitted.insert(session->emitted.end(), news, s->tokens.end());
      session->row_hashes.insert(session->row_hashes.end(), session->new_hashes.begin(),
                                 session->new_hashes.end());
      session->new_hashes.clear();
      session->num_rows = s->full.num_tokens();
      session->finish = s->finish;
      session->rows = std::move(rows);
      session->rows_at = copies ? begin : -1;
      CountRounds(*s, session);
    }
    if (!status.ok() && !session->closed) ++stats_.failed;
    session->status = std::move(status);
    session->work = Work::kNone;
    changed_ = true;
  }
  settled_.notify_all();
}

void PassVerifier::CountRounds(const Sequence& s, Session* session) {
  for (; session->rounds_counted < s.rounds.size(); ++session->rounds_counted) {
    const RoundStats& round = s.rounds[session->rounds_counted];
    ++stats_.verifications;
    stats_.drafted += round.drafted;
    stats_.accepted += round.accepted;
    stats_.emitted += round.emitted;
  }
}

void PassVerifier::PublishStats() {
  const KvBytes bytes = loop_.kv_bytes();
  const BatchReport& report = loop_.report();
  std::vector<TimelineEvent> events = loop_.TakeTimeline();
  const Lock lock(mutex_);
  for (TimelineEvent& event : events) timeline_.push_back(std::move(event));
  while (timeline_.size() > kMostEvents) timeline_.pop_front();
  stats_.passes = report.num_passes;
  stats_.preempted = report.num_preempted;
  stats_.pass_s = report.pass_s;
  stats_.stall_s = report.stall_s;
  stats_.fetch_s = report.fetch_s;
  stats_.fetched_bytes = report.fetched_bytes;
  stats_.peak_kv_bytes = report.peak_kv_bytes;
  stats_.kv_ram_bytes = bytes.ram;
  stats_.kv_spilled_bytes = bytes.spilled;
}

absl::StatusOr<std::unique_ptr<VerifierHost>> StartVerifier(std::unique_ptr<Engine> engine,
                                                            const VerifierOptions& options) {
  if (engine == nullptr) return absl::InvalidArgumentError("a verifier needs an engine");
  if (options.max_sessions < 1 || !(options.idle_s > 0) || options.idle_s > 1e7)
    return absl::InvalidArgumentError("max_sessions and idle_s of a verifier must be above 0");
  if (options.max_drafted < 1 || options.max_drafted >= kMaxPassRows)
    return absl::InvalidArgumentError(
        StrCat("max_drafted is ", options.max_drafted, ", expected 1 to ", kMaxPassRows - 1));
  VC_RETURN_IF_ERROR(engine->ModelDigest().status());
  return std::make_unique<PassVerifier>(std::move(engine), options);
}

}  // namespace vericache
