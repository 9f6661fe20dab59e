#include "api/request_loop.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "api/engine_impl.h"
#include "api/request_loop_impl.h"
#include "base/allocator.h"
#include "base/check.h"
#include "base/text.h"
#include "base/types.h"

namespace vericache {

namespace {

// Requests that draft KVs are made smaller for, and how much: beyond that longer drafts are worth
// more than company.
constexpr int kMostTogether = 16;
constexpr double kLeastShareTogether = 0.6;

constexpr uint32_t kPlainOrDraftKv = ModeBit(DraftMode::kPlain) | ModeBit(DraftMode::kDraftKv);
// Bytes no sum of which overflows.
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 16;

Limits LimitsOf(const LoopParts& parts, const LoopOptions& options) {
  Limits limits;
  const bool bounded = parts.tier != nullptr;
  limits.kv_bytes = bounded && !options.planned_memory
                        ? static_cast<int64_t>(options.kv_memory - options.rebuild_bytes)
                        : kNoLimit;
  limits.staging_bytes = bounded ? static_cast<int64_t>(options.staging_bytes) : 0;
  limits.spill_bytes = bounded ? kNoLimit : 0;
  limits.max_pass_rows = std::min(options.max_pass_rows, kMaxPassRows);
  if (bounded)
    limits.prefill_bytes = CeilDiv(limits.max_pass_rows, kBlockTokens) *
                           static_cast<int64_t>(parts.tier->pool().block_bytes());
  limits.max_running = options.max_running;
  limits.pass = GuessPass(*parts.model, parts.pool->num_threads());
  if (options.link_bytes_per_s > 0) limits.link_bytes_per_s = options.link_bytes_per_s;
  return limits;
}

SchedulerOptions SchedulerOptionsOf(const LoopOptions& options) {
  SchedulerOptions scheduler;
  scheduler.stagger = options.stagger;
  // Who finds no staging is planned again; of those that run, one at least finds some each time.
  scheduler.max_retries += options.max_running;
  return scheduler;
}

// Whole blocks in RAM.
int64_t HotBytes(const FullKv& full) {
  const int64_t open = full.num_blocks() - full.num_tokens() / kBlockTokens;
  return std::max<int64_t>(0, full.num_ram_blocks() - open) *
         static_cast<int64_t>(full.block_bytes());
}

StepKind KindOf(WorkKind kind) {
  switch (kind) {
    case WorkKind::kPrefill:
      return StepKind::kPrompt;
    case WorkKind::kDraft:
      return StepKind::kDraft;
    case WorkKind::kVerify:
      break;
  }
  return StepKind::kVerify;
}

}  // namespace

RequestLoop::RequestLoop(const LoopParts& parts, const LoopOptions& options)
    : parts_(parts),
      options_(options),
      scheduler_(LimitsOf(parts, options), SchedulerOptionsOf(options), parts.experience),
      prefill_(parts.model, parts.forward, parts.pool),
      runner_(parts.model, parts.forward, parts.pool),
      start_s_(NowSeconds()) {}

RequestLoop::~RequestLoop() = default;

double RequestLoop::Now() const { return NowSeconds() - start_s_; }

RequestInfo RequestLoop::InfoOf(const Sequence& s, const DraftSizes& sizes, int priority,
                                double max_burst_s) const {
  const int64_t block_bytes = static_cast<int64_t>(s.full.block_bytes());
  const int64_t longest = s.num_prompt + s.max_tokens + s.draft_length.max();
  RequestInfo info;
  info.priority = priority;
  info.prompt_tokens = s.num_prompt;
  info.cached_tokens = s.full.num_tokens();
  info.max_tokens = std::max<int64_t>(1, s.max_tokens);
  info.emitted_tokens = s.num_emitted();
  info.full_bytes_per_token = CeilDiv(block_bytes, kBlockTokens);
  info.draft_bytes_per_token = sizes.bytes_per_token;
  info.tail_bytes_per_token = static_cast<int64_t>(s.full.shape().bytes_per_token());
  info.cached_hot_bytes = options_.planned_memory ? HotBytes(s.full) : 0;
  info.max_draft_len = s.draft_length.max();
  info.max_burst_s = max_burst_s;
  if (s.draft_length.fixed()) info.fixed_draft_len = s.draft_length.max();
  info.modes = sizes.modes != 0 ? sizes.modes : kPlainOrDraftKv;
  if (!s.spec.enabled) info.modes &= ~kDraftKvModes;
  info.reselects = s.spec.reselects();
  if (parts_.small == nullptr || s.small_bytes == 0) info.modes &= ~kModelModes;
  if (info.modes == ModeBit(DraftMode::kPlain)) info.fixed_draft_len = kAutoDraftLen;
  if (parts_.tier != nullptr) {
    info.fixed_bytes = sizes.fixed_bytes;
    const int64_t num_blocks = options_.planned_memory && s.memory.has_value()
                                   ? s.memory->cold_blocks()
                                   : CeilDiv(longest, kBlockTokens);
    const int64_t layer = CeilDiv(num_blocks, KvSlotBlocks(parts_.tier->shape())) *
                          static_cast<int64_t>(parts_.tier->staging().slot_bytes());
    const int64_t staging = static_cast<int64_t>(options_.staging_bytes);
    info.min_staging_bytes = options_.planned_memory ? staging : layer;
  }
  if ((info.modes & kModelModes) != 0) info.fixed_bytes += s.small_bytes;
  return info;
}

absl::Status RequestLoop::CheckFits(const Sequence& sequence, const DraftSizes& sizes,
                                    RequestId id) const {
  RequestInfo info = InfoOf(sequence, sizes, 0, 0);
  info.id = id;
  return Scheduler(LimitsOf(parts_, options_), SchedulerOptionsOf(options_)).Add(info, 0);
}

absl::Status RequestLoop::CheckRemoteFits(const Sequence& sequence, RequestId id) const {
  RequestInfo info = RemoteInfoOf(sequence, 0);
  info.id = id;
  return Scheduler(LimitsOf(parts_, options_), SchedulerOptionsOf(options_)).Add(info, 0);
}

DraftSizes RequestLoop::FitDraft(uint32_t modes, int together, Sequence* sequence) const {
  const KvShape& shape = sequence->full.shape();
  const DraftSizes asked = DraftSizesOf(shape, sequence->spec, modes);
  if (parts_.tier == nullptr || options_.planned_memory || !sequence->spec.enabled) return asked;
  const Scheduler scheduler(LimitsOf(parts_, options_), SchedulerOptionsOf(options_));
  for (int num = std::min(together, kMostTogether); num >= 1; --num) {
    DraftSpec spec = sequence->spec;
    DraftSizes sizes = asked;
    const double least = num > 1 ? kLeastShareTogether * spec.fraction : 0;
    const auto fits = [&] { return scheduler.DraftKvFits(InfoOf(*sequence, sizes, 0, 0), num); };
    bool done = fits();
    while (!done && ShrinkDraft(&spec) && spec.fraction >= least) {
      sizes = DraftSizesOf(shape, spec, modes);
      done = fits();
    }
    if (!done) continue;
    sequence->spec = spec;
    return sizes;
  }
  return asked;
}

absl::StatusOr<RequestId> RequestLoop::Add(std::unique_ptr<Sequence> sequence,
                                           const DraftSizes& sizes, LoopHooks hooks, int priority,
                                           double max_burst_s) {
  const RequestInfo info = InfoOf(*sequence, sizes, priority, max_burst_s);
  return AddRequest(info, std::move(sequence), std::move(hooks));
}

absl::StatusOr<RequestId> RequestLoop::AddRequest(RequestInfo info,
                                                  std::unique_ptr<Sequence> sequence,
                                                  LoopHooks hooks) {
  info.id = next_id_;
  if (absl::Status status = scheduler_.Add(info, Now()); !status.ok()) return status;
  if (parts_.tier != nullptr && !options_.planned_memory) {
    // The scheduler gives hot blocks, and its open one; until then there are none.
    sequence->full.set_fetch_slots(info.min_staging_bytes / parts_.tier->staging().slot_bytes());
    if (absl::Status status = sequence->full.SpillAll(); !status.ok()) {
      (void)scheduler_.Cancel(info.id);
      return status;
    }
  }
  auto running = std::make_unique<Running>();
  running->drafts = sequence->spec.enabled;
  running->remote = info.remote;
  running->modes = info.modes;
  running->sequence = std::move(sequence);
  running->hooks = std::move(hooks);
  running->added_s = Now();
  running_.emplace(next_id_, std::move(running));
  return next_id_++;
}

void RequestLoop::Cancel(RequestId id) {
  (void)scheduler_.Cancel(id);  // one that has ended needs none
}

KvBytes RequestLoop::kv_bytes() const {
  KvBytes bytes;
  for (const auto& [id, r] : running_) {
    const Sequence& s = *r->sequence;
    const uint64_t block = s.full.block_bytes();
    bytes.ram += s.full.num_ram_blocks() * block;
    bytes.spilled += s.full.num_cold_blocks() * block;
    if (s.draft.has_value()) bytes.ram += s.draft->num_bytes();
    if (s.small != nullptr) bytes.ram += s.small->full.num_blocks() * s.small->full.block_bytes();
  }
  return bytes;
}

void RequestLoop::End(RequestId id) {
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  std::unique_ptr<Running> r = std::move(found->second);
  running_.erase(found);
  r->times.end_s = Now() - r->added_s;
  r->sequence->full.CancelFetch();
  r->prompt.reset();
  has_freed_ = true;
  if (r->hooks.on_end) r->hooks.on_end(std::move(r->sequence), r->times);
}

void RequestLoop::Preempt(const Preemption& preemption) {
  Running& r = At(preemption.id);
  Sequence& s = *r.sequence;
  ++report_.num_preempted;
  s.draft.reset();
  s.drafted.clear();
  s.small.reset();
  has_freed_ = true;
  r.draft_ended = false;
  s.full.CancelFetch();
  if (preemption.drop_full_kv) {
    r.prompt.reset();
    s.full.Clear();
  } else if (absl::Status status = s.full.SpillAll(); !status.ok()) {
    s.Fail(std::move(status));
  }
}

void RequestLoop::Admit(const Admission& admission) {
  Running& r = At(admission.id);
  Sequence& s = *r.sequence;
  if (r.times.start_s == 0) r.times.start_s = Now() - r.added_s;
  s.spec.enabled = r.drafts && admission.with_draft_kv;
  const int64_t target = static_cast<int64_t>(s.tokens.size()) - (s.num_emitted() > 0 ? 1 : 0);
  if (s.full.num_tokens() < target) {
    if (r.prompt.has_value()) return;  // goes on where it was
    PrefillOptions options;
    options.chunk_rows = options_.max_pass_rows;
    options.progress = r.hooks.on_prefill;
    r.prompt.emplace(&s, parts_.model, parts_.forward, &prefill_, parts_.pool, std::move(options));
  } else if (s.spec.enabled && !s.draft.has_value()) {
    if (absl::Status status = prefill_.RebuildDraft(&s); !status.ok()) s.Fail(std::move(status));
  }
}

void RequestLoop::Apply(const StepPlan& plan) {
  for (const Failure& failure : plan.fail)
    At(failure.id).sequence->Fail(absl::UnavailableError(failure.message));
  for (const RequestId id : plan.release) End(id);
  for (const Preemption& preemption : plan.preempt) Preempt(preemption);
  // What those held who have ended since is promised to others now; draft KV in thousands of pieces
  // leaves a heap of holes.
  if (std::exchange(has_freed_, false) && parts_.tier != nullptr) ReturnFreedMemory();
  for (const HotGrant& grant : plan.hot) {
    if (options_.planned_memory) break;
    Sequence& s = *At(grant.id).sequence;
    s.full.set_hot_blocks(grant.bytes / static_cast<int64_t>(s.full.block_bytes()));
    if (absl::Status status = s.full.Spill(); !status.ok()) s.Fail(std::move(status));
  }
  if (options_.on_cache_room) options_.on_cache_room(plan.prefix_cache_bytes);
  for (const Admission& admission : plan.admit) Admit(admission);
  for (const FetchStart& fetch : plan.fetch) {
    FullKv& full = At(fetch.id).sequence->full;
    full.set_fetch_slots(fetch.staging_bytes / parts_.tier->staging().slot_bytes());
    (void)full.StartFetch();  // an error shows in the pass, which asks again
  }
}

// What the step's works want proposed: drafted tokens of a verification without a draft KV,
// proposals of a draft step.
void RequestLoop::Propose(const StepPlan& plan) {
  wishes_.clear();
  for (size_t i = 0; i < items_.size(); ++i) {
    const Work& work = plan.work[i];
    Running& r = At(work.id);
    r.proposal.clear();
    r.proposal_s = 0;
    const bool drafts = work.kind == WorkKind::kDraft;
    int64_t wanted = work.kind == WorkKind::kVerify ? work.draft_len : 0;
    if (drafts) wanted = work.rows - 1;
    if ((ModeBit(work.mode) & (kNgramModes | kModelModes)) == 0 || items_[i].rows == 0 ||
        wanted <= 0 || drafts != UsesDraftKv(work.mode))
      continue;
    wishes_.push_back({r.sequence.get(), work.mode, wanted, &r.proposal});
  }
  if (wishes_.empty()) return;
  MakeProposals(absl::MakeSpan(wishes_), parts_.model->config.vocab_size, parts_.small);
  size_t next = 0;
  for (size_t i = 0; i < items_.size() && next < wishes_.size(); ++i) {
    Sequence& s = *items_[i].sequence;
    if (wishes_[next].sequence != &s) continue;
    Running& r = At(plan.work[i].id);
    r.proposal_s = wishes_[next++].seconds;
    r.round_draft_s += r.proposal_s;
    items_[i].proposals = r.proposal;
    if (items_[i].kind != StepKind::kVerify) continue;
    s.proposed = true;
    for (const TokenId token : r.proposal) {
      s.drafted.push_back({token});
      if (s.on_drafted) s.on_drafted(s);
    }
  }
}

// The small model goes along with a prompt, so that its first proposal need not wait for it.
void RequestLoop::CatchUp(const StepPlan& plan) {
  for (size_t i = 0; i < items_.size(); ++i) {
    const StepItem& item = items_[i];
    Sequence& s = *item.sequence;
    Running& r = At(plan.work[i].id);
    if (item.kind != StepKind::kPrompt || (r.modes & kModelModes) == 0 || s.done()) continue;
    const double start = Now();
    // Without memory for it there are no proposals, and nothing else changes.
    if (!parts_.small->CatchUp(&s, s.full.num_tokens()).ok()) s.small.reset();
    r.proposal_s = Now() - start;
  }
}

// One item a work, in the same order; rows 0 where there is nothing to run.
void RequestLoop::PlanItems(const StepPlan& plan) {
  items_.clear();
  for (const Work& work : plan.work) {
    Running& r = At(work.id);
    Sequence& s = *r.sequence;
    StepItem item;
    item.sequence = &s;
    item.kind = KindOf(work.kind);
    item.rows = work.rows;
    if (item.kind == StepKind::kPrompt) item.prompt = &*r.prompt;
    if (work.staging_bytes > 0 && parts_.tier != nullptr)
      s.full.set_fetch_slots(work.staging_bytes / parts_.tier->staging().slot_bytes());
    if (s.drafted.empty() && item.kind != StepKind::kPrompt) {
      r.round_draft_s = 0;
      r.round_draft_bytes = s.draft.has_value() ? s.draft->num_bytes() : 0;
      r.round_full_bytes = s.full.num_bytes();
    }
    if (r.remote && item.kind == StepKind::kVerify && !s.done()) PutQuestion(work.draft_len, &r);
    if (s.done() || (item.kind == StepKind::kDraft && (r.draft_ended || !s.draft.has_value())))
      item.rows = 0;
    items_.push_back(std::move(item));
  }
  Propose(plan);
}

// One sequence gives back the staging of a read ahead, the last in line first.
bool RequestLoop::TakeBackFetch() {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    FullKv& full = it->second->sequence->full;
    const bool in_step = std::any_of(items_.begin(), items_.end(), [&](const StepItem& item) {
      return item.rows > 0 && item.kind != StepKind::kDraft && &item.sequence->full == &full;
    });
    if (in_step || !full.fetching()) continue;
    full.CancelFetch();
    return true;
  }
  return false;
}

