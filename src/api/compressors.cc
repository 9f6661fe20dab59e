#include "vericache/compressors.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "api/engine_impl.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/ngram_proposer.h"
#include "engine/replay.h"
#include "engine/scorers.h"

namespace vericache {

absl::StatusOr<std::vector<bool>> NextTokenHits(Engine* engine, absl::Span<const int32_t> prompt,
                                                absl::Span<const int32_t> answer,
                                                const Session* start) {
  Engine::Impl& e = *engine->impl_;
  Request request;
  request.prompt_token_ids.assign(prompt.begin(), prompt.end());
  request.prompt_token_ids.insert(request.prompt_token_ids.end(), answer.begin(), answer.end());
  request.draft = "off";
  VC_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> s, e.MakeSequence(request, start));
  // The K/V of the last token choose nothing; the row before the answer's first token must be run.
  const std::vector<TokenId> tokens = s->tokens;
  const int64_t first = static_cast<int64_t>(prompt.size());
  if (s->full.num_tokens() >= first) s->full = s->full.Fork(first - 1);
  s->tokens.pop_back();
  std::vector<bool> hits;
  vericache::Prefill prefill(e.model.get(), e.forward.get(), e.pool.get());
  VC_RETURN_IF_ERROR(prefill.Score(
      s.get(), e.MakePrefillOptions({}), first - 1, [&](int64_t pos, const float* logits) {
        const RowChoice choice = s->sampler.Choose(logits, pos + 1, {}, first);
        hits.push_back(!choice.bad && choice.id == tokens[pos + 1]);
        return true;
      }));
  return hits;
}

std::vector<LookupHit> NgramHits(absl::Span<const int32_t> prompt, absl::Span<const int32_t> answer,
                                 int draft_len) {
  NgramOptions options;
  options.min_n = 1;
  options.max_n = 3;
  options.overlap = false;
  NgramProposer proposer(options);
  std::vector<TokenId> all(prompt.begin(), prompt.end());
  all.insert(all.end(), answer.begin(), answer.end());
  std::vector<LookupHit> hits(answer.size());
  std::vector<TokenId> proposal;
  for (size_t i = 0; i < answer.size(); ++i) {
    const auto known = absl::MakeConstSpan(all).first(prompt.size() + i);
    proposer.Update(known);
    proposer.Propose(known, {}, std::min<int64_t>(draft_len, std::ssize(answer) - i), &proposal);
    LookupHit& hit = hits[i];
    hit.proposed = static_cast<int>(proposal.size());
    while (hit.accepted < hit.proposed && proposal[hit.accepted] == answer[i + hit.accepted])
      ++hit.accepted;
  }
  return hits;
}

struct PromptStudy::Impl {
  Engine* engine = nullptr;
  Request request;
  StudyOptions options;
  int window = 1;                 // newest queries that any spec wants
  std::optional<Session> prefix;  // the prompt but its newest rows, and scores
  PromptStudy::Timed full;
  std::optional<RecordedAnswer> record;

  absl::Status Decode(const Session* start);
  absl::Status RecordAnswer();
  absl::StatusOr<std::unique_ptr<Sequence>> MakeSetup(const std::string& spec);
  Callbacks MakeCallbacks() const;
  Request With(const std::string& spec, int draft_len) const;
};

Callbacks PromptStudy::Impl::MakeCallbacks() const {
  Callbacks callbacks;
  callbacks.on_prefill = options.on_prefill;
  if (options.keep_going)
    callbacks.on_text = [this](std::string_view) { return options.keep_going(); };
  return callbacks;
}

Request PromptStudy::Impl::With(const std::string& spec, int draft_len) const {
  Request changed = request;
  changed.draft = spec;
  changed.draft_len = draft_len;
  return changed;
}

namespace {

// What a decode took: everything but the prefill and the first token that came with it.
absl::StatusOr<PromptStudy::Timed> TimedCall(
    const std::function<absl::StatusOr<Completion>()>& call) {
  const double start = NowSeconds();
  VC_ASSIGN_OR_RETURN(Completion completion, call());
  PromptStudy::Timed timed;
  timed.decode_s = NowSeconds() - start - completion.stats.prefill_s;
  timed.completion = std::move(completion);
  if (timed.completion.finish_reason == "cancelled") return absl::CancelledError("stopped");
  return timed;
}

}  // namespace

absl::Status PromptStudy::Impl::Decode(const Session* start) {
  VC_ASSIGN_OR_RETURN(std::vector<int32_t> ids, engine->TokenizePrompt(request));
  Session session = start != nullptr ? start->Fork() : engine->NewSession();
  Request prompt = request;
  prompt.messages_json.clear();
  prompt.tools_json.clear();
  prompt.prompt.clear();
  prompt.prompt_token_ids = ids;
  request = prompt;  // no template is rendered again
  prompt.draft = "off";
  VC_ASSIGN_OR_RETURN(
      full, TimedCall([&] { return engine->Generate(prompt, &session, MakeCallbacks()); }));
  // What every run starts from: all of the prompt but the rows whose queries choose keys, which a
  // request computes itself.
  const int64_t num_rows = std::max<int64_t>(0, static_cast<int64_t>(ids.size()) - window);
  auto state = std::make_unique<Session::State>(session.state_->full.Fork(num_rows));
  state->tokens.assign(ids.begin(), ids.begin() + num_rows);
  state->scores = session.state_->scores;
  prefix.emplace(Session(std::move(state)));
  return absl::OkStatus();
}

