#include "kv/codecs/int_codec.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/float16.h"
#include "gtest/gtest.h"
#include "kernels/kernel_test_util.h"

namespace vericache {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr DraftFormat kFormats[] = {DraftFormat::kInt2, DraftFormat::kInt3, DraftFormat::kInt4,
                                    DraftFormat::kInt5, DraftFormat::kInt6, DraftFormat::kInt7,
                                    DraftFormat::kInt8};

// Decoded values of one group, [32][d], and the scale each of them was coded with.
struct Decoded {
  std::vector<double> value, scale, min;
};

Decoded KeyRoundTrip(DraftFormat format, const std::vector<float>& k, int d) {
  std::vector<uint8_t> codes(GroupCodeBytes(format, d));
  std::vector<uint16_t> scale(d), min(d);
  std::vector<float> by_channel(32 * d);
  for (int key = 0; key < 32; ++key)
    for (int c = 0; c < d; ++c) by_channel[c * 32 + key] = k[key * d + c];
  EncodeKeyGroup(Judge(), format, by_channel.data(), d, codes.data(), scale.data(), min.data());
  Decoded out;
  for (int key = 0; key < 32; ++key) {
    for (int c = 0; c < d; ++c) {
      const int code = GroupKeyCode(format, codes.data(), key, c);
      out.scale.push_back(F16ToF32(scale[c]));
      out.min.push_back(F16ToF32(min[c]));
      out.value.push_back(out.min.back() + out.scale.back() * code);
    }
  }
  return out;
}

Decoded ValueRoundTrip(DraftFormat format, const std::vector<float>& v, int d) {
  std::vector<uint8_t> codes(GroupCodeBytes(format, d));
  std::vector<uint16_t> scale(d), min(d);  // [d / 32][32]
  EncodeValueGroup(Judge(), format, v.data(), d, codes.data(), scale.data(), min.data());
  Decoded out;
  for (int key = 0; key < 32; ++key) {
    for (int c = 0; c < d; ++c) {
      const int part = c / 32;
      const int code = GroupValueCode(format, codes.data(), key, c);
      out.scale.push_back(F16ToF32(scale[part * 32 + key]));
      out.min.push_back(F16ToF32(min[part * 32 + key]));
      out.value.push_back(out.min.back() + out.scale.back() * code);
    }
  }
  return out;
}

void ExpectWithinBound(DraftFormat format, const std::vector<float>& x, const Decoded& decoded) {
  for (size_t i = 0; i < x.size(); ++i) {
    const double bound = 0.5 * decoded.scale[i] * (1 + 1e-6) + std::fabs(decoded.min[i]) * 0x1p-11 +
                         (MaxCodeOf(format) + 1) * 0x1p-25;
    ASSERT_NEAR(decoded.value[i], x[i], bound) << i;
    // The scale is no wider than the values need.
    ASSERT_GE(decoded.scale[i], 0);
  }
}

TEST(IntCodec, ErrsByHalfAStepAtMost) {
  for (DraftFormat format : kFormats) {
    for (int d : {32, 64, 96, 128}) {
      for (float range : {1e-6f, 1e-4f, 1e-2f, 1.0f, 50.0f, 1000.0f, 60000.0f}) {
        for (float offset : {0.0f, 3.0f, -100.0f}) {
          TestRandom random(d + static_cast<uint64_t>(range));
          std::vector<float> x(32 * d);
          for (float& value : x)
            value = F16ToF32(F32ToF16Saturated(random.Uniform(range) + offset));
          ExpectWithinBound(format, x, KeyRoundTrip(format, x, d));
          ExpectWithinBound(format, x, ValueRoundTrip(format, x, d));
        }
      }
    }
  }
}

TEST(IntCodec, StepIsTheRangeOverTheCodes) {
  // 0, 1, ... 31 in every channel: exact with 8 bits only if the scale is 31 / 255.
  const int d = 32;
  std::vector<float> x(32 * d);
  for (int key = 0; key < 32; ++key)
    for (int c = 0; c < d; ++c) x[key * d + c] = static_cast<float>(key);
  EXPECT_NEAR(KeyRoundTrip(DraftFormat::kInt8, x, d).scale[0], 31.0 / 255, 1e-4);
  EXPECT_NEAR(KeyRoundTrip(DraftFormat::kInt4, x, d).scale[0], 31.0 / 15, 1e-3);
  // Along a key all channels are the same: V has nothing to code.
  const Decoded v = ValueRoundTrip(DraftFormat::kInt4, x, d);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(v.value[i], x[i]);
}

TEST(IntCodec, ConstantGroupsAreExact) {
  for (DraftFormat format : kFormats) {
    for (float value : {0.0f, -0.0f, 1.0f, -3.5f, 65504.0f, -65504.0f, 6e-8f}) {
      const std::vector<float> x(32 * 64, value);
      const float half = F16ToF32(F32ToF16Saturated(value));
      for (const Decoded& decoded : {KeyRoundTrip(format, x, 64), ValueRoundTrip(format, x, 64)})
        for (double y : decoded.value) ASSERT_EQ(y, half) << value;
    }
  }
}

// One channel of K (or one group of V) with an outlier does not coarsen its neighbours.
TEST(IntCodec, OutliersStayInTheirOwnGroup) {
  const int d = 64;
  TestRandom random(2);
  std::vector<float> x = random.Floats(32 * d, 1.0f);
  for (int key = 0; key < 32; ++key) x[key * d + 7] *= 1000;
  const Decoded k = KeyRoundTrip(DraftFormat::kInt4, x, d);
  const Decoded v = ValueRoundTrip(DraftFormat::kInt4, x, d);
  for (int key = 0; key < 32; ++key) {
    for (int c = 0; c < d; ++c) {
      if (c != 7) {
        EXPECT_LT(k.scale[key * d + c], 0.2) << "K codes per channel";
      }
      if (c >= 32) {
        EXPECT_LT(v.scale[key * d + c], 0.2) << "V codes per 32 channels of a key";
      }
    }
  }
  EXPECT_GT(k.scale[7], 20);
  EXPECT_GT(v.scale[7], 1);
}

TEST(IntCodec, HugeValuesSaturate) {
  for (DraftFormat format : kFormats) {
    for (const auto& [low, high] : {std::pair(-65504.0f, 65504.0f), std::pair(-1e30f, 1e30f),
                                    std::pair(-kInf, kInf), std::pair(0.0f, kInf)}) {
      std::vector<float> x(32 * 32, low);
      for (size_t i = 0; i < x.size(); i += 2) x[i] = high;
      for (int key = 1; key < 32; key += 2) std::swap(x[key * 32], x[key * 32 + 1]);
      for (const Decoded& decoded : {KeyRoundTrip(format, x, 32), ValueRoundTrip(format, x, 32)}) {
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_TRUE(std::isfinite(decoded.value[i])) << low << " to " << high;
          ASSERT_GE(decoded.value[i], F16ToF32(F32ToF16Saturated(low)));
        }
      }
    }
  }
}

