// What each request does in this step. Rounds are started and placed in the rings first; then what
// the rings put into this step is planned, then draft rows and prefill in what is left of the pass.

#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace vericache {
namespace {

constexpr int kTwoLevelRows = 5;  // one row and four proposals

// Predictions are a few percent off: plan bursts to end this much before their cap.
constexpr double kBurstMargin = 0.95;
// Of the time that plain decoding of all would take over the link, where that is longer than the
// cap.
constexpr double kLeastStreamedBurst = 1.5;

bool IsTwoLevel(DraftMode mode) {
  return mode == DraftMode::kNgramDraftKv || mode == DraftMode::kModelDraftKv;
}

// How far the stagger policy may move a verification from the best length: half of it. Around its
// best the rate is flat; further away it is not.
int Reach(int draft_len) { return std::max(2, draft_len / 2); }

bool MayMove(ChoiceReason reason) {
  return reason == ChoiceReason::kFastest || reason == ChoiceReason::kStay;
}

}  // namespace

// Draft steps before `draft_len` tokens are there.
int Scheduler::Impl::DraftSteps(const RequestEntry& entry, int draft_len) const {
  if (!IsTwoLevel(entry.controller.choice().mode)) return draft_len;
  const double per_step = static_cast<double>(entry.num_draft_tokens + 2) /
                          static_cast<double>(entry.num_draft_steps + 1);
  return std::max(1, static_cast<int>(draft_len / std::max(per_step, 1.0)));
}

// The longest draft whose verification ends before the burst cap; 0 if none does: verify at once.
// Everyone who decodes may verify once in that time, as long as this request, and in the same pass.
// Where the link is what takes time, plain decoding of all who share it is no way to be in time: it
// takes nearly as long for one token each. There a draft may add half of that time, cap or no cap.
int Scheduler::Impl::BurstLength(RequestEntry* entry, const RoundCosts& costs) const {
  if (entry->info.max_burst_s <= 0) return kMaxDraftLen;
  const double fetch_s = std::max(0.0, costs.fetch_s - (costs.alone ? costs.staging_s : 0.0));
  const double num_decoding = std::max(1, NumDecoding());
  const double round_s = num_decoding * std::max(costs.verify_s, fetch_s);
  const bool streams = fetch_s > costs.verify_s;
  entry->burst_s = std::max(kBurstMargin * entry->info.max_burst_s,
                            streams ? kLeastStreamedBurst * round_s : 0.0);
  const double spare_s = entry->last_emit_s + entry->burst_s - now_s_ - round_s;
  const double token_s = rings_.draft_pass_s() + num_decoding * costs.row_s;
  return static_cast<int>(std::clamp(spare_s / token_s, 0.0, 1.0 * kMaxDraftLen));
}

// Whether the token would be late if the request verified in the next step and not in this one.
bool Scheduler::Impl::BurstIsDue(const RequestEntry& entry) const {
  if (entry.burst_s <= 0 || entry.info.remote) return false;
  const Reservation* at = rings_.Find(entry.info.id);
  if (at != nullptr && at->verify_slot == 0) return false;
  double next_end_s = now_s_ + rings_.SecondsUntilEnd(1);
  if (at == nullptr || at->verify_slot > 1) {
    next_end_s += NeedFor(entry, entry.controller.num_drafted() + 1).verify_s;
  }
  return next_end_s > entry.last_emit_s + entry.burst_s;
}

int Scheduler::Impl::VerifyLength(const RequestEntry& entry) {
  if (entry.info.remote) return entry.round_len;
  const DraftChoice& choice = entry.controller.choice();
  return UsesDraftKv(choice.mode) ? entry.controller.num_drafted() : choice.draft_len;
}

// What parked requests have emitted takes room already.
void Scheduler::Impl::FitParked(StepPlan* plan) {
  if (ChargedBytes() <= capacity()) return;
  for (RequestEntry* entry : order_)
    if (entry->phase == Phase::kParked) FitRound(entry, 0, plan);
}

void Scheduler::Impl::StartQuestion(RequestEntry* entry, StepPlan* plan) {
  const int len = FitRound(entry, entry->question_len, plan);
  if (len < 0) return;  // preempted; the question stays
  entry->round_len = len;
  entry->round_s = entry->draft_s = 0;
  entry->phase = Phase::kReady;
}

