#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace vericache {
namespace {

// Far beyond any model and far below where a product of two sizes overflows.
constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr int64_t kMaxBytesPerToken = int64_t{1} << 30;
constexpr int64_t kMaxFixedBytes = int64_t{1} << 50;
constexpr int kMaxPriority = 1000000;

bool InRange(int64_t value, int64_t lo, int64_t hi) { return lo <= value && value <= hi; }

}  // namespace

Scheduler::Impl::Impl(const Limits& limits, const SchedulerOptions& options,
                      std::shared_ptr<Experience> experience)
    : limits_(limits),
      options_(options),
      experience_(experience != nullptr
                      ? std::move(experience)
                      : std::make_shared<Experience>(limits.pass, limits.link_bytes_per_s)),
      costs_(experience_->costs),
      shared_(experience_->acceptance),
      rings_(limits.staging_bytes, limits.max_pass_rows) {
  VC_CHECK(limits.staging_bytes >= 0 && limits.staging_bytes <= limits.kv_bytes);
  VC_CHECK(limits.spill_bytes >= 0 && limits.max_pass_rows >= 1 && limits.max_running >= 1);
  VC_CHECK(limits.prefill_chunk_s > 0 && limits.aging_s >= 0 && limits.prefill_bytes >= 0);
  // A row of each pass for everyone who runs, and one more: no one can be crowded out of a pass.
  limits_.max_running = static_cast<int>(
      std::min<int64_t>(limits.max_running, std::max<int64_t>(1, limits.max_pass_rows - 1)));
}

absl::Status Scheduler::Impl::CheckInfo(const RequestInfo& info) const {
  const bool sizes_good = InRange(info.prompt_tokens, 1, kMaxTokens) &&
                          InRange(info.cached_tokens, 0, info.prompt_tokens - 1) &&
                          InRange(info.max_tokens, 1, kMaxTokens) &&
                          InRange(info.emitted_tokens, 0, info.max_tokens - 1) &&
                          InRange(info.cached_hot_bytes, 0, kMaxFixedBytes) &&
                          InRange(info.full_bytes_per_token, 0, kMaxBytesPerToken) &&
                          InRange(info.draft_bytes_per_token, 0, kMaxBytesPerToken) &&
                          InRange(info.tail_bytes_per_token, 0, kMaxBytesPerToken) &&
                          InRange(info.fixed_bytes, 0, kMaxFixedBytes) &&
                          InRange(info.min_staging_bytes, 0, kMaxFixedBytes);
  if (!sizes_good) {
    return absl::InvalidArgumentError(absl::StrCat(
        "request ", info.id, ": sizes out of range; need at least one prompt token, fewer cached ",
        "than prompt tokens, and max_tokens of 1 or more"));
  }
  const bool options_good = InRange(info.fixed_draft_len, kAutoDraftLen, kMaxDraftLen) &&
                            InRange(info.max_draft_len, 0, kMaxDraftLen) &&
                            InRange(info.priority, -kMaxPriority, kMaxPriority) &&
                            std::isfinite(info.max_burst_s) && info.max_burst_s >= 0 &&
                            info.modes < (1u << kNumDraftModes);
  if (!options_good) {
    return absl::InvalidArgumentError(
        absl::StrCat("request ", info.id,
                     ": draft length, priority, burst, modes or emitted tokens out of range"));
  }
  return absl::OkStatus();
}

absl::Status Scheduler::Impl::CheckFits(const RequestEntry& entry) const {
  const int64_t need = entry.MinBytesAtLongest(false, limits_.prefill_bytes);
  if (need <= capacity()) return absl::OkStatus();
  const int64_t tokens = entry.info.prompt_tokens + entry.info.max_tokens;
  std::string why;
  if (!entry.spillable) {
    why = absl::StrCat(" (its full KV cannot be spilled: ", entry.MaxFullBytes(),
                       " bytes of it, room for ", limits_.spill_bytes, "; staging takes ",
                       entry.info.min_staging_bytes, ", there are ", limits_.staging_bytes, ")");
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("request ", entry.info.id, " can never fit: ", tokens, " tokens (prompt ",
                   entry.info.prompt_tokens, " + max_tokens ", entry.info.max_tokens, ") need ",
                   need, " bytes of KV memory, the budget has ", capacity(), why,
                   "; shorten it, lower max_tokens, or raise --kv-memory"));
}

std::unique_ptr<RequestEntry> Scheduler::Impl::MakeEntry(const RequestInfo& info) {
  auto entry = std::make_unique<RequestEntry>(info, options_.controller, &shared_);
  entry->spillable = limits_.spill_bytes >= entry->MaxFullBytes() && limits_.staging_bytes > 0 &&
                     limits_.staging_bytes >= info.min_staging_bytes;
  entry->draft_kv_fits =
      (info.modes & (ModeBit(DraftMode::kDraftKv) | ModeBit(DraftMode::kNgramDraftKv) |
                     ModeBit(DraftMode::kModelDraftKv))) != 0 &&
      entry->MinBytesAtLongest(true, limits_.prefill_bytes) <= capacity();
  return entry;
}

absl::Status Scheduler::Impl::Add(const RequestInfo& info, double now_s) {
  if (absl::Status status = CheckInfo(info); !status.ok()) return status;
  if (entries_.contains(info.id)) {
    return absl::AlreadyExistsError(absl::StrCat("request ", info.id, " is running already"));
  }
  std::unique_ptr<RequestEntry> entry = MakeEntry(info);
  if (absl::Status status = CheckFits(*entry); !status.ok()) return status;
  entry->serial = next_serial_++;
  entry->virtual_arrival_s = entry->added_s = now_s - info.priority * limits_.aging_s;
  entry->computed_rows = info.cached_tokens;
  entry->num_emitted = info.emitted_tokens;
  entry->hot_bytes = info.cached_hot_bytes;
  entries_.emplace(info.id, std::move(entry));
  return absl::OkStatus();
}