absl::Status PromptStudy::Impl::RecordAnswer() {
  Engine::Impl& e = *engine->impl_;
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Sequence> s, e.MakeSequence(With("off", 0), &*prefix));
  std::vector<TokenId> tokens = s->tokens;
  tokens.insert(tokens.end(), full.completion.token_ids.begin(), full.completion.token_ids.end());
  DraftReplay replay(e.model.get(), e.forward.get(), e.pool.get());
  VC_ASSIGN_OR_RETURN(RecordedAnswer answer,
                      replay.Record(*s, std::move(tokens), window, e.MakePrefillOptions({})));
  record.emplace(std::move(answer));
  return absl::OkStatus();
}

absl::StatusOr<PromptStudy> PromptStudy::Create(Engine* engine, const Request& request,
                                                const Session* start, const StudyOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->engine = engine;
  impl->request = request;
  impl->options = options;
  for (const std::string& text : options.specs) {
    VC_ASSIGN_OR_RETURN(const DraftSpec spec, ParseDraftSpec(text));
    impl->window = std::max(impl->window, QueryRowsWanted(spec));
  }
  VC_RETURN_IF_ERROR(impl->Decode(start));
  VC_RETURN_IF_ERROR(impl->RecordAnswer());
  return PromptStudy(std::move(impl));
}

PromptStudy::PromptStudy(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PromptStudy::~PromptStudy() = default;
PromptStudy::PromptStudy(PromptStudy&&) noexcept = default;
PromptStudy& PromptStudy::operator=(PromptStudy&&) noexcept = default;

const Completion& PromptStudy::full() const { return impl_->full.completion; }
double PromptStudy::full_decode_s() const { return impl_->full.decode_s; }

// A sequence over the whole prompt with everything its spec needs; scores that it made are kept
// for later specs that share them.
absl::StatusOr<std::unique_ptr<Sequence>> PromptStudy::Impl::MakeSetup(const std::string& spec) {
  Engine::Impl& e = *engine->impl_;
  VC_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> s, e.MakeSequence(With(spec, 0), &*prefix));
  s->full = record->full.Fork(s->num_prompt);
  vericache::Prefill prefill(e.model.get(), e.forward.get(), e.pool.get());
  Callbacks callbacks;
  callbacks.on_prefill = options.on_prefill;
  VC_RETURN_IF_ERROR(prefill.ScorePrompt(s.get(), e.MakePrefillOptions(callbacks)));
  return s;
}

absl::StatusOr<DraftReplayReport> PromptStudy::Replay(const std::string& spec, int draft_len) {
  if (draft_len < 1 || draft_len > kMaxDraftLen)
    return absl::InvalidArgumentError(
        StrCat("draft length is ", draft_len, ", expected 1 to ", kMaxDraftLen));
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Sequence> setup, impl_->MakeSetup(spec));
  if (!setup->spec.enabled)
    return absl::InvalidArgumentError("a replay needs a draft spec other than off");
  if (QueryRowsWanted(setup->spec) > impl_->window)
    return absl::InvalidArgumentError(
        StrCat("\"", spec, "\" is not among the specs that were announced"));
  Engine::Impl& e = *impl_->engine->impl_;
  DraftReplay replay(e.model.get(), e.forward.get(), e.pool.get());
  VC_ASSIGN_OR_RETURN(
      const ReplayedRounds rounds,
      replay.Run(*impl_->record, draft_len, setup.get(), impl_->options.keep_going));
  DraftReplayReport report;
  report.run_lengths = rounds.run_lengths;
  report.num_compared = rounds.num_compared;
  const auto mean = [](double sum, int64_t n, double none) {
    return n > 0 ? sum / static_cast<double>(n) : none;
  };
  const int64_t num_rounds = static_cast<int64_t>(rounds.run_lengths.size());
  report.agreement = mean(static_cast<double>(rounds.num_agreed), rounds.num_compared, 1);
  report.mean_kl = mean(rounds.kl_sum, rounds.num_kl, 0);
  report.kept_fraction = mean(rounds.kept_sum, num_rounds, 1);
  report.read_fraction = mean(rounds.read_sum, num_rounds, 1);
  return report;
}

absl::StatusOr<PromptStudy::Timed> PromptStudy::Verified(const std::string& spec, int draft_len) {
  Session session = impl_->prefix->Fork();
  return TimedCall([&] {
    return impl_->engine->Generate(impl_->With(spec, draft_len), &session, impl_->MakeCallbacks());
  });
}

absl::StatusOr<PromptStudy::Timed> PromptStudy::Unverified(const std::string& spec) {
  Session session = impl_->prefix->Fork();
  return TimedCall(
      [&] { return impl_->engine->GenerateUnverified(impl_->With(spec, 0), &session); });
}

}  // namespace vericache