void RequestLoop::HoldStaging(const StepPlan& plan) {
  for (size_t i = 0; i < items_.size(); ++i) {
    StepItem& item = items_[i];
    Sequence& s = *item.sequence;
    Running& r = At(plan.work[i].id);
    r.no_staging = false;
    if (item.rows == 0 || item.kind == StepKind::kDraft) continue;
    // A shared block may come back for the new rows, so this goes before the reads begin.
    const int64_t rows = item.kind == StepKind::kPrompt
                             ? std::min(item.rows, item.prompt->rows_left())
                             : std::ssize(s.drafted) + 1;
    if (!s.full.Reserve(rows).ok()) continue;  // the step asks again, and tells
    absl::Status status = s.full.StartFetch();
    while (absl::IsResourceExhausted(status) && TakeBackFetch()) status = s.full.StartFetch();
    if (!absl::IsResourceExhausted(status)) continue;
    r.no_staging = true;
    ++report_.num_staging_waits;
    item.rows = 0;
    if (item.kind == StepKind::kVerify && !UsesDraftKv(plan.work[i].mode)) s.drafted.clear();
  }
}

// Tokens that a step has drafted; nothing sensible can follow a bad row or an end.
void RequestLoop::TakeDraft(const StepItem& item, double pass_s, Running* running,
                            WorkResult* result) {
  Sequence& s = *running->sequence;
  running->round_draft_s += pass_s;
  result->num_drafted = item.num_drafted;
  result->confidence = item.confidence;
  const DraftedToken newest = JudgeDrafted(&s, parts_.model->config.vocab_size);
  running->draft_ended = newest != DraftedToken::kGoesOn;
  if (newest != DraftedToken::kBad) return;
  --result->num_drafted;
  result->confidence.pop_back();
}

