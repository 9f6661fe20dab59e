// From a request to a completion: prompt tokens, sequence, prefill, rounds, text.
#include <algorithm>
#include <utility>

#include "absl/strings/str_replace.h"
#include "api/answer_stream.h"
#include "api/engine_impl.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "tokenizer/special_guard.h"

namespace vericache {
namespace {

// Longer answers pay for a few reallocations of their round records.
constexpr int64_t kMaxReservedRounds = 4096;

SamplingParams ToParams(const SamplingOptions& o) {
  SamplingParams p;
  p.temperature = o.temperature;
  p.top_k = o.top_k;
  p.top_p = o.top_p;
  p.min_p = o.min_p;
  p.seed = o.seed;
  p.choice = o.choice;
  p.repetition_penalty = o.repetition_penalty;
  p.presence_penalty = o.presence_penalty;
  p.frequency_penalty = o.frequency_penalty;
  p.logit_bias.assign(o.logit_bias.begin(), o.logit_bias.end());
  return p;
}

}  // namespace

const char* FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kError:
      return "error";
    case FinishReason::kNone:
      break;
  }
  return "cancelled";
}

absl::StatusOr<std::vector<TokenId>> Engine::Impl::PromptTokens(const Request& request) {
  const int given =
      !request.prompt_token_ids.empty() + !request.messages_json.empty() + !request.prompt.empty();
  if (given == 0) return absl::InvalidArgumentError("the prompt is empty");
  if (given > 1)
    return absl::InvalidArgumentError("give a prompt as token ids, messages or text, not several");
  if (!request.prompt_token_ids.empty()) {
    for (TokenId id : request.prompt_token_ids)
      if (id < 0 || id >= model->config.vocab_size)
        return absl::InvalidArgumentError(
            StrCat("prompt token id ", id, " is outside 0 to ", model->config.vocab_size - 1));
    return request.prompt_token_ids;
  }
  if (request.messages_json.empty()) {
    VC_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                        tokenizer->Encode(request.prompt, SpecialText::kAsText));
    if (tokenizer->add_bos() && tokenizer->bos_id() >= 0)
      tokens.insert(tokens.begin(), tokenizer->bos_id());
    return tokens;
  }
  std::string text;
  return TemplateTokens(request, &text);
}

absl::StatusOr<std::vector<TokenId>> Engine::Impl::TemplateTokens(const Request& request,
                                                                  std::string* text) {
  if (chat_template == nullptr)
    return absl::FailedPreconditionError(
        "the model file has no chat template: give a raw prompt instead of messages");
  ChatRequest chat;
  VC_ASSIGN_OR_RETURN(const GuardedMessages guarded,
                      GuardSpecialText(request.messages_json, *tokenizer));
  chat.messages_json = guarded.json;
  chat.tools_json = request.tools_json;
  chat.extra_json = request.template_kwargs_json;
  VC_ASSIGN_OR_RETURN(*text, chat_template->Render(chat));
  absl::StatusOr<std::vector<TokenId>> tokens = tokenizer->EncodeTemplated(*text, guarded.guard);
  if (!guarded.guard.empty()) absl::StrReplaceAll({{guarded.guard, ""}}, text);
  return tokens;
}

void Engine::Impl::Tell(const std::string& text) {
  {
    const std::lock_guard<std::mutex> lock(told_mutex);
    if (!told.insert(text).second) return;
  }
  if (options.on_notice) options.on_notice(text);
}

PrefillOptions Engine::Impl::MakePrefillOptions(const Callbacks& callbacks,
                                                const Sequence* sequence) const {
  PrefillOptions prefill;
  prefill.chunk_rows = options.prefill_chunk;
  if (sequence != nullptr && sequence->memory.has_value())
    prefill.chunk_rows = std::min(prefill.chunk_rows, sequence->memory->prefill_rows);
  prefill.progress = callbacks.on_prefill;
  return prefill;
}

