#include "api/prefix_arrival.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "api/draft_sizes.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

// Between two looks at a load, where there is nothing to draft.
constexpr auto kTick = std::chrono::milliseconds(5);

// A store is waited for as long, even where computing would be faster (docs/remote_prefixes.md).
constexpr double kPatienceSeconds = 0.25;

}  // namespace

// On the load's thread: nothing is read here that the engine's thread writes meanwhile.
PrefixChoice PrefixArrival::Choose(const PrefixFacts& facts, const CostModel& costs) {
  const KvShape shape = impl_->model->config.kv_shape();
  PrefixPlanInput in;
  in.prompt_tokens = s_->num_prompt;
  in.prefix_tokens = facts.num_blocks * kBlockTokens;
  in.draft_tokens = facts.draft_blocks * kBlockTokens;
  in.full_bytes = static_cast<uint64_t>(in.prefix_tokens) * shape.bytes_per_token();
  in.draft_bytes = DraftBytes(shape, s_->spec, in.draft_tokens, 0);
  in.draft_kv_bytes = static_cast<int64_t>(in.draft_bytes);
  in.max_tokens = std::max<int64_t>(1, s_->max_tokens);
  in.link_bytes_per_s = facts.link.bytes_per_s;
  in.round_trip_s = facts.link.round_trip_s;
  in.patience_s = std::max(kPatienceSeconds, facts.link.least_wait_s);
  in.agreement = agreement_;
  in.max_draft_len = MayDraft() ? most_drafted_ : 0;
  const PrefixPlan plan = PlanPrefix(in, costs);
  PrefixWay way = plan.way;
  stats_->reason = plan.reason;
  const std::string& forced = impl_->options.prefix_plan;
  if (forced == "load") way = PrefixWay::kLoad;
  if (forced == "draft-first")
    way = in.draft_tokens > 0 && MayDraft() ? PrefixWay::kDraftFirst : PrefixWay::kLoad;
  if (forced != "auto") stats_->reason = StrCat("asked for; by itself ", plan.reason);
  stats_->plan = PrefixWayName(way);
  stats_->link_bytes_per_s = facts.link.bytes_per_s;
  stats_->round_trip_s = facts.link.round_trip_s;
  if (way == PrefixWay::kRecompute) return PrefixChoice::kNothing;
  if (way != PrefixWay::kDraftFirst) return PrefixChoice::kBlocks;
  const int planned = plan.of(PrefixWay::kDraftFirst).draft_len;
  most_drafted_ = std::min(most_drafted_, std::max(planned, 1));
  return PrefixChoice::kDraftThenBlocks;
}

bool PrefixArrival::MayDraft() const {
  return s_->spec.enabled && !has_draft_ && s_->max_tokens > 1 && !scores_prompt_;
}

absl::Status PrefixArrival::Run() {
  start_s_ = NowSeconds();
  const std::string& forced = impl_->options.prefix_plan;
  const Experience& experience = *impl_->Learned();
  agreement_ = experience.acceptance.Mean(DraftMode::kDraftKv);
  has_draft_ = s_->draft.has_value();
  scores_prompt_ = s_->on_prompt_row != nullptr;
  most_drafted_ = request_.draft_len > 0 ? request_.draft_len : s_->draft_length.max();
  const bool waits = forced != "auto" || impl_->prefixes_are_remote();
  std::function<PrefixChoice(const PrefixFacts&)> choose;
  // The costs are copied: they are learned on this thread.
  if (waits)
    choose = [this, costs = experience.costs](const PrefixFacts& f) { return Choose(f, costs); };
  std::unique_ptr<PrefixLookup> lookup =
      impl_->PlanPrefix(request_, *s_, PrefixUse::kAlone, std::move(choose));
  if (lookup == nullptr) return absl::OkStatus();
  if (forced == "recompute") lookup->Cancel();
  if (!waits || !lookup->asks_store() || forced == "recompute") {
    lookup->Load();
    impl_->TakePrefix(std::move(lookup), PrefixUse::kAlone, s_);
    return absl::OkStatus();
  }
  PrefixLoader loader(1);
  const std::shared_ptr<PrefixLoad> load = loader.Start(std::move(lookup), {});
  const absl::Status status = Await(load.get());
  if (stats_->draft_tokens > 0) s_->draft->Rollback();
  if (!status.ok()) {
    load->Cancel();
    s_->drafted.clear();
    return status;
  }
  lookup = load->Take();
  stats_->full_bytes = lookup->progress().bytes_done;
  stats_->full_s = NowSeconds() - start_s_;
  stats_->drafted = static_cast<int>(s_->drafted.size());
  std::optional<DraftKv> early;
  if (stats_->draft_tokens > 0) early = std::exchange(s_->draft, std::nullopt);
  impl_->TakePrefix(std::move(lookup), PrefixUse::kAlone, s_);
  if (early.has_value() && !s_->draft.has_value()) s_->draft = std::move(early);
  stats_->full_tokens = s_->full.num_tokens();
  return absl::OkStatus();
}

absl::Status PrefixArrival::Await(PrefixLoad* load) {
  for (;;) {
    if (load->WaitFor(drafting_ ? std::chrono::milliseconds(0) : kTick)) return absl::OkStatus();
    if (callbacks_.on_prefill && !callbacks_.on_prefill(s_->full.num_tokens(), s_->num_prompt))
      return absl::CancelledError("stopped during prefill");
    if (drafting_) {
      DraftOne();
    } else if (s_->drafted.empty() && MayDraft()) {
      std::optional<DraftKv> draft = load->lookup().TakeEarlyDraft();
      if (draft.has_value()) StartDraft(*std::move(draft));
    }
  }
}

// The rest of the prompt on the draft KV: approximate rows, thrown away with the draft's own.
void PrefixArrival::StartDraft(DraftKv draft) {
  has_draft_ = true;
  stats_->draft_bytes = draft.num_bytes();
  stats_->draft_tokens = draft.num_tokens();
  stats_->draft_s = NowSeconds() - start_s_;
  s_->draft.emplace(std::move(draft));
  DraftKv& kv = *s_->draft;
  const int64_t end = s_->num_prompt - 1;
  if (kv.num_tokens() > end) return;  // it would begin with a row that it has
  kv.ReserveRows(end - kv.num_tokens() + most_drafted_);
  const int64_t chunk = std::clamp<int64_t>(impl_->options.prefill_chunk, 1, kMaxPassRows);
  HiddenRows hidden;
  for (int64_t pos = kv.num_tokens(); pos < end; pos += chunk) {
    const int64_t rows = std::min(chunk, end - pos);
    RowGroup group;
    group.tokens = absl::MakeConstSpan(s_->tokens).subspan(pos, rows);
    group.first_pos = pos;
    group.kv = &kv;
    group.logits_begin = rows;
    impl_->forward->Run({&group, 1}, &hidden);
    stats_->provisional_rows += rows;
  }
  drafting_ = true;
}

// Until it ends: an end token, a bad row, or as many as pay.
void PrefixArrival::DraftOne() {
  drafter_.Step({&s_, 1});
  const bool goes_on = JudgeDrafted(s_, impl_->model->config.vocab_size) == DraftedToken::kGoesOn;
  drafting_ = goes_on && std::ssize(s_->drafted) < most_drafted_ &&
              std::ssize(s_->drafted) < s_->max_tokens - 1;
}

}  // namespace vericache