// A NaN may spoil its own group and nothing else; codes and scales are always written.
TEST(IntCodec, NanSpoilsNoOtherGroup) {
  const int d = 64;
  for (DraftFormat format : kFormats) {
    for (int bad_key : {0, 1, 31}) {
      TestRandom random(bad_key);
      std::vector<float> x = random.Floats(32 * d, 2.0f);
      x[bad_key * d + 5] = kNan;
      const Decoded k = KeyRoundTrip(format, x, d), v = ValueRoundTrip(format, x, d);
      for (int key = 0; key < 32; ++key) {
        for (int c = 0; c < d; ++c) {
          const size_t i = key * d + c;
          const double bound = 4.0 / MaxCodeOf(format);
          if (c != 5) {
            ASSERT_NEAR(k.value[i], x[i], bound);
          }
          if (key != bad_key || c >= 32) {
            ASSERT_NEAR(v.value[i], x[i], bound);
          }
        }
      }
    }
    const std::vector<float> all(32 * d, kNan);
    (void)KeyRoundTrip(format, all, d);
    (void)ValueRoundTrip(format, all, d);
  }
}

TEST(IntCodec, IsAPureFunctionOfItsGroup) {
  TestRandom random(9);
  const std::vector<float> x = random.Floats(32 * 96, 5.0f);
  const Decoded a = KeyRoundTrip(DraftFormat::kInt4, x, 96);
  const Decoded b = KeyRoundTrip(DraftFormat::kInt4, x, 96);
  EXPECT_EQ(a.value, b.value);
  // A channel alone codes as it does among others.
  std::vector<float> narrow(32 * 32);
  for (int key = 0; key < 32; ++key)
    for (int c = 0; c < 32; ++c) narrow[key * 32 + c] = x[key * 96 + 40 + c];
  const Decoded n = KeyRoundTrip(DraftFormat::kInt4, narrow, 32);
  for (int key = 0; key < 32; ++key)
    for (int c = 0; c < 32; ++c) EXPECT_EQ(n.value[key * 32 + c], a.value[key * 96 + 40 + c]);
}

}  // namespace
}  // namespace vericache
