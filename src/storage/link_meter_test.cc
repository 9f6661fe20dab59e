#include "storage/link_meter.h"

#include "gtest/gtest.h"

namespace vericache {
namespace {

using Time = LinkMeter::Clock::time_point;

Time At(double seconds) {
  return Time(std::chrono::duration_cast<LinkMeter::Clock::duration>(
      std::chrono::duration<double>(seconds)));
}

TEST(LinkMeter, KnowsNothingBeforeEnoughHasCome) {
  LinkMeter meter;
  EXPECT_EQ(meter.bytes_per_s(), 0);
  meter.StartWaiting(At(1));
  meter.StopWaiting(1000, At(2));
  EXPECT_EQ(meter.bytes_per_s(), 0);
}

TEST(LinkMeter, CountsOnlyTheTimeInWhichSomebodyWaits) {
  LinkMeter meter;
  meter.StartWaiting(At(1));
  meter.StopWaiting(1000000, At(2));
  meter.StartWaiting(At(50));  // somebody was busy with what came
  meter.StopWaiting(1000000, At(51));
  EXPECT_NEAR(meter.bytes_per_s(), 1e6, 1);
}

TEST(LinkMeter, ReadersAtTheSameTimeShareTheLink) {
  LinkMeter meter;
  meter.StartWaiting(At(1));
  meter.StartWaiting(At(1));
  meter.StopWaiting(1000000, At(3));
  meter.StopWaiting(1000000, At(3));
  EXPECT_NEAR(meter.bytes_per_s(), 1e6, 1);
}

TEST(LinkMeter, ForgetsAnOldRate) {
  LinkMeter meter;
  double now = 0;
  const auto read = [&](double bytes_per_s, int times) {
    for (int i = 0; i < times; ++i) {
      meter.StartWaiting(At(now));
      now += 1e7 / bytes_per_s;
      meter.StopWaiting(10000000, At(now));
    }
  };
  read(1e8, 20);
  EXPECT_NEAR(meter.bytes_per_s(), 1e8, 1e5);
  read(1e7, 60);
  EXPECT_LT(meter.bytes_per_s(), 1.3e7);
}

}  // namespace
}  // namespace vericache
