#include "engine/step.h"

#include <utility>

namespace vericache {

// Rows stand in this order: drafts, verifications, prompts.
void StepRunner::Run(absl::Span<StepItem> items, bool with_confidence) {
  batch_.clear();
  drafting_.clear();
  verifying_.clear();
  std::vector<StepItem*> prompts;
  std::vector<std::pair<StreamTotals, int64_t>> before;
  for (StepItem& item : items) {
    before.emplace_back(item.sequence->full.stream_totals(), item.sequence->num_emitted());
    if (item.kind == StepKind::kDraft) {
      verifier_.RefreshChoice(item.sequence);
      drafting_.push_back({item.sequence, item.proposals});
      item.rows_run = static_cast<int64_t>(item.proposals.size()) + 1;
    }
    if (item.kind == StepKind::kVerify) {
      verifying_.push_back(item.sequence);
      item.rows_run = static_cast<int64_t>(item.sequence->drafted.size()) + 1;
    }
  }
  const int64_t first_verified = drafter_.Plan(absl::MakeSpan(drafting_), &batch_);
  int64_t next_hidden = first_verified + verifier_.Plan(verifying_, &batch_);
  int64_t room = kMaxPassRows;
  for (const StepItem& item : items)
    room -= item.kind == StepKind::kPrompt ? item.rows : item.rows_run;
  for (StepItem& item : items) {
    if (item.kind != StepKind::kPrompt) continue;
    absl::StatusOr<RowGroup> group = item.prompt->Plan(item.rows, room);
    if (!group.ok()) {
      item.sequence->Fail(group.status());
      continue;
    }
    item.rows_run = item.prompt->planned_rows();
    room -= static_cast<int64_t>(group->tokens.size()) - item.rows_run;
    batch_.push_back(*group);
    prompts.push_back(&item);
  }
  if (batch_.empty()) return;
  forward_->Run(batch_, &hidden_);
  if (!drafting_.empty()) drafter_.Settle(hidden_, 0, with_confidence);
  // The prompts' rows are copied before anything else runs the model.
  const size_t width = hidden_.num_rows > 0 ? hidden_.x.size() / hidden_.num_rows : 0;
  std::vector<std::vector<float>> last_rows;
  for (size_t i = batch_.size() - prompts.size(); i < batch_.size(); ++i) {
    const int64_t n = static_cast<int64_t>(batch_[i].tokens.size()) - batch_[i].logits_begin;
    const float* x = hidden_.x.data() + next_hidden * width;
    last_rows.emplace_back(x, x + n * width);
    next_hidden += n;
  }
  verifier_.Settle(hidden_, first_verified);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const absl::Status status = prompts[i]->prompt->Settle(last_rows[i]);
    if (!status.ok()) prompts[i]->sequence->Fail(status);
  }
  size_t drafted = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    StepItem& item = items[i];
    const StreamTotals& now = item.sequence->full.stream_totals();
    item.wait_ns = now.wait_ns - before[i].first.wait_ns;
    item.fetched = now.bytes - before[i].first.bytes;
    item.fetch_ns = now.transfer_ns - before[i].first.transfer_ns;
    item.num_emitted = item.sequence->num_emitted() - before[i].second;
    if (item.kind != StepKind::kDraft) continue;
    item.num_drafted = drafting_[drafted].num_drafted;
    item.confidence = std::move(drafting_[drafted].confidence);
    ++drafted;
  }
}

}  // namespace vericache
