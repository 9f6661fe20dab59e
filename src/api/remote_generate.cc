// The serving node's side of remote drafting: draft on a stored draft KV, ask a verifier, go on.
//
// Nothing here can make an answer wrong: every token comes from a verifier's full KV, or from this
// node's own. What a reply says is checked for what it can be, not for what it must be.
#include <algorithm>
#include <chrono>
#include <utility>

#include "api/answer_stream.h"
#include "api/engine_impl.h"
#include "api/verifier_host.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/drafter.h"
#include "engine/round.h"
#include "kv/kv_rows.h"
#include "vericache/remote.h"

namespace vericache {
namespace {

// No other question to the same verifier will fare better.
bool IsFinal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsUnauthenticated(status) ||
         absl::IsPermissionDenied(status) || absl::IsInvalidArgument(status) ||
         absl::IsOutOfRange(status) || absl::IsUnimplemented(status);
}

int64_t NowNs() { return static_cast<int64_t>(NowSeconds() * 1e9); }

// One call of GenerateRemote().
class RemoteRun {
 public:
  RemoteRun(Engine* engine, const Request& request, const std::vector<RemoteVerifier*>& verifiers,
            const RemoteOptions& options, const Callbacks& callbacks, RemoteStats* stats)
      : engine_(engine),
        impl_(EngineAccess::Of(engine)),
        request_(request),
        verifiers_(verifiers),
        options_(options),
        callbacks_(callbacks),
        stats_(stats),
        stream_(*impl_->tokenizer, callbacks_),
        drafter_(impl_->model.get(), impl_->forward.get()) {}

  absl::StatusOr<Completion> Run();

 private:
  RemoteVerifier* verifier() { return verifiers_[current_]; }
  bool AnyVerifier() const { return current_ < verifiers_.size(); }
  void FetchDraft();
  absl::Status Open();
  void Lost(const absl::Status& status);
  void MakeDraft();
  void ComputeProvisional();
  absl::StatusOr<RemoteVerified> Ask();
  absl::Status Check(const RemoteVerified& reply) const;
  absl::Status Take(const RemoteVerified& reply);
  absl::StatusOr<Completion> Finish();
  absl::StatusOr<Completion> GoOnAlone();
  absl::Status ComputeAlone();

  Engine* engine_;
  EngineAccess::Impl* impl_;
  const Request& request_;
  const std::vector<RemoteVerifier*>& verifiers_;
  const RemoteOptions& options_;
  const Callbacks& callbacks_;
  RemoteStats* stats_;
  std::unique_ptr<Sequence> s_;  // its full KV stays empty until this node is alone
  AnswerStream stream_;
  Drafter drafter_;
  HiddenRows hidden_;
  size_t current_ = 0;      // of verifiers_; those before it are lost
  int failures_ = 0;        // of the current one, since it was last of use
  std::string session_;     // "": none is open
  std::string why_;         // the last thing that failed
  bool has_draft_ = false;  // s_->drafted is of this round
  int64_t draft_ns_ = 0;
  int64_t cached_ = 0;
  double start_s_ = NowSeconds();
  RequestTimes times_;
};

void RemoteRun::FetchDraft() {
  if (!s_->spec.enabled || !request_.use_prefix_cache || !impl_->PrefixesHold()) return;
  std::optional<DraftKv> draft = impl_->prefixes->FindDraftAlone(
      s_->tokens, request_.prefix_salt, s_->spec, impl_->RecomputeSeconds(*s_));
  if (!draft.has_value()) return;
  stats_->draft_tokens = draft->num_tokens();
  stats_->draft_bytes = draft->num_bytes();
  s_->draft.emplace(std::move(*draft));
}

absl::Status RemoteRun::Open() {
  RemoteOpen open;
  open.identity = RemoteIdentityOf(*impl_);
  open.prompt_ids.assign(s_->tokens.begin(), s_->tokens.begin() + s_->num_prompt);
  open.emitted_ids.assign(s_->tokens.begin() + s_->num_prompt, s_->tokens.end());
  open.max_tokens = s_->max_tokens;
  open.sampling = request_.sampling;
  open.ignore_eos = request_.ignore_eos;
  open.use_prefix_cache = request_.use_prefix_cache;
  open.prefix_salt = request_.prefix_salt;
  VC_ASSIGN_OR_RETURN(session_, verifier()->Open(open));
  ++stats_->opened;
  return absl::OkStatus();
}

// Counts a failed call; after enough of them the next verifier is tried.
void RemoteRun::Lost(const absl::Status& status) {
  ++stats_->failed_calls;
  ++failures_;
  why_ = StrCat(verifier()->name(), ": ", status.message());
  // A session that is not known there, or has failed, is opened anew.
  if (!absl::IsDataLoss(status) && !absl::IsUnavailable(status) &&
      !absl::IsDeadlineExceeded(status))
    session_.clear();
  if (failures_ < options_.tries && !IsFinal(status)) return;
  impl_->Tell(StrCat("verifier lost: ", why_));
  // One that does not answer closes the session by itself, in time.
  if (!session_.empty() && !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status))
    verifier()->Close(session_);
  session_.clear();
  failures_ = 0;
  ++current_;
}