WorkResult RequestLoop::ResultOf(const Work& work, const StepItem& item, double pass_s) {
  Running& r = At(work.id);
  Sequence& s = *r.sequence;
  WorkResult result;
  result.id = work.id;
  result.kind = work.kind;
  result.rows = static_cast<int>(item.rows_run);
  result.num_emitted = static_cast<int>(item.num_emitted);
  result.proposal_s = r.proposal_s;
  result.fetched_bytes = item.fetched;
  result.fetch_s = static_cast<double>(item.fetch_ns) * 1e-9;
  if (work.kind == WorkKind::kDraft && item.rows > 0) TakeDraft(item, pass_s, &r, &result);
  if (work.kind == WorkKind::kPrefill && item.num_emitted > 0 && !s.rounds.empty()) {
    result.num_drafted = s.rounds.back().drafted;  // that came with the prompt
    result.num_accepted = s.rounds.back().accepted;
    s.rounds.back().verify_ns = static_cast<int64_t>(pass_s * 1e9);
  }
  if (work.kind == WorkKind::kVerify && item.num_emitted > 0) {
    RoundStats& round = s.rounds.back();
    round.draft_ns = static_cast<int64_t>(r.round_draft_s * 1e9);
    round.verify_ns = static_cast<int64_t>(pass_s * 1e9);
    round.draft_bytes = r.round_draft_bytes;
    round.full_bytes = r.round_full_bytes;
    round.mode = DraftModeName(work.mode);
    result.num_drafted = round.drafted;
    result.num_accepted = round.accepted;
    r.draft_ended = false;
  }
  result.draft_bytes = s.draft.has_value() ? static_cast<int64_t>(s.draft->num_bytes()) : 0;
  result.hot_bytes = HotBytes(s.full);
  if (r.no_staging) {
    result.outcome = WorkOutcome::kRetry;
  } else if (s.finish == FinishReason::kError) {
    result.outcome = WorkOutcome::kFailed;
  } else if (s.done()) {
    result.outcome = WorkOutcome::kFinished;
  }
  const double now = Now() - r.added_s;
  const bool prompt_ends = work.kind == WorkKind::kPrefill && (item.num_emitted > 0 || s.done());
  if (prompt_ends && r.times.prefill_s == 0) r.times.prefill_s = now - r.times.start_s;
  if (item.num_emitted > 0) {
    if (r.times.first_token_s == 0) {
      r.times.first_token_s = now;
    } else {
      r.times.max_burst_s = std::max(r.times.max_burst_s, now - r.last_tokens_s);
    }
    r.last_tokens_s = now;
    report_.num_emitted += item.num_emitted;
  }
  return result;
}

