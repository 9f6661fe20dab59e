#include "sim/sim_link.h"

#include <gtest/gtest.h>

#include "sim/hardware.h"

namespace vericache {
namespace {

TEST(SimLink, ServesTransfersInOrderAndStopsAtTheirStaging) {
  SimLink link;
  link.Start(1, 100);
  link.Start(2, 50);
  EXPECT_DOUBLE_EQ(link.Run(0.5, 100), 0.5);  // 50 bytes of the first
  EXPECT_DOUBLE_EQ(link.StagingHeld(), 150);
  EXPECT_DOUBLE_EQ(link.Run(10, 100), 1.0);  // the rest of both, then idle
  EXPECT_DOUBLE_EQ(link.Take(1), 100);
  EXPECT_DOUBLE_EQ(link.Take(2), 50);
  EXPECT_DOUBLE_EQ(link.Take(2), 0);
  EXPECT_FALSE(link.Holds(1));
}

TEST(Hardware, AVerificationOfMhaReadsTheKvOnceForAllItsRows) {
  const HardwareModel mha = NamedHardware("cpu-mha");
  SimPass one, many;
  one.rows = one.logit_rows = 1;
  many.rows = many.logit_rows = 5;
  one.full_bytes = many.full_bytes = 16384 * mha.full_bytes_per_token;
  one.pairs = 16384;
  many.pairs = 5 * 16384;
  EXPECT_LT(PassSeconds(mha, many), 1.3 * PassSeconds(mha, one));
  // With seven heads a KV head the arithmetic is what costs: five rows, five times of it.
  const HardwareModel gqa = NamedHardware("cpu-gqa");
  one.full_bytes = many.full_bytes = 16384 * gqa.full_bytes_per_token;
  EXPECT_GT(PassSeconds(gqa, many), 2 * PassSeconds(gqa, one));
}

}  // namespace
}  // namespace vericache
