#include "api/remote_job.h"

#include <algorithm>
#include <utility>

#include "api/verifier_host.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/drafter.h"
#include "kv/codecs/row_codec.h"

namespace vericache {

RemoteJob::RemoteJob(const EngineAccess::Impl* impl, std::unique_ptr<Sequence> sequence,
                     Request request)
    : impl_(impl),
      s_(std::move(sequence)),
      request_(std::move(request)),
      rows_as_(s_->spec.lossless() ? RemoteRows::kF16 : RemoteRows::kPacked) {
  const uint32_t modes = impl->DraftModesOf(request_, s_->spec.enabled).value_or(0);
  if ((modes & ModeBit(DraftMode::kNgram)) != 0) lookup_.emplace();
}

// --- The draft -----------------------------------------------------------------------------------

void RemoteJob::TakeDraftKv(DraftKv draft) {
  stats_.draft_tokens = draft.num_tokens();
  stats_.draft_bytes = draft.num_bytes();
  rows_ = draft.num_tokens();
  s_->draft.emplace(std::move(draft));
}

void RemoteJob::DropDraftKv() {
  s_->draft.reset();
  s_->drafted.clear();
  length_ = -1;
}

int64_t RemoteJob::most_drafted() const {
  // A draft KV of the whole prompt has the last token's row, which drafting would begin with.
  if (!s_->draft.has_value() || s_->draft->num_tokens() > std::ssize(s_->tokens) - 1) return 0;
  return most_useful();
}

// A reply has one token more than it accepts.
int64_t RemoteJob::most_useful() const {
  return std::clamp<int64_t>(s_->max_tokens - s_->num_emitted() - 1, 0, kMaxDraftLen);
}

int RemoteJob::LookUp(int most) {
  proposal_.clear();
  most = static_cast<int>(std::min<int64_t>(most, most_useful()));
  if (!lookup_.has_value() || most < 1) return 0;
  lookup_->Update(s_->tokens);
  lookup_->Propose(s_->tokens, {}, most, &proposal_);
  // What is drafted already costs nothing more, either: look-up may go on where both agree.
  const std::vector<DraftToken>& drafted = s_->drafted;
  const bool agrees = drafted.size() <= proposal_.size() &&
                      std::equal(drafted.begin(), drafted.end(), proposal_.begin(),
                                 [](DraftToken token, TokenId id) { return token.id == id; });
  if (!agrees) proposal_.clear();
  return static_cast<int>(proposal_.size());
}

void RemoteJob::StartLookup(int length) {
  looks_up_ = true;
  length_ = length;
  plain_tokens_ = 1;
  draft_s_ = 0;
  s_->drafted.clear();
  for (int i = 0; i < length; ++i) s_->drafted.push_back({proposal_[i]});
  draft_ended_ = true;  // nothing is drafted behind it
}

void RemoteJob::StartRound(int length, int plain_tokens) {
  looks_up_ = false;
  length_ = static_cast<int>(std::min<int64_t>(length, most_drafted()));
  plain_tokens_ = plain_tokens;
  draft_s_ = 0;
  if (length_ == 0) s_->drafted.clear();
  if (s_->drafted.empty()) draft_ended_ = false;
  if (length_ > 0)
    s_->draft->ReserveRows(std::ssize(s_->tokens) + 2 * length_ - s_->draft->num_tokens());
}

bool RemoteJob::DraftIsWhole() const {
  return has_round() && (draft_ended_ || std::ssize(s_->drafted) >= length_);
}

bool RemoteJob::MayDraftAhead() const {
  if (num_asked_ == 0 || draft_ended_ || !s_->draft.has_value()) return false;
  const int64_t most = std::min<int64_t>(most_drafted(), int64_t{2} * num_asked_ + 1);
  return std::ssize(s_->drafted) < most;
}

int64_t RemoteJob::rows_behind() const {
  return std::ssize(s_->tokens) + std::ssize(s_->drafted) - 1 - rows_;
}

TokenId RemoteJob::TokenAt(int64_t pos) const {
  const int64_t known = std::ssize(s_->tokens);
  return pos < known ? s_->tokens[pos] : s_->drafted[pos - known].id;
}

RowGroup RemoteJob::PlanRows(int64_t max_rows) {
  const int64_t rows = std::min(max_rows, rows_behind());
  planned_.clear();
  for (int64_t i = 0; i < rows; ++i) planned_.push_back(TokenAt(rows_ + i));
  RowGroup group;
  group.tokens = planned_;
  group.first_pos = rows_;
  group.kv = &*s_->draft;
  group.logits_begin = rows;
  return group;
}

void RemoteJob::TakeRows(int64_t num_rows, double seconds) {
  rows_ += num_rows;
  draft_s_ += seconds;
  stats_.provisional_rows += num_rows;
}

void RemoteJob::TakeStep(double seconds) {
  ++rows_;
  draft_s_ += seconds;
  draft_ended_ = JudgeDrafted(s_.get(), impl_->model->config.vocab_size) != DraftedToken::kGoesOn;
}

// --- The verifier --------------------------------------------------------------------------------

RemoteOpen RemoteJob::MakeOpen() const {
  RemoteOpen open;
  open.identity = RemoteIdentityOf(*impl_);
  open.prompt_ids.assign(s_->tokens.begin(), s_->tokens.begin() + s_->num_prompt);
  open.emitted_ids.assign(s_->tokens.begin() + s_->num_prompt, s_->tokens.end());
  open.max_tokens = s_->max_tokens;
  open.sampling = request_.sampling;
  open.ignore_eos = request_.ignore_eos;
  open.use_prefix_cache = request_.use_prefix_cache;
  open.prefix_salt = request_.prefix_salt;
  return open;
}

RemoteVerify RemoteJob::MakeQuestion(const std::string& session, double wait_s) {
  num_asked_ = static_cast<int>(
      std::min<int64_t>(std::ssize(s_->drafted), looks_up_ ? most_useful() : most_drafted()));
  // Rows are of no use until something is drafted again.
  wants_rows_ = s_->draft.has_value() && !looks_up_ && (num_asked_ > 0 || plain_tokens_ == 1);
  RemoteVerify question;
  question.session = session;
  question.num_known = s_->num_emitted();
  for (int i = 0; i < num_asked_; ++i) question.drafted.push_back(s_->drafted[i].id);
  question.plain_tokens = plain_tokens_;
  if (wants_rows_) question.rows_begin = s_->draft->num_tokens();
  question.rows_as = rows_as_;
  question.wait_s = wait_s;
  return question;
}

// A reply comes from a machine that is trusted to compute, through a network that is not.
absl::Status RemoteJob::Check(const RemoteVerified& reply) const {
  const int64_t count = static_cast<int64_t>(reply.emitted.size());
  const int64_t total = s_->num_emitted() + count;
  const int64_t most = num_asked_ > 0 ? num_asked_ + 1 : plain_tokens_;
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

absl::StatusOr<KvRows> RemoteJob::ParseRows(const std::string& rows, int64_t max_rows) const {
  const KvShape& shape = impl_->model->config.kv_shape();
  const int64_t begin = s_->draft->num_tokens();
  if (rows_as_ == RemoteRows::kF16) return KvRows::Parse(shape, begin, rows);
  VC_ASSIGN_OR_RETURN(const std::string unpacked, UnpackRows(shape, max_rows, rows));
  return KvRows::Parse(shape, begin, unpacked);
}

absl::Status RemoteJob::CheckRows(const RemoteVerified& reply, std::optional<KvRows>* rows) const {
  if (!wants_rows_)
    return reply.rows.empty() ? absl::OkStatus()
                              : absl::DataLossError("its reply has K/V that nobody asked for");
  const int64_t end = static_cast<int64_t>(s_->tokens.size() + reply.emitted.size()) - 1;
  VC_ASSIGN_OR_RETURN(*rows, ParseRows(reply.rows, end - s_->draft->num_tokens()));
  if ((*rows)->pos_end() > end)
    return absl::DataLossError("its reply has K/V of tokens that are not there");
  return absl::OkStatus();
}

int RemoteJob::CountAccepted(const RemoteVerified& reply) const {
  const int most = std::min<int>(num_asked_, static_cast<int>(reply.emitted.size()));
  int accepted = 0;
  while (accepted < most && s_->drafted[accepted].id == reply.emitted[accepted]) ++accepted;
  return accepted;
}

// Token by token: a stop string ends the answer with the one that completes it.
void RemoteJob::TakeTokens(const RemoteVerified& reply) {
  Sequence& s = *s_;
  for (size_t i = 0; i < reply.emitted.size() && !s.done(); ++i) {
    s.chain.Push(reply.row_hashes[i]);
    s.tokens.push_back(reply.emitted[i]);
    if (s.on_verified && s.on_verified(reply.emitted[i], nullptr)) {
      s.finish = FinishReason::kStop;
    } else if (i + 1 == reply.emitted.size()) {
      if (reply.finish == RemoteFinish::kStop) s.finish = FinishReason::kStop;
      if (reply.finish == RemoteFinish::kLength) s.finish = FinishReason::kLength;
    }
  }
}

// What was drafted behind the question goes on where the reply ends, if all came as drafted.
void RemoteJob::KeepDraftedBehind(int64_t num_emitted, const RemoteVerified& reply) {
  std::vector<DraftToken>& drafted = s_->drafted;
  const bool held = num_asked_ > 0 && num_emitted == num_asked_ + 1 &&
                    std::ssize(drafted) >= num_emitted &&
                    std::equal(reply.emitted.begin(), reply.emitted.end(), drafted.begin(),
                               [](TokenId id, DraftToken token) { return id == token.id; });
  if (!held || s_->done()) {
    drafted.clear();
  } else {
    drafted.erase(drafted.begin(), drafted.begin() + num_emitted);
  }
  if (drafted.empty()) draft_ended_ = false;
  stats_.ahead_tokens += std::ssize(drafted);
}

void RemoteJob::Record(const RemoteVerified& reply, int num_emitted, double seconds) {
  RoundStats& round = s_->rounds.emplace_back();
  round.drafted = num_asked_;
  round.emitted = num_emitted;
  round.accepted = std::min(CountAccepted(reply), num_emitted);
  round.mode = looks_up_ ? "remote-ngram" : "remote";
  round.draft_ns = static_cast<int64_t>(draft_s_ * 1e9);
  round.verify_ns = static_cast<int64_t>(seconds * 1e9);
  round.draft_bytes = draft_bytes();
  const int64_t context = std::ssize(s_->tokens) - 1 - num_emitted;
  round.full_bytes = impl_->model->config.kv_shape().bytes_per_token() * context;
  AcceptanceEstimate& acceptance = looks_up_ ? lookup_acceptance_ : acceptance_;
  if (num_asked_ > 0) acceptance.Observe(round.drafted, round.accepted);
  if (looks_up_) stats_.looked_up += round.drafted;
  ++stats_.rounds;
  stats_.drafted += round.drafted;
  stats_.accepted += round.accepted;
  stats_.remote_tokens += num_emitted;
}

absl::Status RemoteJob::Take(const RemoteVerified& reply, double seconds) {
  VC_RETURN_IF_ERROR(Check(reply));
  std::optional<KvRows> rows;
  VC_RETURN_IF_ERROR(CheckRows(reply, &rows));
  const int64_t before = s_->num_emitted();
  TakeTokens(reply);
  const int64_t num_emitted = s_->num_emitted() - before;
  Record(reply, static_cast<int>(num_emitted), seconds);
  KeepDraftedBehind(num_emitted, reply);
  num_asked_ = 0;
  length_ = -1;
  if (!s_->draft.has_value()) return absl::OkStatus();
  s_->draft->Rollback();
  // A stop string may end the answer before the rows do.
  if (rows.has_value() && !s_->done()) {
    s_->draft->CommitRowsOf([&](int layer) { return rows->Layer(layer); }, rows->pos_begin(),
                            rows->pos_end(), impl_->pool.get());
  }
  stats_.rows_bytes += reply.rows.size();
  rows_ = s_->draft->num_tokens();
  return absl::OkStatus();
}

std::unique_ptr<Sequence> RemoteJob::Release() {
  s_->drafted.clear();
  s_->draft.reset();
  return std::move(s_);
}

}  // namespace vericache
