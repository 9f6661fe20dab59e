#include "storage/token_bucket.h"

#include <gtest/gtest.h>

namespace vericache {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(TokenBucket, WithoutALimitNeverWaits) {
  TokenBucket bucket(0);
  bucket.Take(5, size_t{1} << 40);
  EXPECT_EQ(bucket.NsUntilFree(5), 0);
}

TEST(TokenBucket, TakesTheTimeTheDeviceNeeds) {
  TokenBucket bucket(1'000'000);  // 1 MB/s: 1,000 bytes a millisecond
  bucket.StartWork(100 * kMs);
  EXPECT_EQ(bucket.NsUntilFree(100 * kMs), 0);
  bucket.Take(100 * kMs, 3'000);
  EXPECT_EQ(bucket.NsUntilFree(100 * kMs), 3 * kMs);
  EXPECT_EQ(bucket.NsUntilFree(102 * kMs), 1 * kMs);
  EXPECT_EQ(bucket.NsUntilFree(103 * kMs), 0);
}

TEST(TokenBucket, AnIdleDeviceSavesNothingUp) {
  TokenBucket bucket(1'000'000);
  bucket.StartWork(0);
  bucket.Take(0, 1'000);
  bucket.StartWork(500 * kMs);
  bucket.Take(500 * kMs, 1'000);
  EXPECT_EQ(bucket.NsUntilFree(500 * kMs), 1 * kMs);
}

TEST(TokenBucket, ALateReaderCatchesUpWithinABound) {
  TokenBucket bucket(1'000'000);
  bucket.StartWork(0);
  bucket.Take(0, 1'000);
  bucket.Take(10 * kMs, 1'000);  // 9 ms late: the device would have gone on at 1 ms
  EXPECT_EQ(bucket.NsUntilFree(10 * kMs), 0);
  const int64_t late_ns = 1000 * kMs;
  bucket.Take(late_ns, 1'000);
  int64_t caught_up = 1'000;
  while (bucket.NsUntilFree(late_ns) == 0) {
    bucket.Take(late_ns, 1'000);
    caught_up += 1'000;
  }
  EXPECT_LE(caught_up, TokenBucket::kCatchUpNs / 1'000 + 1'000);
}

TEST(TokenBucket, KeepsTheRateOverManyReads) {
  TokenBucket bucket(250'000'000);
  int64_t now_ns = 1'000 * kMs;
  const int64_t start_ns = now_ns;
  bucket.StartWork(now_ns);
  for (int i = 0; i < 1000; ++i) {
    now_ns += bucket.NsUntilFree(now_ns) + 50'000;  // and always a little late
    bucket.Take(now_ns, 250'000);                   // 1 ms each
  }
  EXPECT_GE(now_ns - start_ns, 999 * kMs);
  EXPECT_LE(now_ns - start_ns, 1001 * kMs);
}

}  // namespace
}  // namespace vericache