void Scheduler::Impl::StartRounds(StepPlan* plan) {
  FitParked(plan);
  if (verifying_) {  // lock-step: whoever has verified waits until all have
    for (RequestEntry* entry : order_) {
      // What it has emitted takes room already.
      if (entry->phase == Phase::kStart) FitRound(entry, 0, plan);
    }
    verifying_ = std::any_of(order_.begin(), order_.end(), [](const RequestEntry* entry) {
      return entry->phase == Phase::kReady &&
             (entry->info.remote || UsesDraftKv(entry->controller.choice().mode));
    });
    if (verifying_) return;
  }
  for (RequestEntry* entry : order_) {
    if (entry->phase == Phase::kStart) StartRound(entry, plan);
    if (entry->phase == Phase::kParked && entry->asked()) StartQuestion(entry, plan);
  }
}

void Scheduler::Impl::StartRound(RequestEntry* entry, StepPlan* plan) {
  const RoundCosts costs = CostsFor(*entry);
  RoundLimits limits;
  limits.modes = entry->allowed_modes();
  limits.fixed_draft_len = entry->info.fixed_draft_len;
  limits.max_draft_len =
      static_cast<int>(std::min<int64_t>({entry->info.max_draft_len, entry->tokens_left() - 1,
                                          limits_.max_pass_rows - 1, BurstLength(entry, costs)}));
  const DraftChoice& choice = entry->controller.Choose(costs, limits);
  entry->has_choice = true;

  int wanted = choice.draft_len;
  if (UsesDraftKv(choice.mode) && MayMove(choice.reason)) {
    wanted = std::min(limits.max_draft_len, wanted + Reach(wanted));
  }
  const int len = FitRound(entry, wanted, plan);
  if (len < 0) return;  // preempted
  if (len < choice.draft_len) entry->controller.SetDraftLen(len);
  entry->round_len = len;
  entry->max_slot = len;
  entry->round_s = entry->draft_s = 0;
  entry->plain_step_s = costs.PlainSeconds();
  const bool drafts = entry->controller.choice().draft_len > 0 && UsesDraftKv(choice.mode);
  entry->phase = drafts ? Phase::kDrafting : Phase::kReady;
}

void Scheduler::Impl::PlaceRound(RequestEntry* entry) {
  DraftController& controller = entry->controller;
  const int len = controller.choice().draft_len;
  const int steps = DraftSteps(*entry, len);
  StreamNeed need = NeedFor(*entry, len);
  const bool may_move =
      MayMove(controller.choice().reason) && !IsTwoLevel(controller.choice().mode);
  const int lo = may_move ? std::max(1, steps - Reach(steps)) : steps;
  const int hi = may_move ? std::max(steps, entry->max_slot) : steps;
  need.rows = std::max(len, may_move ? hi : len) + 1;
  const std::optional<int> slot = rings_.ReserveNear(entry->info.id, steps, lo, hi, need);
  if (slot.has_value()) {
    if (may_move) controller.SetDraftLen(*slot);
  } else {
    rings_.ReserveSoonest(entry->info.id, steps, need);  // draft, then perhaps wait
  }
  entry->round_len = controller.choice().draft_len;
}

// A complete draft, or a plain step: the earliest slot that fits. A reservation that exists is
// kept, unless the draft has just stopped early. `urgent`: now, even if the pass waits for the
// link.
void Scheduler::Impl::PlaceReady(RequestEntry* entry, bool stopped_early, bool urgent) {
  const RequestId id = entry->info.id;
  const Reservation* at = rings_.Find(id);
  if (at != nullptr && (at->verify_slot == 0 || !(urgent || stopped_early))) return;
  StreamNeed need = NeedFor(*entry, VerifyLength(*entry));
  bool started = false;
  if (at != nullptr) {
    // What is being read stays where it is, unless the next token is due.
    if (at->fetch_started && !urgent) return;
    started = at->fetch_started;
    need.min_staging_bytes = std::max(need.min_staging_bytes, started ? at->staging_bytes : 0);
    rings_.Release(id);
  }
  if (urgent && rings_.ReserveNow(id, need)) {
    if (started) rings_.MarkFetchStarted(id);
    return;
  }
  rings_.ReserveSoonest(id, 0, need);
  if (started && rings_.Find(id) != nullptr) rings_.MarkFetchStarted(id);
}

