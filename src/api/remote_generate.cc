// One answer by remote drafting: the loop of many with a single request, and what this node does
// when no verifier is left.
#include <utility>

#include "api/answer_stream.h"
#include "api/engine_impl.h"
#include "api/remote_loop.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/prefix_loader.h"
#include "vericache/remote.h"

namespace vericache {
namespace {

// One call of GenerateRemote().
class RemoteRun {
 public:
  RemoteRun(Engine* engine, const Request& request, const RemoteOptions& options,
            const Callbacks& callbacks, RemoteStats* stats)
      : engine_(engine),
        impl_(EngineAccess::Of(engine)),
        request_(request),
        options_(options),
        callbacks_(callbacks),
        stats_(stats),
        stream_(*impl_->tokenizer, callbacks_) {}

  absl::StatusOr<Completion> Run(const std::vector<RemoteVerifier*>& verifiers);

 private:
  RemoteHooks MakeHooks();
  absl::StatusOr<Completion> Finish();
  absl::StatusOr<Completion> GoOnAlone();
  void TakePrefix();
  absl::Status ComputeAlone();

  Engine* engine_;
  EngineAccess::Impl* impl_;
  const Request& request_;
  const RemoteOptions& options_;
  const Callbacks& callbacks_;
  RemoteStats* stats_;
  AnswerStream stream_;
  std::unique_ptr<Sequence> s_;  // once the remote part has ended
  RemoteEnd::Kind kind_ = RemoteEnd::Kind::kDone;
  bool by_choice_ = false;                // this node goes on because it is faster
  std::unique_ptr<PrefixLookup> lookup_;  // with what was loaded for that
  bool stopped_in_prefill_ = false;
  int64_t cached_ = 0;
  double start_s_ = NowSeconds();
  RequestTimes times_;
  std::unique_ptr<PrefixLoader> loader_;  // goes before what it tells
};

RemoteHooks RemoteRun::MakeHooks() {
  RemoteHooks hooks;
  hooks.on_step = [this](const Sequence& s) { return stream_.Push(s); };
  if (callbacks_.on_prefill) {
    hooks.on_prefill = [this](int64_t done, int64_t total) {
      stopped_in_prefill_ = !callbacks_.on_prefill(done, total);
      return !stopped_in_prefill_;
    };
  }
  hooks.fits_here = [this](const Sequence& s) {
    return !s.memory.has_value() || !s.memory->spills();
  };
  hooks.start_load = [this](Sequence* s, std::function<void()> on_done) {
    std::unique_ptr<PrefixLookup> lookup = impl_->PlanPrefix(request_, *s, PrefixUse::kAlone);
    const bool loads = lookup != nullptr && lookup->asks_store();
    return loads ? loader_->Start(std::move(lookup), std::move(on_done)) : nullptr;
  };
  hooks.on_end = [this](RemoteEnd end) {
    s_ = std::move(end.sequence);
    *stats_ = std::move(end.stats);
    times_ = end.times;
    kind_ = end.kind;
    by_choice_ = end.by_choice;
    lookup_ = std::move(end.lookup);
  };
  return hooks;
}

absl::StatusOr<Completion> RemoteRun::Finish() {
  Completion completion = impl_->Finish(*s_, cached_, times_.prefill_s);
  completion.stats.full_bytes =
      impl_->model->config.kv_shape().bytes_per_token() * (s_->tokens.size() - 1);
  times_.end_s = NowSeconds() - start_s_;
  completion.stats.times = times_;
  completion.stats.remote = *stats_;
  return completion;
}

// The prefix's K/V: loaded while the verifier answered, or found now. A choice to compute asks no
// store.
void RemoteRun::TakePrefix() {
  Sequence& s = *s_;
  if (!by_choice_) return impl_->UsePrefix(request_, &s, /*alone=*/true);
  if (lookup_ == nullptr) lookup_ = impl_->PlanPrefix(request_, s, PrefixUse::kAlone);
  if (lookup_ != nullptr) impl_->TakePrefix(std::move(lookup_), PrefixUse::kAlone, &s);
}

// K/V of the prompt and of what is emitted, then rounds on this node's own full KV.
absl::Status RemoteRun::ComputeAlone() {
  TakePrefix();
  cached_ = s_->full.num_tokens();
  s_->draft.reset();
  LoopOptions options;
  options.planned_memory = true;
  options.max_pass_rows = impl_->MakePrefillOptions(callbacks_, s_.get()).chunk_rows;
  if (s_->memory.has_value()) options.staging_bytes = s_->memory->staging_bytes;
  RequestLoop loop(impl_->MakeLoopParts(), options);
  LoopHooks hooks;
  // A prompt that the verifier has had is computed again here without asking.
  if (s_->num_emitted() == 0) hooks.on_prefill = callbacks_.on_prefill;
  hooks.on_step = [this](const Sequence& s) { return stream_.Push(s); };
  hooks.on_end = [this](std::unique_ptr<Sequence> s, const RequestTimes&) { s_ = std::move(s); };
  const int64_t before = s_->num_emitted();
  const DraftSizes sizes = impl_->FitDraft(request_, loop, 1, s_.get());
  VC_RETURN_IF_ERROR(loop.Add(std::move(s_), sizes, std::move(hooks)).status());
  while (loop.Step()) {
  }
  stats_->local_tokens = s_->num_emitted() - before;
  if (absl::IsCancelled(s_->error)) {
    s_->finish = FinishReason::kNone;
    return s_->num_emitted() == 0 ? s_->error : absl::OkStatus();
  }
  if (s_->finish == FinishReason::kError) return s_->error;
  stream_.Push(*s_);
  return absl::OkStatus();
}

absl::StatusOr<Completion> RemoteRun::GoOnAlone() {
  const std::string& why = stats_->fallback;
  if (!why.empty()) impl_->Tell(StrCat("no verifier left, this node computes by itself: ", why));
  if (s_->num_emitted() == 0 && !by_choice_) {
    s_.reset();  // its memory
    absl::StatusOr<Completion> completion = engine_->Generate(request_, nullptr, callbacks_);
    if (!completion.ok()) return completion;
    stats_->local_tokens = completion->usage.completion_tokens;
    completion->stats.remote = *stats_;
    return completion;
  }
  VC_RETURN_IF_ERROR(ComputeAlone());
  absl::StatusOr<Completion> completion = Finish();
  impl_->KeepPrefix(request_, *s_, cached_);
  return completion;
}

absl::StatusOr<Completion> RemoteRun::Run(const std::vector<RemoteVerifier*>& verifiers) {
  VC_ASSIGN_OR_RETURN(s_, impl_->MakeSequence(request_, nullptr));
  if (s_->max_tokens <= 0) return GoOnAlone();
  VC_RETURN_IF_ERROR(engine_->ModelDigest().status());
  {
    RemoteLoopOptions options;
    options.remote = options_;
    options.max_pass_rows = impl_->options.prefill_chunk;
    options.max_calls = 2;  // a question and a look-up
    options.kept_drafts = 0;
    RemoteLoop loop(impl_, verifiers, std::move(options));
    stream_.Watch(s_.get());
    loader_ = std::make_unique<PrefixLoader>(1);
    loop.Add(std::move(s_), request_, MakeHooks());
    while (!loop.empty())
      if (!loop.Step() && !loop.empty()) loop.Wait();
    loader_.reset();  // tells the loop
  }
  if (stopped_in_prefill_) return absl::CancelledError("stopped during prefill");
  return kind_ == RemoteEnd::Kind::kHandedOver ? GoOnAlone() : Finish();
}

}  // namespace

absl::StatusOr<Completion> GenerateRemote(Engine* engine, const Request& request,
                                          const std::vector<RemoteVerifier*>& verifiers,
                                          const RemoteOptions& options, const Callbacks& callbacks,
                                          RemoteStats* stats) {
  VC_RETURN_IF_ERROR(CheckRemoteOptions(options));
  RemoteStats own;
  if (stats == nullptr) stats = &own;
  return RemoteRun(engine, request, options, callbacks, stats).Run(verifiers);
}

}  // namespace vericache
