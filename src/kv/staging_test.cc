#include "kv/staging.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace vericache {
namespace {

constexpr size_t kPage = 4096;

TEST(StagingPool, HandsOutDistinctAlignedSlotsWithinItsMemory) {
  for (const size_t slot_bytes : {kPage, 3 * kPage, size_t{1} << 20}) {
    auto pool = *StagingPool::Create(5, slot_bytes);
    auto one = *pool->Reserve(2);
    auto two = *pool->Reserve(3);
    std::set<uint8_t*> slots;
    for (const auto* reservation : {&one, &two}) {
      for (size_t i = 0; i < reservation->num_slots(); ++i) {
        uint8_t* slot = reservation->slot(i);
        slots.insert(slot);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(slot) % kPage, 0u);
        EXPECT_GE(slot, pool->memory().get());
        EXPECT_LE(slot + slot_bytes, pool->memory().get() + pool->num_bytes());
        EXPECT_EQ((slot - pool->memory().get()) % slot_bytes, 0u);
        std::memset(slot, 1, slot_bytes);
      }
    }
    EXPECT_EQ(slots.size(), 5u);
    EXPECT_EQ(one.slot_bytes(), slot_bytes);
  }
}

TEST(StagingPool, GivesAllOrNothingWithNumbers) {
  auto pool = *StagingPool::Create(4, kPage);
  {
    auto three = pool->Reserve(3);
    ASSERT_TRUE(three.ok());
    const absl::Status status = pool->Reserve(2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find("2 staging slots of 4096 bytes are wanted, 1 of 4 are free"),
              std::string::npos)
        << status;
    EXPECT_EQ(pool->num_free(), 1u) << "the refused reservation took something";
    EXPECT_TRUE(pool->Reserve(1).ok());
    EXPECT_TRUE(pool->Reserve(0).ok());
  }
  EXPECT_EQ(pool->num_free(), 4u);
  EXPECT_EQ(pool->num_used_max(), 4u);
}

TEST(StagingPool, MovedReservationsReturnTheirSlotsOnce) {
  auto pool = *StagingPool::Create(4, kPage);
  StagingPool::Reservation a = *pool->Reserve(2);
  StagingPool::Reservation b = std::move(a);
  EXPECT_EQ(b.num_slots(), 2u);
  EXPECT_EQ(a.num_slots(), 0u);
  b = *pool->Reserve(1);
  EXPECT_EQ(b.num_slots(), 1u);
  EXPECT_EQ(pool->num_free(), 3u);
  b = StagingPool::Reservation();
  EXPECT_EQ(pool->num_free(), 4u);
}

TEST(StagingPool, RefusesImpossibleSizes) {
  EXPECT_FALSE(StagingPool::Create(1, 0).ok());
  EXPECT_FALSE(StagingPool::Create(0, kPage).ok());
  EXPECT_FALSE(StagingPool::Create(1, 1000).ok());
  EXPECT_FALSE(StagingPool::Create(SIZE_MAX / kPage + 2, kPage).ok());
}

TEST(StagingPool, ServesSeveralThreads) {
  auto pool = *StagingPool::Create(8, kPage);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 500; ++i) {
        auto slots = pool->Reserve(1 + i % 4);
        if (!slots.ok()) continue;
        // Two owners of one slot would see each other's bytes (and TSan the race).
        for (size_t s = 0; s < slots->num_slots(); ++s) {
          std::memset(slots->slot(s), t, kPage);
          EXPECT_EQ(slots->slot(s)[kPage - 1], t);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->num_free(), 8u);
}

}  // namespace
}  // namespace vericache
