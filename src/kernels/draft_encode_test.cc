// Codes of draft keys and values: tables byte for byte against each other, the judge against the
// nearest code in fp64.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kernel_test_util.h"

namespace vericache {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Encoded {
  std::vector<uint8_t> block;
  std::vector<uint16_t> scale, min;
  bool operator==(const Encoded&) const = default;
};

Encoded Encode(const KernelTable& table, DraftFormat format, const std::vector<float>& x,
               int64_t stride) {
  // Bytes behind the end must stay as they are.
  Encoded e{std::vector<uint8_t>(128 * BitsOf(format) + 1, 0xa5), std::vector<uint16_t>(33, 7),
            std::vector<uint16_t>(33, 7)};
  table.encode_block(format, x.data(), stride, e.block.data(), e.scale.data(), e.min.data());
  EXPECT_EQ(e.block.back(), 0xa5);
  EXPECT_TRUE(e.scale.back() == 7 && e.min.back() == 7);
  return e;
}

// Rows of every kind: ranges from denormal halves to overflow, constants, NaN, infinities, zeros of
// both signs, halves between two codes.
std::vector<float> HardRows(int64_t stride, uint64_t seed) {
  TestRandom random(seed);
  std::vector<float> x(31 * stride + 32);
  for (int row = 0; row < 32; ++row) {
    const float range = std::ldexp(1.0f, 2 * row - 30);
    float* r = &x[row * stride];
    for (int i = 0; i < 32; ++i) {
      r[i] = random.Uniform(range);
      if (row == 3) r[i] = 0.1f;  // rounds down in f16
      if (row == 5) r[i] = -0.7f;
      if (row == 7) r[i] = i % 2 == 0 ? 0.0f : -0.0f;
      if (row == 9) r[i] = static_cast<float>(i % 31) * 0.5f;
      if (row == 11 && i % 3 == 0) r[i] = kNan;
      if (row == 13) r[i] = kNan;
      if (row == 15 && i == 20) r[i] = kInf;
      if (row == 17 && i == 2) r[i] = -kInf;
      if (row == 19) r[i] = i < 16 ? kInf : -kInf;
      if (row == 21) r[i] = -kInf;
    }
  }
  return x;
}

TEST(DraftEncode, TablesStoreTheSameBytes) {
  for (const DraftFormat format : kAllDraftFormats) {
    if (format == DraftFormat::kF16) continue;
    for (const int64_t stride : {32, 96}) {
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const auto x = HardRows(stride, seed);
        const Encoded expected = Encode(Judge(), format, x, stride);
        for (const KernelTable* table : AllKernelTables())
          ASSERT_TRUE(Encode(*table, format, x, stride) == expected)
              << table->name << " int" << BitsOf(format) << " seed " << seed;
      }
    }
  }
}

TEST(DraftEncode, StoresTheNearestCode) {
  for (const DraftFormat format : kAllDraftFormats) {
    if (format == DraftFormat::kF16) continue;
    TestRandom random(BitsOf(format));
    const std::vector<float> x = random.Floats(32 * 32, 3.0f);
    const Encoded e = Encode(Judge(), format, x, 32);
    const int last = MaxCodeOf(format);
    for (int row = 0; row < 32; ++row) {
      const double scale = F16ToF32(e.scale[row]), min = F16ToF32(e.min[row]);
      float low = kInf, high = -kInf;
      for (int i = 0; i < 32; ++i) {
        low = std::min(low, x[row * 32 + i]);
        high = std::max(high, x[row * 32 + i]);
      }
      ASSERT_EQ(e.min[row], F32ToF16(low));
      ASSERT_NEAR(scale, (high - min) / last, scale * 0x1p-11);
      for (int i = 0; i < 32; ++i) {
        const double exact = (x[row * 32 + i] - min) / scale;
        const int code = BlockCode(format, e.block.data(), row, i);
        ASSERT_NEAR(code, std::min(std::max(exact, 0.0), 1.0 * last), 0.5 + 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace vericache