void RequestLoop::Record(const StepPlan& plan, double begin_s, double end_s) {
  if (!options_.timeline) return;
  int64_t rows = 0;
  double stall_s = 0;
  std::string what;
  for (size_t i = 0; i < items_.size(); ++i) {
    const StepItem& item = items_[i];
    if (item.rows_run == 0) continue;
    rows += item.rows_run;
    stall_s += static_cast<double>(item.wait_ns) * 1e-9;
    TimelineEvent event;
    event.lane = TimelineEvent::Lane::kRequest;
    event.request = At(plan.work[i].id).hooks.index;
    event.name = item.kind == StepKind::kPrompt  ? "prefill"
                 : item.kind == StepKind::kDraft ? "draft"
                 : item.rows_run > 1             ? "verify"
                                                 : "plain";
    event.begin_s = begin_s;
    event.end_s = end_s;
    event.rows = item.rows_run;
    if (item.kind == StepKind::kVerify) event.accepted = std::max<int64_t>(0, item.num_emitted - 1);
    what += StrCat(what.empty() ? "" : ", ", event.name, " ", event.request);
    timeline_.push_back(event);
    if (item.fetched == 0) continue;
    const StreamStats& stream = item.sequence->full.last_stream();
    event.lane = TimelineEvent::Lane::kFetch;
    event.name = "fetch";
    event.begin_s = static_cast<double>(stream.first_submit_ns) * 1e-9 - start_s_;
    event.end_s = static_cast<double>(stream.last_complete_ns) * 1e-9 - start_s_;
    event.bytes = item.fetched;
    timeline_.push_back(event);
  }
  timeline_.push_back({TimelineEvent::Lane::kPass, 0, what, begin_s, end_s, rows, 0, 0,
                       std::min(stall_s, end_s - begin_s)});
}

