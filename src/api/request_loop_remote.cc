// Requests whose drafts come from outside.
#include <algorithm>
#include <utility>

#include "api/request_loop_impl.h"
#include "base/text.h"

namespace vericache {

RequestInfo RequestLoop::RemoteInfoOf(const Sequence& sequence, int priority) const {
  RequestInfo info = InfoOf(sequence, {}, priority, 0);
  info.remote = true;
  info.modes = ModeBit(DraftMode::kPlain);
  info.fixed_draft_len = kAutoDraftLen;
  return info;
}

absl::StatusOr<RequestId> RequestLoop::AddRemote(std::unique_ptr<Sequence> sequence,
                                                 LoopHooks hooks, int priority) {
  const RequestInfo info = RemoteInfoOf(*sequence, priority);
  return AddRequest(info, std::move(sequence), std::move(hooks));
}

absl::Status RequestLoop::Ask(RequestId id, absl::Span<const TokenId> drafted, int plain_tokens) {
  const auto found = running_.find(id);
  if (found == running_.end())
    return absl::NotFoundError(StrCat("request ", id, " is unknown or has ended"));
  Running& r = *found->second;
  const Sequence& s = *r.sequence;
  const int64_t left = s.max_tokens - s.num_emitted() - 1;  // a pass emits one more than it accepts
  const int64_t length =
      std::min<int64_t>({std::ssize(drafted), left, int64_t{scheduler_.MaxQuestion()}});
  if (absl::Status status = scheduler_.Ask(id, static_cast<int>(length), Now()); !status.ok())
    return status;
  r.question.assign(drafted.begin(), drafted.begin() + length);
  r.plain_left = drafted.empty() ? plain_tokens : 1;
  r.parked = false;
  return absl::OkStatus();
}

const Sequence* RequestLoop::Find(RequestId id) const {
  const auto found = running_.find(id);
  return found == running_.end() ? nullptr : found->second->sequence.get();
}

// The first drafted tokens of the question are what the pass is to check.
void RequestLoop::PutQuestion(int length, Running* r) {
  r->sequence->drafted.clear();
  for (int i = 0; i < length; ++i) r->sequence->drafted.push_back({r->question[i]});
}

// After work that did not end the request.
void RequestLoop::Park(RequestId id, WorkKind kind) {
  const auto found = running_.find(id);
  if (found == running_.end() || !found->second->remote) return;
  Running& r = *found->second;
  if (kind == WorkKind::kPrefill) {
    // One that lost its K/V computes them again for a question that is still to be answered.
    if (r.prompt->rows_left() > 0 || std::exchange(r.begun, true)) return;
  }
  r.parked = true;
  r.question.clear();
  if (--r.plain_left > 0 && Ask(id, {}, r.plain_left).ok()) return;
  r.plain_left = 0;
  if (r.hooks.on_parked) r.hooks.on_parked(*r.sequence);
}

}  // namespace vericache