absl::StatusOr<std::unique_ptr<Sequence>> Engine::Impl::MakeSequence(const Request& request,
                                                                     const Session* session) {
  VC_RETURN_IF_ERROR(model->file->CheckStillWhole());
  VC_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, PromptTokens(request));
  const int64_t num_prompt = static_cast<int64_t>(tokens.size());
  if (num_prompt == 0) return absl::InvalidArgumentError("the prompt is empty");
  if (num_prompt >= info.context_length)
    return absl::OutOfRangeError(StrCat("the prompt has ", num_prompt,
                                        " tokens and leaves no room in a context of ",
                                        info.context_length, ": shorten it or raise --ctx"));
  if (request.max_tokens < 0)
    return absl::InvalidArgumentError(
        StrCat("max_tokens is ", request.max_tokens, ", expected 0 or more"));
  if (request.draft_len < 0 || request.draft_len > kMaxDraftLen)
    return absl::InvalidArgumentError(StrCat("draft length is ", request.draft_len,
                                             ", expected 1 to ", kMaxDraftLen, ", or 0 for auto"));
  const SamplingParams params = ToParams(request.sampling);
  VC_RETURN_IF_ERROR(CheckSampling(params, tokenizer->vocab_size()));
  VC_ASSIGN_OR_RETURN(const DraftSpec spec, ParseDraftSpec(request.draft));

  int64_t common = 0;
  if (session != nullptr) {
    const std::vector<TokenId>& cached = session->state_->tokens;
    const int64_t limit = std::min<int64_t>(cached.size(), num_prompt - 1);
    while (common < limit && cached[common] == tokens[common]) ++common;
  }
  auto sequence = std::make_unique<Sequence>(
      common > 0 ? session->state_->full.Fork(common) : NewFullKv(),
      Sampler(params, model->config.vocab_size, tokenizer->vocab_size(), model->kernels));
  sequence->tokens = std::move(tokens);
  sequence->num_prompt = num_prompt;
  sequence->max_tokens = std::min(request.max_tokens, info.context_length - num_prompt);
  // So that a steady step allocates nothing.
  sequence->tokens.reserve(num_prompt + sequence->max_tokens);
  sequence->rounds.reserve(std::min(sequence->max_tokens, kMaxReservedRounds));
  sequence->spec = spec;
  if (request.draft_len > 0) sequence->draft_length = DraftLength::Fixed(request.draft_len);
  VC_ASSIGN_OR_RETURN(const uint32_t modes, DraftModesOf(request, spec.enabled));
  if ((modes & kModelModes) != 0)
    sequence->small_bytes = small->BytesFor(num_prompt + sequence->max_tokens + kMaxDraftLen);
  VC_RETURN_IF_ERROR(PlanSequence(sequence.get()));
  // A draft over exactly these tokens may be continued; otherwise prefill builds a new one.
  if (session != nullptr && session->state_->draft.has_value() && common > 0 &&
      common == static_cast<int64_t>(session->state_->tokens.size()) &&
      session->state_->draft_spec == sequence->spec.ToString())
    sequence->draft.emplace(session->state_->draft->Copy());
  VC_RETURN_IF_ERROR(EquipDraft(session, sequence.get()));
  if (request.ignore_eos) {
    sequence->ends_generation = [](TokenId) { return false; };
  } else {
    sequence->ends_generation = [this](TokenId id) { return tokenizer->IsEndOfGeneration(id); };
  }
  return sequence;
}

Completion Engine::Impl::Finish(const Sequence& s, int64_t cached_tokens, double prefill_s) const {
  Completion c;
  c.prompt_token_ids.assign(s.tokens.begin(), s.tokens.begin() + s.num_prompt);
  c.token_ids.assign(s.tokens.begin() + s.num_prompt, s.tokens.end());
  c.text = TextOf(*tokenizer, c.token_ids);
  c.finish_reason = FinishName(s.finish);
  c.usage = {s.num_prompt, s.num_emitted(), cached_tokens};
  c.logits_hash = s.chain.Hex();
  CompletionStats& stats = c.stats;
  stats.rounds = static_cast<int64_t>(s.rounds.size());
  int64_t emitted = 0;
  double fraction = 0;
  for (const RoundStats& r : s.rounds) {
    stats.records.push_back({r.drafted, r.accepted, r.emitted, r.draft_ns, r.verify_ns,
                             r.draft_bytes, r.full_bytes, r.mode});
    stats.drafted += r.drafted;
    stats.accepted += r.accepted;
    emitted += r.emitted;
    fraction += s.spec.enabled && r.full_bytes > 0
                    ? static_cast<double>(r.draft_bytes) / static_cast<double>(r.full_bytes)
                    : 1.0;
    stats.draft_s += static_cast<double>(r.draft_ns) * 1e-9;
    stats.verify_s += static_cast<double>(r.verify_ns) * 1e-9;
  }
  stats.mean_run_length = stats.rounds > 0 ? static_cast<double>(emitted) / stats.rounds : 1.0;
  stats.kept_fraction = stats.rounds > 0 ? fraction / stats.rounds : 1.0;
  stats.draft_bytes = s.draft.has_value() ? s.draft->num_bytes() : 0;
  stats.full_bytes = s.full.num_bytes();
  stats.prefill_s = prefill_s;
  return c;
}

