// Fails if this compiler, with this project's flags, fuses a * b + c into one rounding, or
// otherwise lets "fast" arithmetic in. The numeric contract (docs/exactness.md) allows a fused
// multiply-add only where it is written.
//
// The values are volatile, so nothing is folded at compile time, and each case is chosen so that
// one rounding and two roundings give different results.
#include <cfloat>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace {

// Built with FMA instructions at hand, or else there is nothing to fuse into on baseline x86-64.
#if defined(__x86_64__) && defined(__GNUC__)
#define WITH_FMA __attribute__((target("fma"), noinline))
#else
#define WITH_FMA __attribute__((noinline))
#endif

template <typename T>
WITH_FMA T MultiplyAdd(T a, T b, T c) {
  return a * b + c;
}

WITH_FMA float DotOfTwo(const float* a, const float* b) { return a[0] * b[0] + a[1] * b[1]; }

bool CpuHasFma() {
#if defined(__x86_64__) && defined(__GNUC__)
  return __builtin_cpu_supports("fma");
#else
  return true;
#endif
}

// (1 + e)(1 - e) - 1 = -e^2 with one rounding; the product alone rounds to 1, so 0 with two.
template <typename T>
void ExpectTwoRoundings() {
  if (!CpuHasFma()) GTEST_SKIP() << "this CPU has no FMA";
  volatile T e = std::numeric_limits<T>::epsilon();
  volatile T a = T{1} + e, b = T{1} - e, c = T{-1};
  EXPECT_EQ(std::fma(a, b, c), -(e * e)) << "std::fma itself rounds twice";
  EXPECT_EQ(MultiplyAdd<T>(a, b, c), T{0}) << "a * b + c was fused: -ffp-contract=off is missing";
}

TEST(FpContract, FloatExpressionsAreNotFused) { ExpectTwoRoundings<float>(); }
TEST(FpContract, DoubleExpressionsAreNotFused) { ExpectTwoRoundings<double>(); }

TEST(FpContract, SumOfProductsIsNotFused) {
  if (!CpuHasFma()) GTEST_SKIP() << "this CPU has no FMA";
  volatile float e = FLT_EPSILON;
  const float a[2] = {1.0f + e, -1.0f};
  const float b[2] = {1.0f - e, 1.0f};
  EXPECT_EQ(DotOfTwo(a, b), 0.0f);
}

TEST(FpContract, SumsKeepTheirOrder) {
  volatile float big = 1e8f, one = 1.0f;
  EXPECT_EQ((one + big) - big, 0.0f) << "reassociated: an unsafe math option is on";
}

TEST(FpContract, NansInfinitiesAndSubnormalsAreKept) {
  volatile float zero = 0.0f, tiny = FLT_MIN;
  const float nan = zero / zero, inf = 1.0f / zero;
  EXPECT_TRUE(nan != nan) << "-ffinite-math-only is on";
  EXPECT_GT(inf, FLT_MAX);
  EXPECT_GT(tiny / 2, 0.0f) << "subnormals are flushed to zero";
}

}  // namespace