// The rows behind the draft KV's exact ones, on the draft KV itself: approximate, thrown away with
// the round, and as good as drafted ones.
void RemoteRun::ComputeProvisional() {
  DraftKv& draft = *s_->draft;
  const int64_t end = static_cast<int64_t>(s_->tokens.size()) - 1;
  const int64_t chunk = std::clamp<int64_t>(impl_->options.prefill_chunk, 1, kMaxPassRows);
  draft.ReserveRows(end - draft.num_tokens() + options_.draft_len);
  for (int64_t pos = draft.num_tokens(); pos < end; pos += chunk) {
    const int64_t rows = std::min(chunk, end - pos);
    RowGroup group;
    group.tokens = absl::MakeConstSpan(s_->tokens).subspan(pos, rows);
    group.first_pos = pos;
    group.kv = &draft;
    group.logits_begin = rows;
    impl_->forward->Run({&group, 1}, &hidden_);
    stats_->provisional_rows += rows;
  }
}

void RemoteRun::MakeDraft() {
  has_draft_ = true;
  s_->drafted.clear();
  draft_ns_ = 0;
  if (!s_->draft.has_value()) return;
  s_->draft->Rollback();
  const int64_t left = s_->max_tokens - s_->num_emitted() - 1;
  const int wanted = request_.draft_len > 0 ? request_.draft_len : options_.draft_len;
  const int length = static_cast<int>(std::min<int64_t>(wanted, left));
  // A draft KV of the whole prompt has the last token's row, which drafting would begin with.
  if (length <= 0 || s_->draft->num_tokens() > static_cast<int64_t>(s_->tokens.size()) - 1) return;
  const int64_t start = NowNs();
  ComputeProvisional();
  Sequence* sequence = s_.get();
  drafter_.Draft({&sequence, 1}, {&length, 1});
  draft_ns_ = NowNs() - start;
}

// Asks until there is an answer, or no sign of one for too long.
absl::StatusOr<RemoteVerified> RemoteRun::Ask() {
  RemoteVerify question;
  question.session = session_;
  question.num_known = s_->num_emitted();
  for (const DraftToken token : s_->drafted) question.drafted.push_back(token.id);
  // A draft KV that could not draft this time wants its rows soon.
  question.plain_tokens = s_->draft.has_value() ? 1 : options_.plain_tokens;
  if (s_->draft.has_value()) question.rows_begin = s_->draft->num_tokens();
  question.wait_s = options_.wait_s;
  double progress_s = NowSeconds();
  int64_t done = -1;
  for (;;) {
    VC_ASSIGN_OR_RETURN(RemoteVerified reply, verifier()->Verify(question));
    if (reply.ready) return reply;
    if (reply.prompt_done > done) progress_s = NowSeconds();
    done = std::max(done, reply.prompt_done);
    if (NowSeconds() - progress_s > options_.stall_s)
      return absl::AbortedError(StrCat("it has computed nothing for ", options_.stall_s, " s"));
    if (callbacks_.on_prefill && s_->num_emitted() == 0 && reply.prompt_total > 0 &&
        !callbacks_.on_prefill(reply.prompt_done, reply.prompt_total))
      return absl::CancelledError("stopped during prefill");
  }
}

