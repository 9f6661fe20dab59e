#include <atomic>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/float16.h"
#include "base/hash.h"
#include "base/tensor_type.h"
#include "base/thread_pool.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceForAnyThreadCount) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> hits(n);
      for (int repeat = 0; repeat < 20; ++repeat)
        pool.ParallelFor(n, [&](int64_t task, int thread) {
          EXPECT_LT(thread, threads);
          hits[task].fetch_add(1);
        });
      for (auto& hit : hits) EXPECT_EQ(hit.load(), 20);
    }
  }
}

// Many tiny regions one after the other, with more threads than cores: a late worker must neither
// run a task of a closed region nor be waited for.
TEST(ThreadPool, LateWorkersTakeNoTaskOfAClosedRegion) {
  ThreadPool pool(5);
  int64_t expected = 0;
  std::atomic<int64_t> sum{0};
  for (int64_t region = 0; region < 20000; ++region) {
    const int64_t n = 2 + region % 3;
    pool.ParallelFor(n, [&sum, region](int64_t task, int) { sum.fetch_add(region + task); });
    expected += n * region + n * (n - 1) / 2;
    ASSERT_EQ(sum.load(), expected) << "region " << region;
  }
}

TEST(Float16, AllHalvesRoundTrip) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float f = F16ToF32(static_cast<uint16_t>(h));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(f))));
    } else {
      EXPECT_EQ(F32ToF16(f), h);
    }
  }
}

TEST(Float16, RoundsToNearestEvenAndSaturates) {
  EXPECT_EQ(F32ToF16(1.0f + 0x1p-11f), F32ToF16(1.0f));              // tie to even, down
  EXPECT_EQ(F32ToF16(1.0f + 0x1.8p-10f), F32ToF16(1.0f + 0x1p-9f));  // tie to even, up
  EXPECT_EQ(F32ToF16(0x1p-25f), 0);                                  // tie to zero
  EXPECT_EQ(F32ToF16(0x1.8p-25f), 1);
  EXPECT_EQ(F32ToF16(65519.9f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16Saturated(1e30f), 0x7bff);
  EXPECT_EQ(F32ToF16Saturated(-INFINITY), 0xfbff);
  EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16Saturated(NAN))));
}

TEST(Hash, KnownAnswers) {
  EXPECT_EQ(HexOf(Sha256Of("abc", 3)),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // XXH3-128 of the empty input, from the algorithm's published test vectors.
  EXPECT_EQ(HexOf(Xxh3_128("", 0)), "99aa06d3014798d86001c324468d497f");
  EXPECT_FALSE(Sha256OfFile("/nonexistent/file").ok());
}

TEST(TensorType, KnowsBlocksAndNamesForeignTypes) {
  EXPECT_EQ(InfoOf(TensorType::kQ6_K).block_bytes, 210);
  EXPECT_EQ(FindTensorType(10), nullptr);
  EXPECT_EQ(TensorTypeName(10), "Q2_K");
  EXPECT_EQ(TensorTypeName(999), "type 999");
}

TEST(Hash, AStreamOfPartsIsTheWhole) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  for (size_t cut : {size_t{0}, size_t{1}, size_t{240}, size_t{999}, text.size()}) {
    Xxh3Stream stream;
    stream.Update(text.data(), cut);
    stream.Update(text.data() + cut, text.size() - cut);
    EXPECT_EQ(stream.Finish(), Xxh3_128(text.data(), text.size()));
  }
}

}  // namespace
}  // namespace vericache