bool Scheduler::Impl::DraftKvFits(const RequestInfo& info, int together) {
  if (!CheckInfo(info).ok()) return false;
  const std::unique_ptr<RequestEntry> entry = MakeEntry(info);
  if (!entry->draft_kv_fits || together == 1) return entry->draft_kv_fits;
  // As TryAdmit() asks for, of the last of them: one prompt at a time, and a round of some length.
  const int64_t prefill = entry->spillable ? limits_.prefill_bytes : 0;
  const int64_t each = entry->BytesBesideOthers(kHeadroomTokens);
  return each <= (capacity() - prefill) / together;
}

void Scheduler::Impl::Forget(RequestId id) {
  rings_.Release(id);
  entries_.erase(id);
}

absl::Status Scheduler::Impl::Cancel(RequestId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("request ", id, " is unknown or has ended"));
  }
  to_release_.push_back(id);
  Forget(id);
  return absl::OkStatus();
}

absl::Status Scheduler::Impl::Ask(RequestId id, int draft_len, double now_s) {
  const auto found = entries_.find(id);
  if (found == entries_.end())
    return absl::NotFoundError(absl::StrCat("request ", id, " is unknown or has ended"));
  RequestEntry* entry = found->second.get();
  if (!entry->idle())
    return absl::FailedPreconditionError(
        absl::StrCat("request ", id, " is not waiting for a question"));
  if (draft_len < 0 || draft_len > MaxQuestion() || draft_len >= entry->tokens_left())
    return absl::InvalidArgumentError(absl::StrCat("request ", id, " was asked for ", draft_len,
                                                   " drafted tokens: ", entry->tokens_left(),
                                                   " are left, a pass takes ", MaxQuestion()));
  entry->question_len = draft_len;
  entry->virtual_arrival_s = now_s - entry->info.priority * limits_.aging_s;
  return absl::OkStatus();
}

std::vector<RequestEntry*> Scheduler::Impl::InOrder() {
  std::vector<RequestEntry*> order;
  order.reserve(entries_.size());
  for (auto& [id, entry] : entries_) order.push_back(entry.get());
  std::sort(order.begin(), order.end(), [](const RequestEntry* a, const RequestEntry* b) {
    if (a->idle() != b->idle()) return b->idle();
    if (a->idle() && a->parked_s != b->parked_s) return a->parked_s > b->parked_s;
    if (a->virtual_arrival_s != b->virtual_arrival_s) {
      return a->virtual_arrival_s < b->virtual_arrival_s;
    }
    return a->serial < b->serial;
  });
  return order;
}

StepPlan Scheduler::Impl::Schedule(double now_s) {
  VC_CHECK(!outstanding_);
  now_s_ = std::max(now_s_, now_s);
  StepPlan plan;
  plan.step_idx = ++step_idx_;
  plan.release.swap(to_release_);
  plan.fail.swap(to_fail_);
  planned_.clear();
  order_ = InOrder();
  Admit(&plan);
  SetRingRates();
  StartRounds(&plan);
  GrantCaches(&plan);
  PlanWork(&plan);
  // All wait for a later slot and nobody would use the time until then: go there at once.
  const bool any = std::any_of(order_.begin(), order_.end(),
                               [](const RequestEntry* e) { return e->admitted() && !e->idle(); });
  for (int i = 0; any && plan.work.empty() && i < StaggerRings::kSlots; ++i) {
    rings_.Advance();
    PlanWork(&plan);
  }
  VC_CHECK(!any || !plan.work.empty());
  PlanFetches(&plan);
  plan.predicted_s = PredictPass();
  outstanding_ = !plan.work.empty();
  return plan;
}

SchedulerUsage Scheduler::Impl::usage() const {
  SchedulerUsage usage;
  usage.charged_bytes = ChargedBytes() + limits_.staging_bytes;
  usage.staging_bytes = rings_.StagingHeldNow();
  for (const auto& [id, entry] : entries_) {
    ++(entry->admitted() ? usage.num_running : usage.num_waiting);
    usage.num_idle += entry->idle();
  }
  return usage;
}

const RequestEntry* Scheduler::Impl::Find(RequestId id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : found->second.get();
}

Scheduler::Scheduler(const Limits& limits, const SchedulerOptions& options,
                     std::shared_ptr<Experience> experience)
    : impl_(std::make_unique<Impl>(limits, options, std::move(experience))) {}
Scheduler::~Scheduler() = default;

absl::Status Scheduler::Add(const RequestInfo& info, double now_s) {
  return impl_->Add(info, now_s);
}
bool Scheduler::DraftKvFits(const RequestInfo& info, int together) const {
  return impl_->DraftKvFits(info, together);
}
absl::Status Scheduler::Cancel(RequestId id) { return impl_->Cancel(id); }
absl::Status Scheduler::Ask(RequestId id, int draft_len, double now_s) {
  return impl_->Ask(id, draft_len, now_s);
}
int Scheduler::MaxQuestion() const { return impl_->MaxQuestion(); }
StepPlan Scheduler::Schedule(double now_s) { return impl_->Schedule(now_s); }
absl::Status Scheduler::Report(const StepReport& report) { return impl_->Report(report); }
SchedulerUsage Scheduler::usage() const { return impl_->usage(); }
const CostModel& Scheduler::cost_model() const { return impl_->cost_model(); }

const DraftChoice* Scheduler::LastChoice(RequestId id) const {
  const RequestEntry* entry = impl_->Find(id);
  if (entry == nullptr || !entry->has_choice) return nullptr;
  return &entry->controller.choice();
}

}  // namespace vericache
