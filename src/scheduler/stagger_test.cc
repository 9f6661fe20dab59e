#include "scheduler/stagger.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace vericache {
namespace {

// Slots of 1 s, a link of 100 bytes/s.
StaggerRings Rings(int64_t staging_bytes, int64_t max_rows = 1000) {
  StaggerRings rings(staging_bytes, max_rows);
  rings.SetRates(1.0, 100);
  return rings;
}

StreamNeed Need(int64_t bytes, double verify_s, int64_t min_staging = 10, int rows = 1) {
  StreamNeed need;
  need.bytes = bytes;
  need.min_staging_bytes = min_staging;
  need.verify_s = verify_s;
  need.rows = rows;
  return need;
}

TEST(StaggerRings, ReadsAheadOnlyWhatThePassCannotHide) {
  StaggerRings rings = Rings(1000);
  // 300 bytes take 3 s; the slot is 2 s long with the verification: 100 bytes, one slot, ahead.
  ASSERT_TRUE(rings.Reserve(1, 5, Need(300, 1.0)));
  EXPECT_EQ(rings.Find(1)->verify_slot, 5);
  EXPECT_EQ(rings.Find(1)->fetch_slot, 4);
  EXPECT_EQ(rings.Find(1)->staging_bytes, 100);
  EXPECT_EQ(rings.Find(1)->stall_s, 0);
  rings.CheckIntegrity();
}

TEST(StaggerRings, AllInRamNeedsNoLink) {
  StaggerRings rings = Rings(0);
  for (RequestId id = 0; id < 5; ++id) ASSERT_TRUE(rings.Reserve(id, 3, Need(0, 1.0)));
  EXPECT_EQ(rings.Find(4)->staging_bytes, 0);
  EXPECT_DOUBLE_EQ(rings.SecondsUntilEnd(3), 4 + 5);
}

TEST(StaggerRings, TwoThatCannotBothBeStagedAreShifted) {
  StaggerRings rings = Rings(400);
  EXPECT_EQ(rings.ReserveNear(1, 8, 1, 16, Need(400, 0.5)), 8);
  const std::optional<int> second = rings.ReserveNear(2, 8, 1, 16, Need(400, 0.5));
  ASSERT_TRUE(second.has_value());
  EXPECT_LT(*second, 8);
  const std::optional<int> third = rings.ReserveNear(3, 8, 1, 16, Need(400, 0.5));
  ASSERT_TRUE(third.has_value());
  EXPECT_GT(*third, 8);
  rings.CheckIntegrity();
}

TEST(StaggerRings, TriesShorterBeforeLonger) {
  StaggerRings rings = Rings(1000, /*max_rows=*/10);
  ASSERT_TRUE(rings.Reserve(1, 6, Need(0, 0, 0, 10)));  // the slot's rows are gone
  EXPECT_EQ(rings.ReserveNear(2, 6, 1, 12, Need(0, 0, 0, 10)), 5);
  EXPECT_EQ(rings.ReserveNear(3, 6, 1, 12, Need(0, 0, 0, 10)), 7);
  EXPECT_EQ(rings.ReserveNear(4, 6, 6, 6, Need(0, 0, 0, 10)), std::nullopt);
  EXPECT_EQ(rings.ReserveNear(5, 6, 6, 9, Need(0, 0, 0, 10)), 8);
}

TEST(StaggerRings, StagingIsNeverPromisedTwice) {
  StaggerRings rings = Rings(150);
  ASSERT_TRUE(rings.Reserve(1, 4, Need(300, 1.0, 100)));
  EXPECT_FALSE(rings.Reserve(2, 4, Need(300, 1.0, 100)));
  EXPECT_EQ(rings.Find(2), nullptr);
  rings.Release(1);
  EXPECT_TRUE(rings.Reserve(2, 4, Need(300, 1.0, 100)));
}

TEST(StaggerRings, TooEarlyDoesNotFitUnlessWaitingCannotHelp) {
  StaggerRings rings = Rings(1000);
  EXPECT_FALSE(rings.Reserve(1, 0, Need(800, 1.0)));  // 8 s of transfer, 2 s of pass
  EXPECT_TRUE(rings.Reserve(1, 6, Need(800, 1.0)));
  StaggerRings small = Rings(20);
  // With 20 bytes of staging the pass waits about 6 s wherever it stands.
  EXPECT_TRUE(small.Reserve(1, 1, Need(800, 1.0)));
  EXPECT_NEAR(small.Find(1)->stall_s, 5.8, 0.01);
}

TEST(StaggerRings, SoonestWaitsWhileReadingAheadHelpsAndNoLonger) {
  StaggerRings rings = Rings(200);
  EXPECT_EQ(rings.ReserveSoonest(1, 0, Need(400, 1.0)), 2);  // 2 s ahead fill the ring
  EXPECT_EQ(rings.Find(1)->staging_bytes, 200);
  StaggerRings ram = Rings(0);
  EXPECT_EQ(ram.ReserveSoonest(1, 3, Need(0, 1.0)), 3);
}

TEST(StaggerRings, NowIsTakenThoughThePassWaits) {
  StaggerRings rings = Rings(50);
  ASSERT_TRUE(rings.ReserveNow(1, Need(500, 1.0, 50)));
  EXPECT_NEAR(rings.Find(1)->stall_s, 3.0, 1e-9);
  EXPECT_FALSE(rings.ReserveNow(2, Need(500, 1.0, 50)));  // no staging left
}

TEST(StaggerRings, AdvanceBringsReservationsNearer) {
  StaggerRings rings = Rings(1000);
  ASSERT_TRUE(rings.Reserve(1, 3, Need(400, 1.0)));
  const int fetch_slot = rings.Find(1)->fetch_slot;
  rings.Advance();
  EXPECT_EQ(rings.Find(1)->verify_slot, 2);
  EXPECT_EQ(rings.Find(1)->fetch_slot, std::max(0, fetch_slot - 1));
  rings.CheckIntegrity();
  rings.Advance();
  rings.Advance();
  EXPECT_EQ(rings.Find(1)->verify_slot, 0);
  EXPECT_EQ(rings.StagingHeldNow(), 0);
  rings.MarkFetchStarted(1);
  EXPECT_GT(rings.StagingHeldNow(), 0);
  rings.Release(1);
  EXPECT_EQ(rings.StagingHeldNow(), 0);
  rings.CheckIntegrity();
}

TEST(StaggerRings, RandomUseKeepsItsBooks) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  StaggerRings rings = Rings(500, 64);
  std::set<RequestId> held;
  for (int i = 0; i < 20000; ++i) {
    const RequestId id = below(12);
    const StreamNeed need =
        Need(below(3) == 0 ? 0 : below(2000), below(30) / 10.0, below(300), 1 + below(40));
    switch (below(5)) {
      case 0:
        if (!held.contains(id) && rings.Reserve(id, below(40), need)) held.insert(id);
        break;
      case 1:
        if (!held.contains(id) && rings.ReserveNear(id, below(30), 0, 40, need)) held.insert(id);
        break;
      case 2:
        if (!held.contains(id) && rings.ReserveSoonest(id, below(30), need)) held.insert(id);
        break;
      case 3:
        rings.Release(id);
        held.erase(id);
        break;
      default:
        for (RequestId done = 0; done < 12; ++done) {
          const Reservation* at = rings.Find(done);
          if (at == nullptr || at->verify_slot > 0) continue;
          rings.Release(done);
          held.erase(done);
        }
        rings.Advance();
    }
    rings.CheckIntegrity();
  }
}

}  // namespace
}  // namespace vericache
