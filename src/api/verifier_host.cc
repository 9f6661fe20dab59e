#include "api/verifier_host.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"
#include "kv/kv_rows.h"

namespace vericache {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMaxWaitSeconds = 60;
constexpr int kMaxPlainTokens = 256;
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
      prefill_(impl_->model.get(), impl_->forward.get(), impl_->pool.get()),
      runner_(impl_->model.get(), impl_->forward.get(), impl_->pool.get()),
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
  return stats;
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
  session->emitted_before = open.emitted_ids;
  session->prompt_total = s.num_prompt + std::max<int64_t>(0, session->num_before - 1);
  session->kv_bytes = CeilDiv(s.num_prompt + s.max_tokens, kBlockTokens) * s.full.block_bytes();
  s.on_verified = [raw = session.get(), vocab = impl_->model->config.vocab_size](
                      TokenId, const float* logits) {
    raw->row_hashes.push_back(LogitsChain::HashOf(logits, vocab));
    return false;
  };
  const Lock lock(mutex_);
  if (absl::Status room = CheckRoom(session->kv_bytes); !room.ok()) {
    ++stats_.refused;
    return room;
  }
  session->used = Clock::now();
  session->turn = next_turn_++;
  kv_bytes_ += session->kv_bytes;
  ++stats_.opened;
  const std::string name = RandomName();
  sessions_.emplace(name, std::move(session));
  wake_.notify_one();
  return name;
}

void PassVerifier::EraseIfClosed(const std::string& name, const Session& session) {
  if (!session.closed || !session.idle() || sessions_.erase(name) == 0) return;
  kv_bytes_ -= session.kv_bytes;
}

