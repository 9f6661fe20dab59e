// What the scheduler is for, in simulated tokens a second (deterministic: no clock is read).

#include "sim/comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

namespace vericache {
namespace {

// Sanitizers take ten times as long, and a tenth of the table sees the same lines.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kStride = 10;
#else
constexpr int kStride = 1;
#endif

TEST(Comparison, TheControllerIsNeverMuchSlowerThanPlainNorFarFromTheBest) {
  const std::vector<RegretRow> rows = CompareController(kStride);
  std::fputs(RegretTable(rows).c_str(), stdout);
  ASSERT_GE(rows.size(), 60u / kStride);
  double worst_plain = 10, worst_best = 10, sum_best = 0;
  for (const RegretRow& row : rows) {
    worst_plain = std::min(worst_plain, row.against_plain());
    worst_best = std::min(worst_best, row.against_best());
    sum_best += row.against_best();
    EXPECT_GE(row.against_plain(), 0.97) << row.costs << ", agreement " << row.acceptance;
    EXPECT_GE(row.against_best(), 0.85) << row.costs << ", agreement " << row.acceptance;
  }
  std::printf("worst against plain %.3f, worst against best %.3f, mean against best %.3f\n",
              worst_plain, worst_best, sum_best / static_cast<double>(rows.size()));
  EXPECT_GE(sum_best / static_cast<double>(rows.size()), 0.97);
}

TEST(Comparison, StaggeringHidesTransfersThatLockStepWaitsFor) {
  const std::vector<StaggerRow> rows = CompareStagger();
  std::fputs(StaggerTable(rows).c_str(), stdout);
  for (const StaggerRow& row : rows) {
    EXPECT_GT(row.gain(), 1.08) << row.num_requests << " requests, transfer " << row.transfer_share;
    EXPECT_GT(row.staggered_hidden, row.lock_step_hidden);
    // With a quarter of one full KV to stage in, most of what there is to gain is gained.
    if (row.staging_share >= 0.25) {
      EXPECT_GE(row.gain(), 1.17) << row.num_requests << " requests, transfer "
                                  << row.transfer_share;
      EXPECT_GE(row.gain() / row.ideal_gain, 0.9)
          << row.num_requests << " requests, transfer " << row.transfer_share;
    }
  }
}

}  // namespace
}  // namespace vericache
