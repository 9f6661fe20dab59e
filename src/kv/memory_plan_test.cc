// Budgets: what a plan promises fits, is used, and is refused with numbers when it cannot.
#include "kv/memory_plan.h"

#include "gtest/gtest.h"
#include "kv/kv_tier.h"

namespace vericache {
namespace {

constexpr KvShape kSmall{24, 2, 64};   // the 0.5b
constexpr KvShape kLarge{28, 2, 128};  // the 1.5b

MemoryNeeds Needs(const KvShape& shape, int64_t tokens, double kept) {
  MemoryNeeds needs;
  needs.shape = shape;
  needs.num_tokens = tokens;
  needs.prefill_rows = 512;
  needs.draft_rows = 64;
  needs.draft_bytes = static_cast<size_t>(kept * shape.bytes_per_token() * tokens);
  return needs;
}

TEST(MemoryPlan, FitsInEveryBudgetItAccepts) {
  int refused = 0, spilled = 0, whole = 0;
  for (const KvShape& shape : {kSmall, kLarge, KvShape{3, 1, 16}}) {
    for (const int64_t tokens : {1, 63, 64, 65, 700, 4400, 8192, 32768}) {
      for (const double kept : {0.0, 0.045, 0.09, 0.31}) {
        const MemoryNeeds needs = Needs(shape, tokens, kept);
        const size_t full = shape.bytes_per_token() * tokens;
        for (int eighths = 0; eighths <= 12; ++eighths) {
          const size_t budget = full * eighths / 8 + 1;
          const absl::StatusOr<MemoryPlan> plan = PlanMemory(budget, needs);
          EXPECT_EQ(plan.ok(), budget >= LeastBudget(needs));
          refused += !plan.ok();
          if (!plan.ok()) continue;
          EXPECT_LE(plan->decode_bytes(), budget) << plan->ToString();
          EXPECT_EQ(plan->hot_blocks + plan->open_blocks + plan->cold_blocks(), plan->num_blocks);
          if (!plan->spills()) {
            ++whole;
            continue;
          }
          ++spilled;
          const size_t prefill =
              plan->staging_bytes +
              plan->block_bytes * (plan->hot_blocks + (plan->prefill_rows + 126) / 64);
          EXPECT_LE(prefill, budget) << plan->ToString();
          // One head of what is spilled goes through staging.
          EXPECT_GE(plan->staging_bytes, KvPartBytes(shape) * plan->cold_blocks());
          EXPECT_GE(plan->prefill_rows, 64);
        }
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(spilled, 200);
  EXPECT_GT(whole, 100);
}

TEST(MemoryPlan, LeavesLittleUnused) {
  // One more hot block would not fit: its bytes, less the staging it saves.
  const MemoryNeeds needs = Needs(kLarge, 32768, 0.08);
  const size_t full = kLarge.bytes_per_token() * 32768;
  const MemoryPlan plan = *PlanMemory(full / 4, needs);
  EXPECT_GT(plan.decode_bytes() + 2 * plan.block_bytes, full / 4);
  EXPECT_GE(plan.staging_bytes, 2 * KvPartBytes(kLarge) * plan.cold_blocks());
}

TEST(MemoryPlan, AnEighthHoldsADraftAndTwoHeads) {
  const MemoryNeeds needs = Needs(kLarge, 32768, 0.08);
  const absl::StatusOr<MemoryPlan> plan = PlanMemory(kLarge.bytes_per_token() * 32768 / 8, needs);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LT(plan->hot_blocks, plan->num_blocks / 8);
  EXPECT_GE(plan->staging_bytes, 2 * KvPartBytes(kLarge) * plan->cold_blocks());
}

TEST(MemoryPlan, RefusalsHaveNumbers) {
  const MemoryNeeds needs = Needs(kLarge, 32768, 0.31);
  const absl::Status status = PlanMemory(kLarge.bytes_per_token() * 32768 / 8, needs).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("32768 tokens"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("--kv-memory"), absl::string_view::npos) << status;
  EXPECT_TRUE(PlanMemory(LeastBudget(needs), needs).ok()) << "what it says is enough";
  EXPECT_FALSE(PlanMemory(LeastBudget(needs) - 1, needs).ok());
}

}  // namespace
}  // namespace vericache
