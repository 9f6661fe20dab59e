// Who may hold what. One budget; caches (hot blocks, prefix cache) live in what nobody is promised
// and are shrunk first; then the last request in order gives up what it holds.

#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace vericache {
namespace {

// A remote request's next question usually comes sooner.
constexpr double kLongIdleSeconds = 5;

}  // namespace

int64_t Scheduler::Impl::ChargedBytes() const {
  int64_t sum = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry->admitted()) sum += entry->ChargedBytes(entry->round_len);
  }
  return sum + (Prefilling() ? limits_.prefill_bytes : 0);
}

bool Scheduler::Impl::Prefilling() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const auto& e) {
    return e.second->spillable && e.second->phase == Phase::kPrefill;
  });
}

int64_t Scheduler::Impl::SpillBytesHeld() const {
  int64_t sum = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry->holds_spill) sum += entry->MaxFullBytes();
  }
  return sum;
}

bool Scheduler::Impl::TryAdmit(RequestEntry* entry, StepPlan* plan) {
  int64_t headroom = 0;
  for (const auto& [id, other] : entries_) {
    if (!other->admitted()) continue;
    headroom += std::max<int64_t>(
        0, other->ChargedBytes(kHeadroomTokens) - other->ChargedBytes(other->round_len));
  }
  const bool alone = usage().num_running == 0;
  const bool prefills = entry->computed_rows < entry->target_rows();
  int64_t need = entry->ChargedBytes(alone ? 0 : kHeadroomTokens);
  if (prefills && entry->spillable && !Prefilling()) need += limits_.prefill_bytes;
  if (need + headroom > capacity() - ChargedBytes()) return false;
  if (entry->spillable && !entry->holds_spill) {
    if (entry->MaxFullBytes() > limits_.spill_bytes - SpillBytesHeld()) return false;
    entry->holds_spill = true;
  }
  entry->phase = prefills ? Phase::kPrefill : entry->info.remote ? Phase::kParked : Phase::kStart;
  entry->round_len = 0;
  entry->last_emit_s = now_s_;
  plan->admit.push_back({entry->info.id, entry->draft_kv_fits, entry->was_preempted});
  return true;
}

// Strictly in order: a smaller request behind a waiting one does not pass it, or the large one
// might wait for ever. Who is idle gives way.
void Scheduler::Impl::Admit(StepPlan* plan) {
  int num_running = usage().num_running;
  for (RequestEntry* entry : order_) {
    if (entry->admitted() || entry->idle()) continue;
    while (num_running >= limits_.max_running || !TryAdmit(entry, plan)) {
      if (PreemptIdle(plan)) {
        --num_running;
        continue;
      }
      if (num_running > 0) return;
      // Nobody runs and the head does not fit: preempted requests behind it hold the disk.
      MakeSpillRoom(*entry, plan);
      if (!TryAdmit(entry, plan)) return;
      break;
    }
    ++num_running;
  }
}

// The one that has been idle for longest.
bool Scheduler::Impl::PreemptIdle(StepPlan* plan) {
  for (auto it = order_.rbegin(); it != order_.rend() && (*it)->idle(); ++it) {
    if (!(*it)->admitted()) continue;
    Preempt(*it, plan);
    return true;
  }
  return false;
}

void Scheduler::Impl::MakeSpillRoom(const RequestEntry& head, StepPlan* plan) {
  for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
    RequestEntry* entry = *it;
    if (head.MaxFullBytes() <= limits_.spill_bytes - SpillBytesHeld()) return;
    if (entry == &head || entry->admitted() || !entry->holds_spill) continue;
    entry->holds_spill = false;
    entry->computed_rows = 0;
    plan->preempt.push_back({entry->info.id, /*drop_full_kv=*/true});
  }
}