void PassVerifier::Close(const std::string& name) {
  {
    const Lock lock(mutex_);
    const auto found = sessions_.find(name);
    if (found == sessions_.end()) return;
    const std::shared_ptr<Session> session = found->second;
    session->closed = true;
    EraseIfClosed(name, *session);
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
  const bool over = settled_.wait_until(
      *lock, deadline, [&] { return stopping_ || session->closed || session->idle(); });
  if (stopping_) return absl::UnavailableError("the verifier is stopping");
  if (session->closed) return absl::NotFoundError("the session has been closed");
  return over ? absl::OkStatus() : absl::DeadlineExceededError("not ready");
}

absl::StatusOr<RemoteVerified> PassVerifier::Verify(const RemoteVerify& request) {
  VC_RETURN_IF_ERROR(CheckQuestion(request));
  const Time deadline = Clock::now() + Seconds(std::min(request.wait_s, kMaxWaitSeconds));
  Lock lock(mutex_);
  const auto found = sessions_.find(request.session);
  if (found == sessions_.end() || found->second->closed)
    return absl::NotFoundError("no such session: it was closed, or nobody asked it for too long");
  const std::shared_ptr<Session> session = found->second;
  ++session->num_waiting;
  absl::StatusOr<RemoteVerified> answer = AskIdle(request, session, deadline, &lock);
  --session->num_waiting;
  session->used = Clock::now();
  EraseIfClosed(request.session, *session);
  if (!absl::IsDeadlineExceeded(answer.status())) return answer;
  RemoteVerified pending;
  pending.prompt_done = session->prompt_done;
  pending.prompt_total = session->prompt_total;
  return pending;
}

// Tokens behind num_known that the session has and the question's draft foretells. *has_answer:
// no pass is needed: the draft ends there, or goes on otherwise than the answer.
int64_t PassVerifier::CountSettled(const Session& session, const RemoteVerify& r,
                                   bool* has_answer) {
  const Sequence& s = *session.sequence;
  const absl::Span<const TokenId> news =
      absl::MakeConstSpan(s.tokens).subspan(s.num_prompt + r.num_known);
  const auto [here, there] =
      std::mismatch(news.begin(), news.end(), r.drafted.begin(), r.drafted.end());
  *has_answer = s.done() || here != news.end() || (!news.empty() && there == r.drafted.end());
  return here - news.begin();
}

absl::StatusOr<RemoteVerified> PassVerifier::AskIdle(const RemoteVerify& r,
                                                     const std::shared_ptr<Session>& session,
                                                     Time deadline, Lock* lock) {
  VC_RETURN_IF_ERROR(WaitUntilIdle(session.get(), deadline, lock));
  const Sequence& s = *session->sequence;
  VC_RETURN_IF_ERROR(s.error);
  if (r.num_known < session->num_before || r.num_known > s.num_emitted())
    return absl::InvalidArgumentError(StrCat("the serving node knows ", r.num_known,
                                             " tokens of an answer whose verifier has ",
                                             session->num_before, " to ", s.num_emitted()));
  if (r.rows_begin > s.full.num_tokens())
    return absl::InvalidArgumentError(StrCat("rows from ", r.rows_begin, " on are asked for; ",
                                             s.full.num_tokens(), " are there"));
  bool has_answer = false;
  const int64_t num_settled = CountSettled(*session, r, &has_answer);
  if (!has_answer) {
    BeginWork(r, num_settled, session.get());
    VC_RETURN_IF_ERROR(WaitUntilIdle(session.get(), deadline, lock));
    VC_RETURN_IF_ERROR(s.error);
  }
  return MakeAnswer(r, session.get(), lock);
}

void PassVerifier::BeginWork(const RemoteVerify& r, int64_t num_settled, Session* session) {
  Sequence& s = *session->sequence;
  // The pass emits one token more than it accepts.
  const int64_t room = s.max_tokens - s.num_emitted() - 1;
  const int64_t left = static_cast<int64_t>(r.drafted.size()) - num_settled;
  s.drafted.clear();
  for (int64_t i = 0; i < std::min(room, left); ++i)
    s.drafted.push_back({r.drafted[num_settled + i]});
  session->plain_left = left > 0 ? 1 : r.plain_tokens;
  session->work = Work::kVerify;
  session->turn = next_turn_++;
  wake_.notify_one();
}

absl::StatusOr<RemoteVerified> PassVerifier::MakeAnswer(const RemoteVerify& r, Session* session,
                                                        Lock* lock) {
  const Sequence& s = *session->sequence;
  RemoteVerified answer;
  answer.ready = true;
  answer.prompt_done = answer.prompt_total = session->prompt_total;
  answer.emitted.assign(s.tokens.begin() + s.num_prompt + r.num_known, s.tokens.end());
  answer.row_hashes.assign(session->row_hashes.begin() + (r.num_known - session->num_before),
                           session->row_hashes.end());
  answer.finish = FinishOf(s.finish);
  if (r.rows_begin < 0) return answer;
  const int64_t most = std::max<int64_t>(1, options_.max_rows_bytes / row_bytes_);
  const int64_t end = std::min(s.full.num_tokens(), r.rows_begin + most);
  session->copying = true;
  lock->unlock();
  const absl::Status status = AppendRows(s.full, r.rows_begin, end, &answer.rows);
  lock->lock();
  session->copying = false;
  settled_.notify_all();
  VC_RETURN_IF_ERROR(status);
  stats_.rows_bytes += answer.rows.size();
  return answer;
}

// --- The thread that computes --------------------------------------------------------------------

void PassVerifier::Run() {
  Lock lock(mutex_);
  while (!stopping_) {
    CloseForgotten();
    const Sessions sessions = TakeWork();
    if (sessions.empty()) {
      wake_.wait_for(lock, kLookAround);
      continue;
    }
    lock.unlock();
    RunPass(sessions);
    lock.lock();
    ++stats_.passes;
    for (const std::shared_ptr<Session>& session : sessions) Settle(session.get());
    settled_.notify_all();
  }
}

void PassVerifier::CloseForgotten() {
  const Time oldest = Clock::now() - Seconds(options_.idle_s);
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    Session& session = *it->second;
    const bool forgotten = session.num_waiting == 0 && session.used < oldest;
    if (forgotten && !session.closed) ++stats_.expired;
    session.closed = session.closed || forgotten;
    if (!session.closed || !session.idle()) {
      ++it;
      continue;
    }
    kv_bytes_ -= session.kv_bytes;
    it = sessions_.erase(it);
  }
}

PassVerifier::Sessions PassVerifier::TakeWork() {
  Sessions sessions;
  for (auto& [name, session] : sessions_) {
    if (session->work == Work::kNone) continue;
    // Nobody waits for it: what is computed already may stay in the prefix cache.
    if (session->closed && session->num_waiting == 0) {
      session->work = Work::kNone;
      continue;
    }
    sessions.push_back(session);
  }
  std::sort(sessions.begin(), sessions.end(),
            [](const auto& a, const auto& b) { return a->turn < b->turn; });
  return sessions;
}