void Scheduler::Impl::PlacePrefill(RequestEntry* entry) {
  const RequestId id = entry->info.id;
  const Reservation* at = rings_.Find(id);
  if (entry->StreamedBytes() == 0) {
    if (at != nullptr && !at->fetch_started && at->staging_bytes == 0) rings_.Release(id);
    return;
  }
  if (at != nullptr) return;
  // Earlier rows come over the link for every chunk: make it worth the transfer, and leave half of
  // the link to others.
  const int num_decoding = NumDecoding();
  const double budget_s =
      std::max(limits_.prefill_chunk_s, 2 * costs_.FetchSeconds(entry->StreamedBytes()));
  int64_t rows = std::min(limits_.max_pass_rows, entry->target_rows() - entry->computed_rows);
  if (num_decoding > 0) {
    rows = PrefillRows(*entry, std::max<int64_t>(1, std::min(rows, limits_.max_pass_rows / 2)),
                       budget_s);
  }
  entry->prefill_rows = static_cast<int>(rows);
  StreamNeed need;
  need.bytes = entry->StreamedBytes();
  need.min_staging_bytes = entry->info.min_staging_bytes;
  need.verify_s = costs_.ExtraSeconds(DraftPassShape(), PrefillShape(*entry, rows));
  need.rows = static_cast<int>(rows);
  rings_.ReserveSoonest(id, 0, need);
}

bool Scheduler::Impl::BarrierReached() const {
  return std::none_of(entries_.begin(), entries_.end(),
                      [](const auto& e) { return e.second->phase == Phase::kDrafting; });
}

void Scheduler::Impl::PlaceAll() {
  // Prefill strictly in order; in lock-step, where nothing is reserved ahead, it does not take the
  // staging from an earlier request that is to verify.
  const bool lock_step = options_.stagger == StaggerPolicy::kLockStep;
  bool prefill_may_start = true;
  for (RequestEntry* entry : order_) {
    if (entry->phase == Phase::kPrefill && prefill_may_start) {
      prefill_may_start = false;
      PlacePrefill(entry);
    }
    if (lock_step && entry->phase == Phase::kReady) prefill_may_start = false;
    if (entry->phase != Phase::kDrafting && entry->phase != Phase::kReady) continue;
    const bool urgent = BurstIsDue(*entry);
    const Reservation* at = rings_.Find(entry->info.id);
    // Reserved as all in RAM, and hot blocks were taken away since: it needs the link after all.
    if (at != nullptr && at->staging_bytes == 0 && entry->StreamedBytes() > 0) {
      rings_.Release(entry->info.id);
      at = nullptr;
    }
    bool stopped_early = false;
    if (entry->phase == Phase::kDrafting &&
        (!entry->controller.KeepDrafting() || (urgent && entry->controller.num_drafted() > 0) ||
         (at != nullptr && at->verify_slot == 0))) {
      entry->phase = Phase::kReady;
      stopped_early = true;
    }
    if (lock_step) continue;
    if (entry->phase == Phase::kReady) {
      PlaceReady(entry, stopped_early, urgent);
    } else if (at == nullptr) {
      PlaceRound(entry);
    }
  }
}

void Scheduler::Impl::PlanWork(StepPlan* plan) {
  rows_left_ = limits_.max_pass_rows;
  prefill_bytes_left_ = limits_.prefill_bytes;
  PlaceAll();
  PlanReserved(plan);
  PlanUnreserved(plan);
}

// What the rings (or, in lock-step, the barrier) put into this step.
void Scheduler::Impl::PlanReserved(StepPlan* plan) {
  const bool lock_step = options_.stagger == StaggerPolicy::kLockStep;
  const bool barrier = BarrierReached();
  verifying_ = lock_step && barrier;
  int64_t num_drafting = 0;
  for (RequestEntry* entry : order_) num_drafting += entry->phase == Phase::kDrafting;
  for (RequestEntry* entry : order_) {
    const RequestId id = entry->info.id;
    if (entry->phase == Phase::kReady && lock_step && rings_.Find(id) == nullptr) {
      const DraftMode mode = entry->controller.choice().mode;
      if (UsesDraftKv(mode) && !barrier) continue;
      rings_.ReserveNow(id, NeedFor(*entry, VerifyLength(*entry)));
    }
    const Reservation* at = rings_.Find(id);
    if (at == nullptr || at->verify_slot != 0) continue;
    if (entry->phase == Phase::kReady) {
      PlanVerify(entry, plan);
    } else if (entry->phase == Phase::kPrefill) {
      // The rings have kept its rows free; draft rows of others have their place too.
      const int64_t rows = std::min<int64_t>(entry->prefill_rows, rows_left_ - num_drafting);
      PlanPrefill(entry, std::max<int64_t>(1, rows), plan);
    }
  }
}