// Comes before any work of the step is planned, so there is none to take back.
void Scheduler::Impl::Preempt(RequestEntry* entry, StepPlan* plan) {
  VC_CHECK(entry->admitted() && plan->work.empty());
  rings_.Release(entry->info.id);
  entry->phase = Phase::kWaiting;
  entry->round_len = 0;
  entry->prefill_rows = 0;
  const RequestId id = entry->info.id;
  const auto admitted = std::find_if(plan->admit.begin(), plan->admit.end(),
                                     [id](const Admission& a) { return a.id == id; });
  if (admitted != plan->admit.end()) {  // within one plan: the executor never hears of it
    plan->admit.erase(admitted);
    return;
  }
  entry->was_preempted = true;
  entry->draft_bytes = 0;
  entry->hot_bytes = 0;
  entry->hot_grant_bytes = 0;
  entry->num_retries = 0;
  if (!entry->spillable) entry->computed_rows = 0;
  plan->preempt.push_back({id, !entry->spillable});
}

int Scheduler::Impl::FitRound(RequestEntry* entry, int wanted, StepPlan* plan) {
  for (;;) {
    const int64_t others = ChargedBytes() - entry->ChargedBytes(entry->round_len);
    const int64_t room = capacity() - others;
    if (entry->ChargedBytes(0) <= room) {
      int len = wanted;
      while (len > 0 && entry->ChargedBytes(len) > room) --len;
      return len;
    }
    RequestEntry* victim = nullptr;
    for (RequestEntry* candidate : order_) {
      if (candidate->admitted()) victim = candidate;  // the last one in order
    }
    VC_CHECK(victim != nullptr);
    Preempt(victim, plan);
    if (victim == entry) return -1;
  }
}

// Blocks that come back cost nothing: the next pass over the request reads them anyway, and keeps
// them. But each that goes is written. So a grant shrinks when it must, and where memory is short
// it grows only by what the ups and downs of drafts will not take back at once.
int64_t Scheduler::Impl::HotGrant(const RequestEntry& entry, int64_t left) const {
  const int64_t block = entry.block_bytes();
  if (block <= 0) return 0;
  const int64_t wanted = (entry.num_tokens() + entry.round_len) / kBlockTokens;
  const int64_t fit = std::min(wanted, std::max<int64_t>(left, 0) / block);
  const int64_t now = entry.hot_grant_bytes / block;
  if (fit <= now || fit == wanted) return fit * block;
  const int64_t swing = usage().num_running * kHeadroomTokens * entry.info.tail_bytes_per_token;
  const int64_t slack = 1 + fit / 16 + swing / block;
  return std::max(now, fit - slack) * block;
}

// Questions move requests about in the order, and blocks that go are written: so hot blocks go by
// who came first, and who has been idle for long comes last.
std::vector<RequestEntry*> Scheduler::Impl::CacheOrder() const {
  std::vector<RequestEntry*> order = order_;
  const auto forgotten = [this](const RequestEntry* e) {
    return e->idle() && now_s_ - e->parked_s > kLongIdleSeconds;
  };
  std::stable_sort(order.begin(), order.end(), [&](const RequestEntry* a, const RequestEntry* b) {
    if (forgotten(a) != forgotten(b)) return forgotten(b);
    if (forgotten(a)) return a->parked_s > b->parked_s;
    return a->added_s < b->added_s;
  });
  return order;
}

void Scheduler::Impl::GrantCaches(StepPlan* plan) {
  int64_t left = capacity() - ChargedBytes();
  for (RequestEntry* entry : CacheOrder()) {
    if (!entry->admitted() || !entry->spillable) continue;
    const int64_t grant = HotGrant(*entry, left);
    left -= grant;
    // What is spilled now is not in RAM again when a later grant is larger.
    entry->hot_bytes = std::min(entry->hot_bytes, grant);
    if (grant == entry->hot_grant_bytes) continue;
    entry->hot_grant_bytes = grant;
    plan->hot.push_back({entry->info.id, grant});
  }
  plan->prefix_cache_bytes = std::max<int64_t>(left, 0);
}

}  // namespace vericache
