// The service's requests whose full KV a verifier elsewhere has: handing them out, taking them
// back.
#include <utility>

#include "api/serve_loop.h"
#include "base/text.h"
#include "kv/draft_spec.h"

namespace vericache {

// Logits stay where the full KV is.
bool ServeLoop::GoesToVerifier(const ServeChoice& choice) const {
  return remote_ != nullptr && !choice.job->needs_logits && choice.sequence->max_tokens > 0 &&
         remote_->HasVerifier();
}

void ServeLoop::StartRemote(std::unique_ptr<ServeChoice> owned) {
  ServeChoice* choice = owned.get();
  std::unique_ptr<Sequence> s = std::move(choice->sequence);
  ServeJob& job = *choice->job;
  choice->local_spec = s->spec;
  // What is stored is what was asked for; a budget may have made the one of this node smaller.
  if (const absl::StatusOr<DraftSpec> asked = ParseDraftSpec(job.request.draft); asked.ok())
    s->spec = *asked;
  Request request = job.request;
  request.sampling.choice = choice->index;
  RemoteHooks hooks;
  hooks.on_prefill = [this, choice](int64_t done, int64_t total) {
    if (choice->index == 0) choice->stream->SendPrefill(done, total);
    return !wants_cancel_(choice->job->id);
  };
  hooks.on_step = [this, choice](const Sequence& sequence) {
    choice->answering = true;
    Count(choice, sequence);
    choice->stream->SendDelta();
    return true;
  };
  hooks.fits_here = [this](const Sequence& sequence) { return FitsHere(sequence); };
  hooks.start_load = [this, choice](Sequence* sequence, std::function<void()> on_done) {
    // What is loaded is for the spec that this node's budget allows.
    std::swap(sequence->spec, choice->local_spec);
    std::unique_ptr<PrefixLookup> lookup =
        impl_->PlanPrefix(choice->job->request, *sequence, PrefixUse::kShared);
    std::swap(sequence->spec, choice->local_spec);
    const bool loads = impl_->MostLoads() > 0 && lookup != nullptr && lookup->asks_store();
    return loads ? loader_->Start(std::move(lookup), std::move(on_done)) : nullptr;
  };
  // Under a budget the scheduler says what RAM has room for.
  if (impl_->tier == nullptr && impl_->options.prefix_memory_bytes > 0) {
    hooks.keep_load = [this, choice](const Sequence& s, std::unique_ptr<PrefixLookup> lookup) {
      impl_->KeepLoaded(choice->job->request, s, std::move(lookup));
    };
  }
  hooks.on_end = [this, choice](RemoteEnd end) { OnRemoteEnd(choice, std::move(end)); };
  active_.push_back(std::move(owned));
  choice->remote_id = remote_->Add(std::move(s), request, std::move(hooks));
  ChoiceBegins(&job);
  // The verifier has the prompt: the other choices find it there.
  if (choice->index == 0) job.prompt_over = true;
  changed_ = true;
}

void ServeLoop::OnRemoteEnd(ServeChoice* choice, RemoteEnd end) {
  if (end.kind == RemoteEnd::Kind::kHandedOver) return GoOnHere(choice, std::move(end));
  choice->remote = std::move(end.stats);
  OnEnd(choice, *end.sequence, end.times);
}

// There is no budget, or its RAM has room for all of it.
bool ServeLoop::FitsHere(const Sequence& s) const {
  if (impl_->tier == nullptr) return true;
  const uint64_t bytes = impl_->model->config.kv_shape().bytes_per_token() *
                         static_cast<uint64_t>(s.num_prompt + s.max_tokens);
  return loop_.kv_bytes().ram + impl_->LoadBytes() + bytes <= impl_->options.kv_memory;
}

// With what has been emitted, which does not change.
void ServeLoop::GoOnHere(ServeChoice* choice, RemoteEnd end) {
  choice->remote = std::move(end.stats);
  choice->remote_id = 0;
  choice->handed_over = true;
  choice->sequence = std::move(end.sequence);
  Sequence* s = choice->sequence.get();
  s->spec = choice->local_spec;
  if (!end.by_choice) {
    impl_->Tell(
        StrCat("no verifier left, this node computes by itself: ", choice->remote.fallback));
    return FindPrefix(choice);
  }
  const Request& request = choice->job->request;
  if (end.lookup == nullptr) {
    // What RAM has, no more: but scores that the store may have take as long as the prompt.
    std::unique_ptr<PrefixLookup> lookup = impl_->PlanPrefix(request, *s, PrefixUse::kShared);
    if (lookup != nullptr && lookup->memory_lacks_scores()) return FindPrefix(choice);
    return TakePrefix(std::move(lookup), choice);
  }
  impl_->TakePrefix(std::move(end.lookup), PrefixUse::kShared, s);
  // Others that begin like it need not load it, too. Its rows came out of the store.
  if (s->full.num_tokens() > 0) impl_->KeepPrefix(request, *s, s->full.num_tokens() - 1);
  TakePrefix(nullptr, choice);
}

void ServeLoop::Close() {
  loader_.reset();
  remote_.reset();
}

void ServeLoop::PublishRemote() {
  if (remote_ == nullptr) return;
  const RemoteTotals& totals = remote_->totals();
  RemoteServiceStats& stats = stats_.remote;
  stats.requests = totals.requests;
  stats.fallbacks = totals.fallbacks;
  stats.full_bytes = totals.full_bytes;
  stats.ways.clear();
  for (int i = 0; i < kNumPrefixWays; ++i)
    stats.ways.emplace_back(PrefixWayName(static_cast<PrefixWay>(i)), totals.ways[i]);
  stats.sessions = totals.opened;
  stats.failed_calls = totals.failed_calls;
  stats.replies = totals.replies;
  stats.rounds = totals.rounds;
  stats.drafted_tokens = totals.drafted;
  stats.accepted_tokens = totals.accepted;
  stats.emitted_tokens = totals.emitted;
  stats.ahead_tokens = totals.ahead;
  stats.looked_up_tokens = totals.looked_up;
  stats.provisional_rows = totals.provisional_rows;
  stats.rows_bytes = totals.rows_bytes;
  stats.fetched_draft_bytes = totals.draft_bytes;
  stats.fetched_drafts = totals.fetched_drafts;
  stats.shared_drafts = totals.shared_drafts;
  stats.draft_bytes = remote_->draft_bytes();
  stats.verifiers = static_cast<int>(options_.verifiers.size());
  stats.verifiers_up = remote_->num_verifiers_up();
  stats_.num_passes += totals.num_passes;
  stats_.pass_s += totals.pass_s;
}

}  // namespace vericache