// A reply comes from a machine that is trusted to compute, through a network that is not.
absl::Status RemoteRun::Check(const RemoteVerified& reply) const {
  const int64_t count = static_cast<int64_t>(reply.emitted.size());
  const int64_t total = s_->num_emitted() + count;
  const int64_t most =
      std::max<int64_t>(s_->drafted.size() + 1, s_->draft.has_value() ? 1 : options_.plain_tokens);
  if (count == 0 || count > most || total > s_->max_tokens)
    return absl::DataLossError(StrCat("its reply has ", count, " tokens"));
  if (reply.row_hashes.size() != reply.emitted.size())
    return absl::DataLossError("its reply has not a hash for each token");
  for (int64_t i = 0; i < count; ++i) {
    const TokenId id = reply.emitted[i];
    if (id < 0 || id >= impl_->model->config.vocab_size)
      return absl::DataLossError("its reply has a token outside the vocabulary");
    const bool last = i + 1 == count, ends = s_->ends_generation(id);
    const RemoteFinish finish = ends                              ? RemoteFinish::kStop
                                : last && total == s_->max_tokens ? RemoteFinish::kLength
                                                                  : RemoteFinish::kNone;
    if (last ? finish != reply.finish : ends)
      return absl::DataLossError("its reply does not end where its tokens do");
  }
  return absl::OkStatus();
}