void Scheduler::Impl::PlanUnreserved(StepPlan* plan) {
  int64_t num_drafting = 0;
  for (RequestEntry* entry : order_) num_drafting += entry->phase == Phase::kDrafting;
  double budget_s = limits_.prefill_chunk_s;
  const bool others = NumDecoding() > 0;
  for (RequestEntry* entry : order_) {
    if (rows_left_ <= 0) return;
    if (entry->phase == Phase::kDrafting) {
      --num_drafting;
      PlanDraft(entry, plan);
    } else if (entry->phase == Phase::kPrefill && entry->StreamedBytes() == 0 && budget_s > 0 &&
               rings_.Find(entry->info.id) == nullptr) {
      int64_t rows = std::min(entry->target_rows() - entry->computed_rows,
                              std::max<int64_t>(1, rows_left_ - num_drafting));
      if (others) rows = PrefillRows(*entry, rows, budget_s);
      budget_s -= costs_.ExtraSeconds(DraftPassShape(), PrefillShape(*entry, rows));
      PlanPrefill(entry, rows, plan);
    }
  }
}

void Scheduler::Impl::AddWork(const RequestEntry& entry, const Work& work, int64_t context,
                              StepPlan* plan) {
  plan->work.push_back(work);
  const bool reselects = entry.info.reselects && work.kind == WorkKind::kVerify &&
                         UsesDraftKv(work.mode) && work.draft_len > 0;
  planned_.push_back({work, entry.serial, context, entry.draft_bytes, reselects, 0});
  rows_left_ -= work.rows;
  VC_CHECK(rows_left_ >= 0);
}

void Scheduler::Impl::PlanVerify(RequestEntry* entry, StepPlan* plan) {
  Work work;
  work.id = entry->info.id;
  work.kind = WorkKind::kVerify;
  work.mode = entry->info.remote ? DraftMode::kPlain : entry->controller.choice().mode;
  work.draft_len = VerifyLength(*entry);
  work.rows = work.draft_len + 1;
  work.streamed_bytes = entry->StreamedBytes();
  work.staging_bytes = rings_.Find(work.id)->staging_bytes;
  rings_.MarkFetchStarted(work.id);
  AddWork(*entry, work, entry->num_tokens() + work.draft_len, plan);
}

void Scheduler::Impl::PlanDraft(RequestEntry* entry, StepPlan* plan) {
  Work work;
  work.id = entry->info.id;
  work.kind = WorkKind::kDraft;
  work.mode = entry->controller.choice().mode;
  const int missing = entry->controller.choice().draft_len - entry->controller.num_drafted();
  work.rows = IsTwoLevel(work.mode) ? std::min(kTwoLevelRows, missing) : 1;
  work.rows = static_cast<int>(std::min<int64_t>(work.rows, rows_left_));
  AddWork(*entry, work, entry->num_tokens(), plan);
}

void Scheduler::Impl::PlanPrefill(RequestEntry* entry, int64_t rows, StepPlan* plan) {
  const int64_t block = entry->block_bytes();
  if (entry->spillable && block > 0) {
    // Blocks it begins beside its open one.
    const int64_t used = entry->computed_rows % kBlockTokens;
    const int64_t fit = prefill_bytes_left_ / block;
    rows = std::min(rows, (fit + 1) * kBlockTokens - used);
    prefill_bytes_left_ -= (used + rows - 1) / kBlockTokens * block;
  }
  Work work;
  work.id = entry->info.id;
  work.kind = WorkKind::kPrefill;
  work.rows = static_cast<int>(rows);
  if (const Reservation* at = rings_.Find(work.id); at != nullptr) {
    work.streamed_bytes = entry->StreamedBytes();
    work.staging_bytes = at->staging_bytes;
    rings_.MarkFetchStarted(work.id);
  }
  AddWork(*entry, work, entry->computed_rows + CeilDiv(rows, 2), plan);
}

void Scheduler::Impl::PlanFetches(StepPlan* plan) {
  for (RequestEntry* entry : order_) {
    const Reservation* at = rings_.Find(entry->info.id);
    if (at == nullptr || at->fetch_started || at->staging_bytes == 0) continue;
    if (at->fetch_slot > 0 || at->verify_slot == 0) continue;
    plan->fetch.push_back({entry->info.id, at->staging_bytes});
    rings_.MarkFetchStarted(entry->info.id);
  }
}

}  // namespace vericache
