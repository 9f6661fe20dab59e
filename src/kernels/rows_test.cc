// Row kernels: every table bit for bit against loops written from docs/exactness.md, the elementary
// functions against libm in fp64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kernel_test_util.h"

namespace vericache {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kSizes[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 896};

// Ordinary values with some of every special kind among them.
std::vector<float> Values(int64_t n, uint64_t seed) {
  const float special[] = {0.0f,    -0.0f,    kInf,  -kInf, kNan,   1e-45f,  -3e-39f,
                           3.4e38f, -3.4e38f, 87.5f, 88.5f, -87.5f, -1000.f, 65519.0f};
  TestRandom random(seed);
  std::vector<float> x = random.Floats(n, 8.0f);
  for (float& v : x) {
    if (random.Below(8) == 0) v = special[random.Below(std::size(special))];
  }
  return x;
}

float ReferenceExp(float x) {
  if (std::isnan(x)) return x;
  if (x > 88) return kInf;
  if (x < -87) return 0;
  const float n = std::nearbyint(x * 1.44269504f);
  const float f = std::fma(n, 2.12194440e-4f, std::fma(n, -0.693359375f, x));
  float p = 1.9875691500e-4f;
  for (const float term :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = std::fma(p, f, term);
  }
  return std::ldexp(std::fma(p, f * f, f + 1.0f), static_cast<int>(n));
}

float ReferenceLaneSumOfSquares(const std::vector<float>& x) {
  float lane[16] = {};
  for (size_t k = 0; k < x.size(); ++k) lane[k % 16] = std::fma(x[k], x[k], lane[k % 16]);
  for (int s = 8; s > 0; s /= 2) {
    for (int i = 0; i < s; ++i) lane[i] += lane[i + s];
  }
  return lane[0];
}

// Runs `body(table, n)` for all tables and sizes.
template <typename F>
void ForAll(F body) {
  for (const KernelTable* table : AllKernelTables()) {
    for (const int64_t n : kSizes) {
      SCOPED_TRACE(std::string(table->name) + " n = " + std::to_string(n));
      body(*table, n);
    }
  }
}

TEST(Rows, RmsNorm) {
  ForAll([](const KernelTable& table, int64_t n) {
    if (n == 0) return;
    for (const bool special : {false, true}) {
      const auto x = special ? Values(n, n) : TestRandom(n).Floats(n, 3.0f);
      const auto w = TestRandom(n + 1).Floats(n, 2.0f);
      const float mean = ReferenceLaneSumOfSquares(x) / static_cast<float>(n);
      const float s = 1.0f / std::sqrt(mean + 1e-6f);
      std::vector<float> expected(n), y(n);
      for (int64_t k = 0; k < n; ++k) expected[k] = (x[k] * s) * w[k];
      table.rms_norm(x.data(), w.data(), n, 1e-6f, y.data());
      EXPECT_TRUE(AllSameBits(y, expected));
      y = x;
      table.rms_norm(y.data(), w.data(), n, 1e-6f, y.data());  // in place
      EXPECT_TRUE(AllSameBits(y, expected));
    }
  });
}

TEST(Rows, AddScaleAndExp) {
  ForAll([](const KernelTable& table, int64_t n) {
    const auto x = Values(n, n + 10);
    const auto start = Values(n, n + 20);
    std::vector<float> expected(n);
    auto y = start;
    table.add(x.data(), n, y.data());
    for (int64_t i = 0; i < n; ++i) expected[i] = start[i] + x[i];
    EXPECT_TRUE(AllSameBits(y, expected));
    table.scale(x.data(), 0.1f, n, y.data());
    for (int64_t i = 0; i < n; ++i) expected[i] = x[i] * 0.1f;
    EXPECT_TRUE(AllSameBits(y, expected));
    table.exp(x.data(), n, y.data());
    for (int64_t i = 0; i < n; ++i) expected[i] = ReferenceExp(x[i]);
    EXPECT_TRUE(AllSameBits(y, expected));
  });
}

TEST(Rows, SwiGlu) {
  ForAll([](const KernelTable& table, int64_t n) {
    auto gate = Values(n, n + 30);
    const auto up = Values(n, n + 40);
    std::vector<float> expected(n);
    for (int64_t i = 0; i < n; ++i) {
      expected[i] = (gate[i] / (1.0f + ReferenceExp(-gate[i]))) * up[i];
    }
    table.swiglu(gate.data(), up.data(), n, gate.data());
    EXPECT_TRUE(AllSameBits(gate, expected));
  });
}

TEST(Rows, RopeRotatesPairsAndLeavesTheRest) {
  ForAll([](const KernelTable& table, int64_t n) {
    const int64_t rotary = n / 2 * 2;
    const auto x = Values(n, n + 50);
    const auto cos = TestRandom(n + 51).Floats(rotary / 2, 1.0f);
    const auto sin = TestRandom(n + 52).Floats(rotary / 2, 1.0f);
    auto adjacent = x, expected_adjacent = x, neox = x, expected_neox = x;
    const auto rotate = [&](std::vector<float>& y, int64_t i0, int64_t i1, int64_t i) {
      y[i0] = std::fma(x[i0], cos[i], -(x[i1] * sin[i]));
      y[i1] = std::fma(x[i1], cos[i], x[i0] * sin[i]);
    };
    for (int64_t i = 0; i < rotary / 2; ++i) {
      rotate(expected_adjacent, 2 * i, 2 * i + 1, i);
      rotate(expected_neox, i, i + rotary / 2, i);
    }
    table.rope_adjacent(adjacent.data(), cos.data(), sin.data(), rotary);
    table.rope_neox(neox.data(), cos.data(), sin.data(), rotary);
    EXPECT_TRUE(AllSameBits(adjacent, expected_adjacent));
    EXPECT_TRUE(AllSameBits(neox, expected_neox));
  });
}

TEST(Rows, AllHalvesConvertExactly) {
  std::vector<uint16_t> halves(65536);
  for (int i = 0; i < 65536; ++i) halves[i] = static_cast<uint16_t>(i);
  for (const KernelTable* table : AllKernelTables()) {
    std::vector<float> wide(65536);
    std::vector<uint16_t> back(65536);
    table->f16_to_f32(halves.data(), 65536, wide.data());
    table->f32_to_f16(wide.data(), 65536, back.data());
    for (int i = 0; i < 65536; ++i) {
      const bool nan = (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0;
      ASSERT_EQ(std::isnan(wide[i]), nan);
      ASSERT_TRUE(SameBits(wide[i], F16ToF32(halves[i])));
      if (nan) {
        ASSERT_TRUE(std::isnan(F16ToF32(back[i])));
      } else if ((i & 0x7fff) == 0x7c00) {
        ASSERT_EQ(back[i], (i & 0x8000) | 0x7bff);  // infinity saturates to 65504
      } else {
        ASSERT_EQ(back[i], i);
      }
    }
  }
}

TEST(Rows, F16RoundsHalfToEvenAndSaturates) {
  ForAll([](const KernelTable& table, int64_t n) {
    auto x = Values(n, n + 60);
    TestRandom random(n);
    for (size_t i = 0; i < x.size(); i += 3) {  // ties, and neighbours of ties
      const float half = F16ToF32(static_cast<uint16_t>(random.Below(0x7bff)));
      const float next = F16ToF32(F32ToF16(half) + 1);
      x[i] = std::nextafter((half + next) / 2, random.Below(2) == 0 ? kInf : 0.0f);
      if (random.Below(2) == 0) x[i] = (half + next) / 2;
    }
    std::vector<uint16_t> y(n + 1, 0x1234);
    table.f32_to_f16(x.data(), n, y.data());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_TRUE(SameBits(F16ToF32(y[i]), F16ToF32(F32ToF16Saturated(x[i])))) << x[i];
    }
    EXPECT_EQ(y[n], 0x1234);
  });
}

TEST(Rows, ArgmaxTakesTheLowestIdOfTheLargest) {
  ForAll([](const KernelTable& table, int64_t n) {
    TestRandom random(n + 70);
    for (int round = 0; round < 20; ++round) {
      std::vector<float> x(n);
      for (float& v : x)
        v = static_cast<float>(random.Below(round < 10 ? 4 : 1000)) -
            (round % 2 == 0 ? 2.0f : 3.0f);
      for (float& v : x) {
        if (v == 0 && random.Below(2) == 0) v = -0.0f;
        if (round % 5 == 4 && random.Below(10) == 0) v = round == 4 ? kNan : kInf;
      }
      if (round == 9) std::fill(x.begin(), x.end(), -kInf);
      ArgmaxResult expected{-1, true};
      for (int64_t i = 0; i < n; ++i) {
        if (!std::isfinite(x[i])) {
          expected.all_finite = false;
        } else if (expected.id < 0 || x[i] > x[expected.id]) {
          expected.id = static_cast<int32_t>(i);
        }
      }
      const ArgmaxResult result = table.argmax(x.data(), n);
      EXPECT_EQ(result.id, expected.id);
      EXPECT_EQ(result.all_finite, expected.all_finite);
    }
  });
}

TEST(Rows, ArgmaxOverAVocabulary) {
  auto x = TestRandom(1).Floats(151936, 10.0f);
  for (const int64_t at : {0, 15, 16, 75000, 151935}) {
    auto y = x;
    y[at] = 11.0f;
    if (at + 33 < 151936) y[at + 33] = 11.0f;
    if (at + 16 < 151936) y[at + 16] = 11.0f;
    for (const KernelTable* table : AllKernelTables()) {
      EXPECT_EQ(table->argmax(y.data(), 151936).id, at);
      EXPECT_TRUE(table->argmax(y.data(), 151936).all_finite);
    }
  }
}

TEST(Rows, AddSoftmaxIsTheJudgesAndNearTheTruth) {
  ForAll([](const KernelTable& table, int64_t n) {
    if (n == 0) return;
    TestRandom random(n);
    const std::vector<float> x = random.Floats(n, 6.0f), before = random.Floats(n, 1.0f);
    std::vector<float> got = before, want = before, lost = x, lost_too = x;
    table.add_softmax(lost.data(), n, got.data());
    Judge().add_softmax(lost_too.data(), n, want.data());
    EXPECT_EQ(got, want);
    double max = -1e300, sum = 0;
    for (float v : x) max = std::max<double>(max, v);
    for (float v : x) sum += std::exp(v - max);
    for (int64_t i = 0; i < n; ++i)
      EXPECT_NEAR(got[i] - before[i], std::exp(x[i] - max) / sum, 2e-6) << i;
    // A query that is not finite votes for nothing.
    for (float bad : {kNan, kInf, -kInf}) {
      std::vector<float> row = x, votes = before;
      row[n - 1] = bad;
      table.add_softmax(row.data(), n, votes.data());
      EXPECT_EQ(votes, before) << bad;
    }
  });
}

TEST(Rows, ExpIsNearTheTruth) {
  std::vector<float> x(200001), y(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = -87.0f + 175.0f * static_cast<float>(i) / 200000.0f;
  Judge().exp(x.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double truth = std::exp(double{x[i]});
    ASSERT_NEAR(y[i] / truth, 1.0, 2.5e-7) << x[i];
  }
  for (int i = 0; i <= 125000; ++i) {  // softmax's exp2
    const float t = -125.0f * static_cast<float>(i) / 125000.0f;
    ASSERT_NEAR(ReferenceExp2(t) / std::exp2(double{t}), 1.0, 1.7e-7) << t;
  }
  EXPECT_EQ(ReferenceExp2(0.0f), 1.0f);
}

TEST(ContractMath, ExpAndLogAreWithinUlps) {
  TestRandom random(5);
  for (int i = 0; i < 200000; ++i) {
    const double x = random.Uniform(i % 2 == 0 ? 1.0f : 700.0f);
    EXPECT_NEAR(ContractExp(x) / std::exp(x), 1.0, 5e-16) << x;
    const double y =
        std::ldexp(1.0 + random.Uniform(0.9f), static_cast<int>(random.Below(2000)) - 1000);
    EXPECT_LE(std::fabs(ContractLog(y) - std::log(y)), 5e-16 * std::fabs(std::log(y)) + 1e-300);
    const double near_one = 1.0 + random.Uniform(1e-3f);
    EXPECT_LE(std::fabs(ContractLog(near_one) - std::log(near_one)),
              5e-16 * std::fabs(std::log(near_one)));
  }
  EXPECT_EQ(ContractExp(0.0), 1.0);
  EXPECT_EQ(ContractLog(1.0), 0.0);
  EXPECT_EQ(ContractExp(1000.0), std::numeric_limits<double>::infinity());
  EXPECT_EQ(ContractExp(-1000.0), 0.0);
  EXPECT_NEAR(ContractExp(-740.0) / std::exp(-740.0), 1.0, 1e-2);  // a denormal
  EXPECT_NEAR(ContractLog(5e-324), std::log(5e-324), 1e-12);
  EXPECT_TRUE(std::isnan(ContractExp(std::nan(""))));
}

TEST(ContractMath, PowGivesRopeFrequencies) {
  for (const double base : {10000.0, 500000.0, 1e6, 1e7}) {
    for (int i = 0; i < 64; ++i) {
      const double x = -2.0 * i / 128;
      EXPECT_NEAR(ContractPow(base, x) / std::pow(base, x), 1.0, 5e-15);
    }
  }
}

TEST(ContractMath, SinCosHoldForLargeAngles) {
  TestRandom random(6);
  const auto check = [](double x, double bound) {
    double s, c;
    ContractSinCos(x, &s, &c);
    EXPECT_NEAR(s, std::sin(x), bound) << x;
    EXPECT_NEAR(c, std::cos(x), bound) << x;
  };
  for (int i = 0; i < 100000; ++i) {
    const double unit = random.Uniform(1.0f) + random.Uniform(1.0f) * 0x1p-24;
    check(unit, 4e-16);
    check(unit * 1e6, 1e-15);
    check(unit * 0x1p29, 1e-15);
    // Next to multiples of pi / 2, where everything cancels.
    const double k = std::floor(random.Uniform(0x1p29f));
    check(k * 1.5707963267948966, 1e-15);
  }
  for (int64_t pos = 0; pos < 131072; pos += 37) check(static_cast<double>(pos), 1e-15);
  check(0.0, 0.0);
}

}  // namespace
}  // namespace vericache