void Engine::Impl::Store(Sequence* s, int64_t common, Session* session) const {
  if (session == nullptr) return;
  Session::State& state = *session->state_;
  state.tokens.assign(s->tokens.begin(), s->tokens.begin() + s->full.num_tokens());
  state.full = std::move(s->full);
  state.draft_spec = s->spec.ToString();
  state.draft.reset();
  std::erase_if(state.scores, [&](const auto& entry) { return entry.second->num_scored > common; });
  if (s->scores != nullptr) state.scores[s->spec.score_key()] = s->scores;
  // A draft that stopped short of the full KV (no token was wanted) is of no use later.
  if (s->draft.has_value() && s->draft->num_tokens() == s->full.num_tokens()) {
    s->draft->Rollback();
    state.draft.emplace(std::move(*s->draft));
  }
}

absl::StatusOr<Completion> Engine::GenerateUnverified(const Request& request, Session* session) {
  Impl& impl = *impl_;
  VC_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> s, impl.MakeSequence(request, session));
  if (!s->spec.enabled)
    return absl::InvalidArgumentError("unverified decoding needs a draft spec other than off");
  const int64_t cached = s->full.num_tokens();
  const double start = NowSeconds();
  vericache::Prefill prefill(impl.model.get(), impl.forward.get(), impl.pool.get());
  VC_RETURN_IF_ERROR(prefill.Run(s.get(), impl.MakePrefillOptions({}, s.get())));
  const double prefill_s = NowSeconds() - start;
  const double decode_start = NowSeconds();
  Drafter drafter(impl.model.get(), impl.forward.get());
  // `drafted` grows over the whole answer: the draft KV's provisional rows are never replaced.
  while (!s->done()) {
    Sequence* sequence = s.get();
    drafter.Step({&sequence, 1});
    const TokenId last = s->drafted.back().id;
    if (last < 0) return NonFiniteLogits(s->full.num_tokens());
    const int64_t emitted = s->num_emitted() + static_cast<int64_t>(s->drafted.size());
    if (s->ends_generation(last))
      s->finish = FinishReason::kStop;
    else if (emitted >= s->max_tokens)
      s->finish = FinishReason::kLength;
  }
  const double decode_s = NowSeconds() - decode_start;
  const size_t draft_bytes = s->draft.has_value() ? s->draft->num_bytes() : 0;
  const size_t full_bytes =
      impl.model->config.kv_shape().bytes_per_token() * (s->tokens.size() + s->drafted.size() - 1);
  for (DraftToken token : s->drafted) s->tokens.push_back(token.id);
  Completion completion = impl.Finish(*s, cached, prefill_s);
  completion.logits_hash.clear();  // these rows were never those of the full KV
  completion.stats.draft_s = decode_s;
  completion.stats.draft_bytes = draft_bytes;
  completion.stats.full_bytes = full_bytes;
  completion.stats.kept_fraction =
      full_bytes > 0 ? static_cast<double>(draft_bytes) / static_cast<double>(full_bytes) : 1.0;
  return completion;
}

absl::StatusOr<Session> Engine::Prefill(const Request& request, const Callbacks& callbacks) {
  Impl& impl = *impl_;
  VC_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> s, impl.MakeSequence(request, nullptr));
  impl.UsePrefix(request, s.get(), /*alone=*/true);
  const int64_t cached = s->full.num_tokens();
  vericache::Prefill prefill(impl.model.get(), impl.forward.get(), impl.pool.get());
  VC_RETURN_IF_ERROR(prefill.Compute(s.get(), impl.MakePrefillOptions(callbacks, s.get())));
  impl.KeepPrefix(request, *s, cached);
  Session session = NewSession();
  s->draft.reset();
  impl.Store(s.get(), 0, &session);
  return session;
}

}  // namespace vericache
