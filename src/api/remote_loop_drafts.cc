// The loop's draft KVs: fetched once for all that begin alike, kept within a budget.
#include <algorithm>
#include <utility>

#include "api/remote_loop_impl.h"
#include "base/common_tokens.h"

namespace vericache {

// One that begins like this one fetches what both will use.
bool RemoteLoop::OtherFetches(const Job& job) const {
  const Sequence& s = job.state.sequence();
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    const Job& other = *entry.second;
    const Sequence& o = other.state.sequence();
    if (other.fetch != Fetch::kRunning ||
        other.state.request().prefix_salt != job.state.request().prefix_salt ||
        o.spec.ToString() != s.spec.ToString())
      return false;
    return 2 * CommonTokens(s.tokens, o.tokens) >=
           std::max<int64_t>(2 * kBlockTokens, s.num_prompt);
  });
}

void RemoteLoop::StartFetch(Job* job) {
  const Sequence& s = job->state.sequence();
  const Request& request = job->state.request();
  if (!s.spec.enabled || !request.use_prefix_cache || !impl_->PrefixesHold() ||
      impl_->options.prefix_plan == "remote-plain") {
    job->fetch = Fetch::kOver;
    return;
  }
  const std::vector<TokenId> prompt(s.tokens.begin(), s.tokens.begin() + s.num_prompt);
  std::optional<DraftKv> kept = shelf_.Find(prompt, request.prefix_salt, s.spec.ToString());
  if (kept.has_value()) {
    ++totals_.shared_drafts;
    job->begins_like_earlier = true;
    FetchIsOver(job, {std::move(kept), 0});
    return;
  }
  if (OtherFetches(*job)) {
    job->fetch = Fetch::kAwaitsOther;
    return;
  }
  job->fetch = Fetch::kRunning;
  workers_.Post([this, id = job->id, prompt, salt = request.prefix_salt, spec = s.spec,
                 seconds = impl_->RecomputeSeconds(s)] {
    auto event = std::make_unique<Event>();
    event->id = id;
    event->draft = impl_->prefixes->FindDraftAlone(prompt, salt, spec, seconds);
    Push(std::move(event));
  });
}

void RemoteLoop::FetchIsOver(Job* job, PrefixCache::StoredDraft found) {
  job->fetch = Fetch::kOver;
  job->stored_tokens = found.full_tokens;
  std::optional<DraftKv>& draft = found.draft;
  const Sequence& s = job->state.sequence();
  if (draft.has_value()) {
    // A prefix and its drafts are stored together.
    job->stored_tokens =
        std::max(job->stored_tokens, draft->num_tokens() / kBlockTokens * kBlockTokens);
    const absl::Span<const TokenId> prompt = absl::MakeConstSpan(s.tokens).first(s.num_prompt);
    shelf_.Put(prompt, job->state.request().prefix_salt, s.spec.ToString(), *draft);
    if (MakeRoom(draft->num_bytes())) job->state.TakeDraftKv(*std::move(draft));
  }
  FetchForThoseThatWaited();
}

// Each looks for itself: in what has come, or at the store.
void RemoteLoop::FetchForThoseThatWaited() {
  for (const auto& [id, job] : jobs_) {
    if (job->fetch != Fetch::kAwaitsOther) continue;
    job->fetch = Fetch::kWanted;
    StartFetch(job.get());
  }
}

uint64_t RemoteLoop::draft_bytes() const {
  uint64_t bytes = shelf_.num_bytes();
  for (const auto& [id, job] : jobs_) bytes += job->state.draft_bytes();
  return bytes;
}

// What is kept for later goes first.
bool RemoteLoop::MakeRoom(uint64_t bytes) {
  if (options_.draft_memory == 0) return true;
  const uint64_t used = draft_bytes() + bytes;
  if (used > options_.draft_memory) shelf_.Free(used - options_.draft_memory);
  return draft_bytes() + bytes <= options_.draft_memory;
}

}  // namespace vericache