absl::Status RemoteRun::Take(const RemoteVerified& reply) {
  VC_RETURN_IF_ERROR(Check(reply));
  Sequence& s = *s_;
  std::optional<KvRows> rows;
  if (s.draft.has_value()) {
    VC_ASSIGN_OR_RETURN(
        rows, KvRows::Parse(impl_->model->config.kv_shape(), s.draft->num_tokens(), reply.rows));
    if (rows->pos_end() > static_cast<int64_t>(s.tokens.size() + reply.emitted.size()) - 1)
      return absl::DataLossError("its reply has K/V of tokens that are not there");
  } else if (!reply.rows.empty()) {
    return absl::DataLossError("its reply has K/V that nobody asked for");
  }
  RoundStats& round = s.rounds.emplace_back();
  round.drafted = static_cast<int>(s.drafted.size());
  round.emitted = static_cast<int>(reply.emitted.size());
  while (round.accepted < std::min(round.drafted, round.emitted) &&
         s.drafted[round.accepted].id == reply.emitted[round.accepted])
    ++round.accepted;
  round.mode = "remote";
  round.draft_ns = draft_ns_;
  round.draft_bytes = s.draft.has_value() ? s.draft->num_bytes() : 0;
  round.full_bytes = impl_->model->config.kv_shape().bytes_per_token() * (s.tokens.size() - 1);
  for (const LogitsChain::RowHash& hash : reply.row_hashes) s.chain.Push(hash);
  s.tokens.insert(s.tokens.end(), reply.emitted.begin(), reply.emitted.end());
  s.drafted.clear();
  has_draft_ = false;
  if (reply.finish == RemoteFinish::kStop) s.finish = FinishReason::kStop;
  if (reply.finish == RemoteFinish::kLength) s.finish = FinishReason::kLength;
  if (rows.has_value()) {
    s.draft->CommitRowsOf([&](int layer) { return rows->Layer(layer); }, rows->pos_begin(),
                          rows->pos_end(), impl_->pool.get());
    stats_->rows_bytes += reply.rows.size();
  }
  ++stats_->rounds;
  stats_->drafted += round.drafted;
  stats_->accepted += round.accepted;
  stats_->remote_tokens += round.emitted;
  stats_->verifier = verifier()->name();
  failures_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<Completion> RemoteRun::Finish() {
  Completion completion = impl_->Finish(*s_, cached_, times_.first_token_s);
  completion.stats.full_bytes =
      impl_->model->config.kv_shape().bytes_per_token() * (s_->tokens.size() - 1);
  times_.end_s = NowSeconds() - start_s_;
  completion.stats.times = times_;
  return completion;
}

// K/V of the prompt and of what is emitted, then rounds on this node's own full KV.
absl::Status RemoteRun::ComputeAlone() {
  Sequence& s = *s_;
  std::vector<TokenId> tokens = s.tokens;
  s.drafted.clear();
  s.draft.reset();
  // Prefixes are looked up by the prompt alone.
  s.tokens.resize(s.num_prompt);
  impl_->UsePrefix(request_, &s, /*alone=*/true);
  cached_ = s.full.num_tokens();
  s.draft.reset();
  s.tokens.assign(tokens.begin(), tokens.end());
  Prefill prefill(impl_->model.get(), impl_->forward.get(), impl_->pool.get());
  VC_RETURN_IF_ERROR(prefill.Run(&s, impl_->MakePrefillOptions(callbacks_, &s)));
  RoundRunner rounds(impl_->model.get(), impl_->forward.get(), impl_->pool.get());
  while (!s.done()) {
    Sequence* sequence = &s;
    const int64_t before = s.num_emitted();
    rounds.Run({&sequence, 1});
    stats_->local_tokens += s.num_emitted() - before;
    if (s.error.ok() && !stream_.Push(s)) break;
  }
  return s.error;
}

absl::StatusOr<Completion> RemoteRun::GoOnAlone() {
  stats_->verifier.clear();
  stats_->fallback = why_;
  if (!why_.empty()) impl_->Tell(StrCat("no verifier left, this node computes by itself: ", why_));
  if (s_->num_emitted() == 0) {
    s_.reset();  // its memory
    absl::StatusOr<Completion> completion = engine_->Generate(request_, nullptr, callbacks_);
    if (completion.ok()) stats_->local_tokens = completion->usage.completion_tokens;
    return completion;
  }
  VC_RETURN_IF_ERROR(ComputeAlone());
  absl::StatusOr<Completion> completion = Finish();
  impl_->KeepPrefix(request_, *s_, cached_);
  return completion;
}

absl::StatusOr<Completion> RemoteRun::Run() {
  VC_ASSIGN_OR_RETURN(s_, impl_->MakeSequence(request_, nullptr));
  if (s_->max_tokens <= 0) return GoOnAlone();
  VC_RETURN_IF_ERROR(engine_->ModelDigest().status());
  FetchDraft();
  stream_.Watch(s_.get());
  bool more = true;
  while (!s_->done() && more) {
    if (!AnyVerifier()) return GoOnAlone();
    if (session_.empty()) {
      if (const absl::Status status = Open(); !status.ok()) {
        Lost(status);
        continue;
      }
    }
    // The verifier computes the prompt meanwhile.
    if (!has_draft_) MakeDraft();
    const int64_t start = NowNs();
    const absl::StatusOr<RemoteVerified> reply = Ask();
    if (absl::IsCancelled(reply.status())) {
      verifier()->Close(session_);
      return reply.status();
    }
    const absl::Status status = reply.ok() ? Take(*reply) : reply.status();
    if (!status.ok()) {
      Lost(status);
      continue;
    }
    s_->rounds.back().verify_ns = NowNs() - start;
    if (times_.first_token_s == 0) times_.first_token_s = NowSeconds() - start_s_;
    more = stream_.Push(*s_);
  }
  verifier()->Close(session_);
  return Finish();
}

}  // namespace

absl::StatusOr<Completion> GenerateRemote(Engine* engine, const Request& request,
                                          const std::vector<RemoteVerifier*>& verifiers,
                                          const RemoteOptions& options, const Callbacks& callbacks,
                                          RemoteStats* stats) {
  if (options.draft_len < 1 || options.draft_len > kMaxDraftLen || options.plain_tokens < 1 ||
      options.tries < 1 || !(options.wait_s >= 0) || !(options.stall_s > 0))
    return absl::InvalidArgumentError("senseless options of remote drafting");
  RemoteStats own;
  return RemoteRun(engine, request, verifiers, options, callbacks, stats != nullptr ? stats : &own)
      .Run();
}

}  // namespace vericache
