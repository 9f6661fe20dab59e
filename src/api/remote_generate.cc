// One answer by remote drafting: the loop of many with a single request, and what this node does
// when no verifier is left.
#include <utility>

#include "api/answer_stream.h"
#include "api/engine_impl.h"
#include "api/remote_loop.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/round.h"
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
  bool stopped_in_prefill_ = false;
  int64_t cached_ = 0;
  double start_s_ = NowSeconds();
  RequestTimes times_;
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
  hooks.on_end = [this](RemoteEnd end) {
    s_ = std::move(end.sequence);
    *stats_ = std::move(end.stats);
    times_ = end.times;
    kind_ = end.kind;
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

// K/V of the prompt and of what is emitted, then rounds on this node's own full KV.
absl::Status RemoteRun::ComputeAlone() {
  Sequence& s = *s_;
  impl_->UsePrefix(request_, &s, /*alone=*/true);
  cached_ = s.full.num_tokens();
  s.draft.reset();
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
  const std::string& why = stats_->fallback;
  if (!why.empty()) impl_->Tell(StrCat("no verifier left, this node computes by itself: ", why));
  if (s_->num_emitted() == 0) {
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
    loop.Add(std::move(s_), request_, MakeHooks());
    while (!loop.empty())
      if (!loop.Step() && !loop.empty()) loop.Wait();
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
