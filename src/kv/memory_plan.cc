#include "kv/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/text.h"
#include "base/types.h"
#include "kv/kv_stream.h"
#include "kv/kv_tier.h"

namespace vericache {
namespace {

// Blocks that `rows` new rows may touch, wherever in a block they begin.
int64_t OpenBlocks(int64_t rows) { return CeilDiv(rows + kBlockTokens - 1, kBlockTokens); }

class Planner {
 public:
  explicit Planner(const MemoryNeeds& needs)
      : needs_(needs),
        num_blocks_(CeilDiv(needs.num_tokens, kBlockTokens)),
        open_(std::min(num_blocks_, OpenBlocks(needs.draft_rows + 1))) {}

  size_t BlockBytes() const {
    return needs_.shape.layer_block_values() * needs_.shape.num_layers * sizeof(uint16_t);
  }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t open_blocks() const { return open_; }
  size_t Staging(int64_t hot, int num_heads) const {
    const int64_t cold = std::max<int64_t>(0, num_blocks_ - open_ - hot);
    return num_heads * CeilDiv(cold, KvSlotBlocks(needs_.shape)) * SlotBytes();
  }
  size_t SlotBytes() const { return KvSlotBytes(needs_.shape); }
  // Bytes while decoding, with `staging`.
  size_t Decode(int64_t hot, size_t staging) const {
    return needs_.draft_bytes + staging + BlockBytes() * (hot + open_);
  }
  size_t AllInRam() const { return needs_.draft_bytes + BlockBytes() * num_blocks_; }
  // A chunk of one block at least, one block of it half full before.
  size_t LeastPrefill(size_t staging) const {
    return staging +
           BlockBytes() * OpenBlocks(std::min<int64_t>(needs_.prefill_rows, kBlockTokens));
  }

 private:
  const MemoryNeeds& needs_;
  const int64_t num_blocks_, open_;
};

}  // namespace

std::string BytesText(size_t bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes >= (size_t{1} << 30)) return absl::StrFormat("%.2f GiB", b / (1 << 30));
  if (bytes >= (size_t{1} << 20)) return absl::StrFormat("%.1f MiB", b / (1 << 20));
  if (bytes >= (size_t{1} << 10)) return absl::StrFormat("%.1f KiB", b / (1 << 10));
  return absl::StrFormat("%d B", bytes);
}

std::string MemoryPlan::ToString() const {
  return StrCat(BytesText(budget), ": draft KV ", BytesText(draft_bytes), ", full KV ",
                BytesText(block_bytes * (hot_blocks + open_blocks)), " of ",
                BytesText(block_bytes * num_blocks), " in RAM, staging ", BytesText(staging_bytes),
                spills() ? StrCat(", ", BytesText(block_bytes * cold_blocks()), " spilled") : "");
}

size_t LeastBudget(const MemoryNeeds& needs) {
  const Planner plan(needs);
  const size_t one_head = plan.Staging(0, 1);
  return std::min(plan.AllInRam(), std::max(plan.Decode(0, one_head), plan.LeastPrefill(one_head)));
}

absl::StatusOr<MemoryPlan> PlanMemory(size_t budget, const MemoryNeeds& needs) {
  const Planner planner(needs);
  MemoryPlan plan;
  plan.budget = budget;
  plan.draft_bytes = needs.draft_bytes;
  plan.num_blocks = planner.num_blocks();
  plan.open_blocks = planner.open_blocks();
  plan.block_bytes = planner.BlockBytes();
  plan.prefill_rows = needs.prefill_rows;
  if (planner.AllInRam() <= budget) {
    plan.hot_blocks = plan.num_blocks - plan.open_blocks;
    return plan;
  }
  if (const size_t least = LeastBudget(needs); least > budget)
    return absl::ResourceExhaustedError(StrCat(
        "a KV budget of ", BytesText(budget), " is too small for ", needs.num_tokens,
        " tokens: their full KV takes ", BytesText(plan.block_bytes * plan.num_blocks),
        ", of it one head of a layer and the open blocks must be in RAM",
        needs.draft_bytes > 0 ? StrCat(", beside ", BytesText(needs.draft_bytes), " of draft KV")
                              : "",
        ": give --kv-memory ", BytesText(least), " or more"));
  // Two heads of staging, and as many hot blocks as fit beside them.
  int64_t hot = plan.num_blocks - plan.open_blocks - 1;
  while (hot >= 0 && planner.Decode(hot, planner.Staging(hot, 2)) > budget) --hot;
  if (hot >= 0) {
    plan.hot_blocks = hot;
    plan.staging_bytes = planner.Staging(hot, 2);
  } else {  // what there is, one head and a part of the next
    plan.hot_blocks = 0;
    plan.staging_bytes =
        (budget - planner.Decode(0, 0)) / planner.SlotBytes() * planner.SlotBytes();
  }
  // The draft KV does not exist yet while the prompt is computed.
  const size_t fixed = plan.staging_bytes + plan.block_bytes * plan.hot_blocks;
  const int64_t blocks = static_cast<int64_t>((budget - fixed) / plan.block_bytes);
  while (OpenBlocks(plan.prefill_rows) > blocks && plan.prefill_rows > kBlockTokens)
    plan.prefill_rows = RoundUp(plan.prefill_rows, kBlockTokens) - kBlockTokens;
  while (OpenBlocks(plan.prefill_rows) + plan.hot_blocks >
             static_cast<int64_t>((budget - plan.staging_bytes) / plan.block_bytes) &&
         plan.hot_blocks > 0)
    --plan.hot_blocks;
  return plan;
}

}  // namespace vericache
