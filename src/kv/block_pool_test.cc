#include "kv/block_pool.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "base/split_mix.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

// As the 0.5b's: eight of them fill three huge pages.
constexpr size_t kBlockBytes = size_t{768} << 10;
constexpr int64_t kSlabBlocks = 8;

struct Held {
  std::shared_ptr<uint16_t[]> block;
  uint16_t mark = 0;
};

void Fill(Held* held, uint16_t mark) {
  held->mark = mark;
  std::fill_n(held->block.get(), kBlockBytes / 2, mark);
}

bool IsFilledWith(const uint16_t* block, uint16_t mark) {
  return std::all_of(block, block + kBlockBytes / 2, [mark](uint16_t v) { return v == mark; });
}

size_t ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  size_t total = 0, resident = 0;
  in >> total >> resident;
  return resident * 4096;
}

TEST(BlockPool, AnyOrderOfTakingAndReturning) {
  BlockPool pool(kBlockBytes);
  uint64_t random = 7;
  std::vector<Held> held;
  for (int step = 0; step < 1500; ++step) {
    const bool grows = step % 300 < 150;
    if (held.empty() || NextSplitMix(&random) % 10 < (grows ? 7u : 3u)) {
      Held one{pool.Allocate()};
      ASSERT_NE(one.block, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(one.block.get()) % 64, 0u);
      ASSERT_TRUE(IsFilledWith(one.block.get(), 0)) << step;
      Fill(&one, static_cast<uint16_t>(1 + step));
      held.push_back(std::move(one));
    } else {
      std::swap(held[NextSplitMix(&random) % held.size()], held.back());
      ASSERT_TRUE(IsFilledWith(held.back().block.get(), held.back().mark)) << step;
      held.pop_back();
    }
    ASSERT_EQ(pool.num_used(), static_cast<int64_t>(held.size()));
    ASSERT_LE(pool.resident_bytes(), (held.size() + kSlabBlocks) * kBlockBytes);
  }
}

// Every eighth block stays: each slab is still in use.
TEST(BlockPool, WhatReturnsLeavesMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps freed memory";
#endif
  BlockPool pool(kBlockBytes);
  std::vector<Held> held(96);
  for (Held& one : held) Fill(&(one = Held{pool.Allocate()}), 9);
  const size_t before = ResidentBytes();
  std::vector<Held> kept;
  for (size_t i = 0; i < held.size(); i += kSlabBlocks) kept.push_back(std::move(held[i]));
  held.clear();
  EXPECT_LE(pool.resident_bytes(), (kept.size() + kSlabBlocks) * kBlockBytes);
  const size_t gone = before - std::min(before, ResidentBytes());
  EXPECT_GE(gone, (96 - kept.size() - kSlabBlocks) * kBlockBytes * 9 / 10);
  for (const Held& one : kept) EXPECT_TRUE(IsFilledWith(one.block.get(), 9));
  kept.clear();
  EXPECT_LE(pool.resident_bytes(), kSlabBlocks * kBlockBytes);
}

// What comes and goes is handed out again as it is, without a fault a page.
TEST(BlockPool, TheSameBlockServesAgain) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "there are no slabs under a red zone around every block";
#endif
  BlockPool pool(kBlockBytes);
  const std::shared_ptr<uint16_t[]> other = pool.Allocate();
  const void* place = pool.Allocate().get();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(pool.Allocate().get(), place);
    EXPECT_EQ(pool.resident_bytes(), 2 * kBlockBytes);
  }
}

// Blocks whose ends lie within pages: what goes back to the system is zeros to the last byte.
TEST(BlockPool, BlocksThatAreNoWholePages) {
  constexpr size_t kBytes = 300'032;
  BlockPool pool(kBytes);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<uint16_t[]>> held(40);
    for (auto& block : held) {
      block = pool.Allocate();
      ASSERT_TRUE(
          std::all_of(block.get(), block.get() + kBytes / 2, [](uint16_t v) { return v == 0; }));
      std::fill_n(block.get(), kBytes / 2, uint16_t{7});
    }
    const std::vector<std::shared_ptr<uint16_t[]>> kept(held.begin(), held.begin() + 20);
    for (size_t i = 0; i < held.size(); i += 2) held[i].reset();
  }
}

TEST(BlockPool, TheLimitHoldsForThoseWhoComeNext) {
  BlockPool pool(kBlockBytes, 3);
  std::vector<std::shared_ptr<uint16_t[]>> held;
  for (int i = 0; i < 3; ++i) held.push_back(pool.Allocate());
  EXPECT_EQ(pool.Allocate(), nullptr);
  pool.set_max_blocks(2);
  held.pop_back();
  EXPECT_EQ(pool.Allocate(), nullptr);
  held.pop_back();
  EXPECT_NE(pool.Allocate(), nullptr);
  EXPECT_EQ(pool.num_used_peak(), 3);
}

TEST(BlockPool, BlocksOutliveThePool) {
  for (const size_t bytes : {size_t{640}, kBlockBytes}) {
    auto pool = std::make_unique<BlockPool>(bytes);
    const std::shared_ptr<uint16_t[]> a = pool->Allocate(), b = pool->Allocate();
    pool.reset();
    std::fill_n(a.get(), bytes / 2, uint16_t{1});
    EXPECT_EQ(b[0], 0);
  }
}

TEST(BlockPool, Threads) {
  BlockPool pool(kBlockBytes);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::vector<Held> held;
      for (int i = 0; i < 60; ++i) {
        held.push_back(Held{pool.Allocate()});
        Fill(&held.back(), static_cast<uint16_t>(100 * t + i + 1));
        if (held.size() < 5) continue;
        EXPECT_TRUE(IsFilledWith(held.front().block.get(), held.front().mark));
        held.erase(held.begin());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.num_used(), 0);
}

}  // namespace
}  // namespace vericache