void PassVerifier::BeginPrompt(Session* session) {
  Sequence& s = *session->sequence;
  session->begun = true;
  impl_->UsePrefix(session->request, &s, /*alone=*/false);
  session->cached_tokens = s.full.num_tokens();
  s.tokens.insert(s.tokens.end(), session->emitted_before.begin(), session->emitted_before.end());
  session->prompt.emplace(&s, impl_->model.get(), impl_->forward.get(), &prefill_,
                          impl_->pool.get(), impl_->MakePrefillOptions({}));
}

// Verifications first: somebody far away waits for them. Prompts share what a chunk has.
void PassVerifier::RunPass(const Sessions& sessions) {
  items_.clear();
  int64_t rows = 0, prompt_rows = impl_->MakePrefillOptions({}).chunk_rows;
  for (const std::shared_ptr<Session>& session : sessions) {
    if (session->work != Work::kVerify) continue;
    const int64_t more = static_cast<int64_t>(session->sequence->drafted.size()) + 1;
    if (rows + more > kMaxPassRows) continue;
    rows += more;
    StepItem& item = items_.emplace_back();
    item.sequence = session->sequence.get();
    item.kind = StepKind::kVerify;
  }
  prompt_rows = std::min(prompt_rows, kMaxPassRows - rows);
  for (const std::shared_ptr<Session>& session : sessions) {
    if (session->work != Work::kPrompt || prompt_rows == 0) continue;
    if (!session->begun) BeginPrompt(session.get());
    StepItem& item = items_.emplace_back();
    item.sequence = session->sequence.get();
    item.kind = StepKind::kPrompt;
    item.rows = std::min(prompt_rows, session->prompt->rows_left());
    item.prompt = &*session->prompt;
    prompt_rows -= item.rows;
  }
  runner_.Run(absl::MakeSpan(items_), /*with_confidence=*/false);
  for (const std::shared_ptr<Session>& session : sessions) {
    const Sequence& s = *session->sequence;
    if (session->work == Work::kPrompt && session->begun && s.error.ok() &&
        session->prompt->rows_left() == 0)
      impl_->KeepPrefix(session->request, s, session->cached_tokens);
  }
}

// What the pass has left to do; who was not in it goes on waiting.
void PassVerifier::Settle(Session* session) {
  const Sequence& s = *session->sequence;
  if (session->work == Work::kPrompt) {
    if (!session->begun) return;
    session->prompt_done = s.full.num_tokens();
    if (s.done() || session->prompt->rows_left() == 0) {
      session->prompt.reset();
      session->work = Work::kNone;
    }
    return;
  }
  const bool ran = std::any_of(items_.begin(), items_.end(),
                               [&](const StepItem& item) { return item.sequence == &s; });
  if (!ran) return;
  ++stats_.verifications;
  if (!s.rounds.empty()) {
    stats_.drafted += s.rounds.back().drafted;
    stats_.accepted += s.rounds.back().accepted;
    stats_.emitted += s.rounds.back().emitted;
  }
  if (--session->plain_left > 0 && !s.done()) return;
  session->work = Work::kNone;
}

absl::StatusOr<std::unique_ptr<VerifierHost>> StartVerifier(std::unique_ptr<Engine> engine,
                                                            const VerifierOptions& options) {
  if (engine == nullptr) return absl::InvalidArgumentError("a verifier needs an engine");
  if (options.max_sessions < 1 || !(options.idle_s > 0) || options.idle_s > 1e7)
    return absl::InvalidArgumentError("max_sessions and idle_s of a verifier must be above 0");
  if (options.max_drafted < 1 || options.max_drafted >= kMaxPassRows)
    return absl::InvalidArgumentError(
        StrCat("max_drafted is ", options.max_drafted, ", expected 1 to ", kMaxPassRows - 1));
  if (EngineAccess::Of(engine.get())->tier != nullptr)
    return absl::InvalidArgumentError(
        "a verifier keeps its K/V in RAM: bound them by VerifierOptions::kv_memory");
  VC_RETURN_IF_ERROR(engine->ModelDigest().status());
  return std::make_unique<PassVerifier>(std::move(engine), options);
}

}  // namespace vericache