bool RequestLoop::Step() {
  const StepPlan plan = scheduler_.Schedule(Now());
  Apply(plan);
  report_.most_running = std::max(report_.most_running, scheduler_.usage().num_running);
  if (plan.idle())
    return std::any_of(running_.begin(), running_.end(),
                       [](const auto& of) { return !of.second->parked; });
  PlanItems(plan);
  HoldStaging(plan);
  std::vector<StepItem> run;
  std::vector<size_t> index;
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].rows == 0) continue;
    run.push_back(std::move(items_[i]));
    index.push_back(i);
  }
  const double begin_s = Now();
  if (!run.empty()) runner_.Run(absl::MakeSpan(run), true);
  const double end_s = Now();
  for (size_t i = 0; i < run.size(); ++i) items_[index[i]] = std::move(run[i]);
  CatchUp(plan);
  Record(plan, begin_s, end_s);

  StepReport report;
  report.step_idx = plan.step_idx;
  // A pass of nothing says nothing about costs.
  report.pass_s = run.empty() ? std::max(1e-6, plan.predicted_s) : std::max(1e-6, end_s - begin_s);
  std::vector<RequestId> ended, stopped;
  std::vector<std::pair<RequestId, WorkKind>> done;
  size_t draft_bytes = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    const Work& work = plan.work[i];
    report.stall_s += static_cast<double>(items_[i].wait_ns) * 1e-9;
    report.results.push_back(ResultOf(work, items_[i], end_s - begin_s));
    const WorkResult& result = report.results.back();
    report_.fetch_s += result.fetch_s;
    report_.fetched_bytes += result.fetched_bytes;
    Running& r = At(work.id);
    if (result.outcome == WorkOutcome::kFinished || result.outcome == WorkOutcome::kFailed) {
      ended.push_back(work.id);
    } else if (r.hooks.on_step && !r.hooks.on_step(*r.sequence)) {
      stopped.push_back(work.id);
    } else if (result.outcome == WorkOutcome::kDone) {
      done.emplace_back(work.id, work.kind);
    }
  }
  report.stall_s = std::min(report.stall_s, report.pass_s);
  report.end_s = Now();
  report_.pass_s += end_s - begin_s;
  report_.stall_s += report.stall_s;
  ++report_.num_passes;
  for (const auto& [id, r] : running_) {
    const Sequence& s = *r->sequence;
    if (s.draft.has_value()) draft_bytes += s.draft->num_bytes();
    if (s.small != nullptr) draft_bytes += s.small->full.num_blocks() * s.small->full.block_bytes();
  }
  if (parts_.tier != nullptr)
    report_.peak_kv_bytes = std::max<uint64_t>(
        report_.peak_kv_bytes,
        draft_bytes + parts_.tier->pool().num_used() * parts_.tier->pool().block_bytes() +
            parts_.tier->staging().num_used_max() * parts_.tier->staging().slot_bytes());
  const absl::Status status = scheduler_.Report(report);
  VC_CHECK(status.ok());
  report_.prediction_error = scheduler_.cost_model().relative_error();
  for (const auto& [id, kind] : done) Park(id, kind);
  for (const RequestId id : ended) End(id);
  for (const RequestId id : stopped) Cancel(id);
  return true;
}

}  // namespace vericache
