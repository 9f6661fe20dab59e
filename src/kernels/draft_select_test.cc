// Query-time reading: bounds of groups, and attention over selected groups only.
#include "kernels/draft_test_util.h"

namespace vericache {
namespace {

struct Case {
  DraftFormat k, v;
  int head_dim;
  bool rotated;
};
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const DraftFormat format : kAllDraftFormats) {
    for (const int head_dim : {32, 64, 128}) {
      cases.push_back({format, format, head_dim, false});
      if (format != DraftFormat::kF16) cases.push_back({format, format, head_dim, true});
    }
  }
  cases.push_back({DraftFormat::kF16, DraftFormat::kF16, 8, false});
  cases.push_back({DraftFormat::kF16, DraftFormat::kF16, 40, false});
  cases.push_back({DraftFormat::kInt3, DraftFormat::kF16, 64, false});
  cases.push_back({DraftFormat::kF16, DraftFormat::kInt5, 64, true});
  return cases;
}
std::string NameOf(const Case& c) {
  return "k" + std::to_string(BitsOf(c.k)) + "v" + std::to_string(BitsOf(c.v)) + " dim " +
         std::to_string(c.head_dim) + (c.rotated ? " rotated" : "");
}

std::vector<float> Bounds(const KernelTable& table, const DraftHeadView& view,
                          const std::vector<float>& q, int num_heads) {
  std::vector<float> rank(view.num_groups, kNan), scratch(num_heads * view.head_dim, kNan);
  table.group_bounds(view, q.data(), num_heads, rank.data(), scratch.data());
  return rank;
}

TEST(DraftSelect, TablesAgreeOnBounds) {
  for (const Case& c : Cases()) {
    const TestDraft draft(c.k, c.v, c.head_dim, 9, 5, 3);
    DraftHeadView view = draft.view();
    view.rotated = c.rotated;
    for (int num_heads = 1; num_heads <= 12; ++num_heads) {
      const auto q = RandomQ(num_heads, c.head_dim, num_heads);
      const auto expected = Bounds(Judge(), view, q, num_heads);
      for (const KernelTable* table : AllKernelTables()) {
        ASSERT_TRUE(AllSameBits(Bounds(*table, view, q, num_heads), expected))
            << table->name << " " << NameOf(c) << " heads " << num_heads;
      }
    }
  }
}

// No key of a group scores above the group's bound for any head, and the bound is that of the
// formula.
TEST(DraftSelect, BoundsAreTheLeastThatTheRangesAllow) {
  for (const Case& c : Cases()) {
    const int n = c.head_dim;
    const TestDraft draft(c.k, c.v, n, 6, 1, 7);
    const auto q = RandomQ(3, n, 11);
    const auto rank = Bounds(Judge(), draft.view(), q, 3);
    const double last = c.k == DraftFormat::kF16 ? 1 : MaxCodeOf(c.k);
    for (int64_t g = 0; g < 6; ++g) {
      double best = -1e30, best_score = -1e30, magnitude = 0;
      for (int h = 0; h < 3; ++h) {
        double bound = 0, abs = 0;
        for (int d = 0; d < n; ++d) {
          const double low = F16ToF32(draft.view().k_min[g * n + d]);
          const double high = low + last * F16ToF32(draft.view().k_scale[g * n + d]);
          bound += std::max(q[h * n + d] * low, q[h * n + d] * high);
          abs += std::fabs(q[h * n + d]) * std::max(std::fabs(low), std::fabs(high));
        }
        best = std::max(best, bound);
        magnitude = std::max(magnitude, abs);
        for (int64_t j = g * 32; j < g * 32 + 32; ++j) {
          double score = 0;
          for (int d = 0; d < n; ++d) score += q[h * n + d] * draft.K(j, d);
          best_score = std::max(best_score, score);
        }
      }
      EXPECT_NEAR(rank[g], best, n * 0x1p-24 * magnitude) << NameOf(c);
      EXPECT_GE(rank[g], best_score - n * 0x1p-24 * magnitude) << NameOf(c);
    }
  }
}

TEST(DraftSelect, ABoundThatIsNoNumberRanksLast) {
  TestDraft draft(DraftFormat::kInt4, DraftFormat::kInt4, 32, 4, 1, 7);
  for (const KernelTable* table : AllKernelTables()) {
    const auto bad = Bounds(*table, draft.view(), std::vector<float>(32, kNan), 1);
    for (const float rank : bad) EXPECT_EQ(rank, -std::numeric_limits<float>::infinity());
    std::vector<float> q = RandomQ(2, 32, 1);
    const auto good = Bounds(*table, draft.view(), {q.begin(), q.begin() + 32}, 1);
    q[40] = kNan;  // of the second head: the first one decides
    EXPECT_TRUE(AllSameBits(Bounds(*table, draft.view(), q, 2), good));
  }
}

// Selected groups are read as if there were no others.
TEST(DraftSelect, ReadsTheSelectedGroupsOnly) {
  const std::vector<std::vector<int32_t>> selections = {
      {0}, {8}, {2, 3, 7}, {0, 4, 5, 8}, {0, 1, 2, 3, 4, 5, 6, 7, 8}};
  for (const Case& c : Cases()) {
    for (const int tail : {1, 17}) {
      const TestDraft draft(c.k, c.v, c.head_dim, 9, tail, 5);
      for (const std::vector<int32_t>& groups : selections) {
        DraftHeadView view = draft.view();
        view.rotated = c.rotated;
        view.groups = groups.data();
        view.num_selected = static_cast<int64_t>(groups.size());
        const TestDraft alone = draft.Only(groups);
        DraftHeadView expected_view = alone.view();
        expected_view.rotated = c.rotated;
        for (const int num_heads : {1, 7, 12}) {
          if (num_heads == 12 && tail == 1) continue;
          const auto q = RandomQ(num_heads, c.head_dim, 9);
          const auto expected = Attend(Judge(), expected_view, q, num_heads);
          for (const KernelTable* table : AllKernelTables()) {
            ASSERT_TRUE(AllSameBits(Attend(*table, view, q, num_heads), expected))
                << table->name << " " << NameOf(c) << " groups " << groups.size();
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace vericache
