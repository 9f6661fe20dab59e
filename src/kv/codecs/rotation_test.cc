#include "kv/codecs/rotation.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kernel_test_util.h"

namespace vericache {
namespace {

TEST(Rotation, IsTheHadamardMatrixOnEvery32Channels) {
  for (const int d : {32, 64, 96, 128}) {
    TestRandom random(d);
    const std::vector<float> rows = random.Floats(32 * d, 4.0f);  // [32 keys][d]
    std::vector<float> by_channel(rows.size()), by_key = rows;
    for (int key = 0; key < 32; ++key)
      for (int c = 0; c < d; ++c) by_channel[c * 32 + key] = rows[key * d + c];
    RotateKeys(d, by_channel.data());
    RotateValues(d, by_key.data());
    for (int key = 0; key < 32; ++key) {
      const auto want = RotateExactly({rows.begin() + key * d, rows.begin() + (key + 1) * d});
      for (int c = 0; c < d; ++c) {
        ASSERT_NEAR(by_channel[c * 32 + key], want[c], 6 * 0x1p-23 * 4 * std::sqrt(32.0));
        ASSERT_NEAR(by_key[key * d + c], want[c], 6 * 0x1p-23 * 4 * std::sqrt(32.0));
      }
    }
    // Twice is not at all.
    RotateValues(d, by_key.data());
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(by_key[i], rows[i], 1e-5);
  }
}

TEST(Rotation, SpreadsAnOutlier) {
  std::vector<float> k(32 * 32, 0.0f), v(32 * 32, 0.0f);
  for (int key = 0; key < 32; ++key) k[5 * 32 + key] = v[key * 32 + 5] = 100.0f;
  RotateKeys(32, k.data());
  RotateValues(32, v.data());
  for (const float x : k) EXPECT_NEAR(std::fabs(x), 100 / std::sqrt(32.0), 1e-4);
  for (const float x : v) EXPECT_NEAR(std::fabs(x), 100 / std::sqrt(32.0), 1e-4);
}

}  // namespace
}  // namespace vericache
