// What a draft spec needs from outside the K/V: scores, a file of positions, kvzip's instruction.
#include <algorithm>

#include "api/engine_impl.h"
#include "base/common_tokens.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/scorers.h"

namespace vericache {
namespace {

// Words of the paper's code (arXiv 2505.23416).
constexpr char kRepeatFirst[] = "Repeat the previous context exactly.";
constexpr char kRepeatNext[] = "Repeat the part of the previous context exactly, starting with";
// Stand-ins whose surroundings in the rendered text are the turns' marks.
constexpr char kAnswer[] = "VERICACHE-ANSWER", kQuestion[] = "VERICACHE-QUESTION";

}  // namespace

// The instruction is a user's turn of its own behind whatever the prompt ends in. Without a
// template, or with one that does not take such a chat, it is plain text.
absl::StatusOr<RepeatPrompt> Engine::Impl::MakeRepeatPrompt() {
  std::string before = "\n\n", after = "\n";
  if (chat_template != nullptr) {
    ChatRequest chat;
    chat.messages_json =
        StrCat(R"([{"role":"user","content":"Hello"},{"role":"assistant","content":")", kAnswer,
               R"("},{"role":"user","content":")", kQuestion, R"("}])");
    const absl::StatusOr<std::string> text = chat_template->Render(chat);
    if (text.ok()) {
      const size_t answer = text->find(kAnswer), question = text->find(kQuestion);
      if (answer != text->npos && question != text->npos && answer < question) {
        const size_t begin = answer + sizeof(kAnswer) - 1;
        before = text->substr(begin, question - begin);
        after = text->substr(question + sizeof(kQuestion) - 1);
      }
    }
  }
  RepeatPrompt repeat;
  VC_ASSIGN_OR_RETURN(repeat.first,
                      tokenizer->Encode(before + kRepeatFirst, SpecialText::kAsToken));
  VC_ASSIGN_OR_RETURN(repeat.next, tokenizer->Encode(before + kRepeatNext, SpecialText::kAsToken));
  VC_ASSIGN_OR_RETURN(repeat.answer, tokenizer->Encode(after, SpecialText::kAsToken));
  return repeat;
}

absl::Status Engine::Impl::EquipDraft(const Session* session, Sequence* s) {
  const DraftSpec& spec = s->spec;
  if (!spec.enabled) return absl::OkStatus();
  if (const int d = model->config.head_dim; spec.codec.has_codes() && d % kDraftGroup != 0)
    Tell(StrCat("this model's head size of ", d, " is not a multiple of ", kDraftGroup, ": ",
                spec.codec.ToString(), " falls back to f16, the draft KV is larger than asked"));
  if (spec.selector == SelectorKind::kKept) {
    VC_ASSIGN_OR_RETURN(KeptSet kept, ReadKeptFile(spec.file, model->config.num_layers,
                                                   model->config.num_kv_heads));
    for (const std::vector<int32_t>& positions : kept.positions)
      if (!positions.empty() && positions.back() >= s->num_prompt)
        return absl::InvalidArgumentError(StrCat(spec.file, " keeps position ", positions.back(),
                                                 ", but the prompt has ", s->num_prompt,
                                                 " tokens"));
    s->kept_file = std::make_shared<const KeptSet>(std::move(kept));
  }
  if (spec.score_kind() == ScoreKind::kKvzip) {
    VC_ASSIGN_OR_RETURN(s->repeat_prompt, MakeRepeatPrompt());
  }
  if (spec.score_kind() == ScoreKind::kNone || session == nullptr) return absl::OkStatus();
  const Session::State& state = *session->state_;
  const auto found = state.scores.find(spec.score_key());
  if (found == state.scores.end()) return absl::OkStatus();
  // Scores may reach as far as the prompt itself, of which a session's K/V lend all but one token.
  const int64_t common = CommonTokens(state.tokens, s->tokens);
  if (found->second->num_scored <= common) SetScores(s, found->second);
  return absl::OkStatus();
}

absl::Status Engine::Score(Session* session, const std::string& draft, const Callbacks& callbacks) {
  Impl& impl = *impl_;
  Session::State& state = *session->state_;
  VC_ASSIGN_OR_RETURN(const DraftSpec spec, ParseDraftSpec(draft));
  if (spec.score_kind() == ScoreKind::kNone || state.scores.contains(spec.score_key()))
    return absl::OkStatus();
  if (state.tokens.empty()) return absl::InvalidArgumentError("the session holds no tokens");
  Sequence s(state.full.Fork(), Sampler({}, impl.model->config.vocab_size,
                                        impl.tokenizer->vocab_size(), impl.model->kernels));
  s.tokens = state.tokens;
  s.num_prompt = static_cast<int64_t>(s.tokens.size());
  s.spec = spec;
  VC_RETURN_IF_ERROR(impl.EquipDraft(nullptr, &s));
  vericache::Prefill prefill(impl.model.get(), impl.forward.get(), impl.pool.get());
  VC_RETURN_IF_ERROR(prefill.ScorePrompt(&s, impl.MakePrefillOptions(callbacks)));
  state.scores[spec.score_key()] = s.scores;
  return absl::OkStatus();
}

}  // namespace vericache
