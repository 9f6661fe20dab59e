// Storing a prefix on purpose: full blocks, and draft KVs of several specs over whole blocks.
#include <chrono>
#include <utility>

#include "api/engine_impl.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

// How often progress is told.
constexpr auto kTick = std::chrono::milliseconds(100);
// A draft KV is made where an answer goes on behind its first token.
constexpr int64_t kTokensOfAnAnswer = 2;

}  // namespace

// One spec's sequence over `prompt`, prefilled from `known` (may be null) on.
absl::StatusOr<std::unique_ptr<Sequence>> Engine::Impl::PrefillForPush(const Request& prompt,
                                                                       const std::string& draft,
                                                                       const FullKv* known,
                                                                       const Callbacks& callbacks,
                                                                       int64_t* cached) {
  Request request = prompt;
  request.draft = draft;
  request.max_tokens = kTokensOfAnAnswer;
  request.ignore_eos = true;
  VC_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> s, MakeSequence(request, nullptr));
  if (known != nullptr) {
    // The newest queries are computed again, so that the choice is a cold run's.
    const int64_t wanted = std::max<int64_t>(1, QueryRowsWanted(s->spec));
    s->full = known->Fork(std::max<int64_t>(0, s->num_prompt - wanted));
  } else {
    UsePrefix(request, s.get(), /*alone=*/true);
    s->draft.reset();
  }
  *cached = s->full.num_tokens();
  vericache::Prefill prefill(model.get(), forward.get(), pool.get());
  VC_RETURN_IF_ERROR(prefill.Run(s.get(), MakePrefillOptions(callbacks, s.get())));
  VC_RETURN_IF_ERROR(s->error);
  return s;
}

absl::StatusOr<PrefixPushReport> Engine::PushPrefix(
    const Request& request, const PrefixPushOptions& options, const Callbacks& callbacks,
    const std::function<void(uint64_t done, uint64_t total)>& on_bytes) {
  Impl& impl = *impl_;
  if (impl.options.prefix_store.empty() || impl.options.prefix_store_mode == "ro" ||
      !impl.PrefixesHold())
    return absl::FailedPreconditionError(
        "there is no prefix store to write to: give --prefix-store, and not in mode ro");
  for (const std::string& draft : options.drafts)
    VC_RETURN_IF_ERROR(ParseDraftSpec(draft).status());
  Request prompt;
  PrefixPushReport report;
  VC_ASSIGN_OR_RETURN(prompt.prompt_token_ids, impl.PromptTokens(request));
  prompt.prefix_salt = request.prefix_salt;
  report.prompt_tokens = static_cast<int64_t>(prompt.prompt_token_ids.size());
  report.stored_tokens = report.prompt_tokens / kBlockTokens * kBlockTokens;
  if (report.stored_tokens == 0)
    return absl::InvalidArgumentError(StrCat("the prompt has ", report.prompt_tokens,
                                             " tokens; prefixes are stored by blocks of ",
                                             kBlockTokens));
  prompt.prompt_token_ids.resize(report.stored_tokens);
  std::vector<std::string> drafts = options.drafts;
  if (drafts.empty()) drafts.push_back("off");
  const int64_t failed = impl.prefixes->failed_saves();
  const uint64_t saved = impl.prefixes->saved_bytes();
  uint64_t total = 0;
  std::optional<FullKv> known;
  for (const std::string& draft : drafts) {
    int64_t cached = 0;
    VC_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> s,
                        impl.PrefillForPush(prompt, draft, known.has_value() ? &*known : nullptr,
                                            callbacks, &cached));
    if (!known.has_value()) report.cached_tokens = cached;
    report.full_bytes = s->full.num_bytes();
    PrefixCache::Finding finding = {prompt.prompt_token_ids, s->full, request.prefix_salt, s->spec};
    finding.draft = s->draft.has_value() ? &*s->draft : nullptr;
    finding.scores = s->scores;
    finding.known_tokens = known.has_value() ? report.stored_tokens : cached;
    finding.keep_draft = PrefixCache::Finding::Draft::kAlways;
    finding.label = options.label;
    impl.prefixes->Add(finding);
    std::string bytes;
    if (s->draft.has_value()) s->draft->AppendTo(&bytes);
    if (s->draft.has_value()) report.drafts.emplace_back(s->spec.ToString(), bytes.size());
    total += s->full.num_bytes() + bytes.size();
    // Each spec's record is written before the next is computed: the queue stays short.
    while (!impl.prefixes->WaitForWrites(kTick))
      if (on_bytes) on_bytes(impl.prefixes->saved_bytes() - saved, total);
    if (on_bytes) on_bytes(impl.prefixes->saved_bytes() - saved, total);
    if (!known.has_value()) known.emplace(s->full.Fork());
  }
  if (impl.prefixes->failed_saves() > failed)
    return absl::UnavailableError(
        StrCat("the prefix store did not take all of it (", impl.prefixes->saved_bytes() - saved,
               " of ", total, " bytes; what it took is of use): ", impl.prefixes->why_not_saved(),
               "; make room there or push a shorter text"));
  return report;
}

}  // namespace vericache
