// The contract's elementary functions in fp64: plain IEEE operations, no FMA, no libm, so that
// every machine computes the same bits. This file is built without -mfma and with
// -ffp-contract=off.
//
// Used at load time (rope tables), for sampling noise and nowhere in a hot loop: series are taken
// long enough for the last term to vanish, without minimax tricks. exp and log err by less than
// 2 ulp, sin and cos by less than 1e-15 absolute over the whole domain.
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/kernels.h"

namespace vericache {
namespace {

// ln 2 in two parts. The first has 33 bits, so n * kLn2Hi is exact for |n| < 2^20.
constexpr double kLn2Hi = 0x1.62e42fefp-1;
constexpr double kLn2Lo = 0x1.473de6af278edp-34;
constexpr double kLog2E = 0x1.71547652b82fep+0;

// pi / 2 in three parts. The first two have 23 bits: k * part is exact for |k| < 2^30.
constexpr double kHalfPi1 = 0x1.921fb4p+0;
constexpr double kHalfPi2 = 0x1.4442dp-24;
constexpr double kHalfPi3 = 0x1.8469898cc517p-48;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

// Nearest integer, half to even, |x| < 2^51: the addition rounds at the unit.
double Rint(double x) {
  constexpr double kMagic = 0x1.8p52;
  return (x + kMagic) - kMagic;
}

// 2^n for normal results.
double Pow2(int64_t n) { return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52); }

// sum of terms[i] * x^i, highest power first in the evaluation.
template <int kTerms>
double Polynomial(const double (&terms)[kTerms], double x) {
  double sum = terms[kTerms - 1];
  for (int i = kTerms - 2; i >= 0; --i) sum = sum * x + terms[i];
  return sum;
}

// sin(x) for |x| <= pi / 4: x + x^3 * (Taylor in x^2).
double SinKernel(double x) {
  constexpr double kTerms[] = {-1.0 / 6,
                               1.0 / 120,
                               -1.0 / 5040,
                               1.0 / 362880,
                               -1.0 / 39916800.0,
                               1.0 / 6227020800.0,
                               -1.0 / 1307674368000.0,
                               1.0 / 355687428096000.0};
  const double xx = x * x;
  return x + (x * xx) * Polynomial(kTerms, xx);
}

// cos(x) for |x| <= pi / 4: 1 - x^2 / 2 + x^4 * (Taylor in x^2).
double CosKernel(double x) {
  constexpr double kTerms[] = {1.0 / 24,
                               -1.0 / 720,
                               1.0 / 40320,
                               -1.0 / 3628800,
                               1.0 / 479001600.0,
                               -1.0 / 87178291200.0,
                               1.0 / 20922789888000.0,
                               -1.0 / 6402373705728000.0};
  const double xx = x * x;
  return (1.0 - 0.5 * xx) + (xx * xx) * Polynomial(kTerms, xx);
}

}  // namespace

double ContractExp(double x) {
  if (x != x) return x;
  if (x > 709.79) return std::numeric_limits<double>::infinity();
  if (x < -745.14) return 0.0;
  // x = n ln 2 + hi - lo with |hi - lo| <= 0.35; hi is exact.
  const double n = Rint(x * kLog2E);
  const double hi = x - n * kLn2Hi;
  const double lo = n * kLn2Lo;
  const double r = hi - lo;
  const double r_low = (hi - r) - lo;  // what the subtraction lost
  constexpr double kTerms[] = {0.5,
                               1.0 / 6,
                               1.0 / 24,
                               1.0 / 120,
                               1.0 / 720,
                               1.0 / 5040,
                               1.0 / 40320,
                               1.0 / 362880,
                               1.0 / 3628800,
                               1.0 / 39916800.0,
                               1.0 / 479001600.0,
                               1.0 / 6227020800.0,
                               1.0 / 87178291200.0};
  const double value = 1.0 + (r + (r_low + (r * r) * Polynomial(kTerms, r)));
  // Two factors, so that neither leaves the normal range although the result may.
  const int64_t exponent = static_cast<int64_t>(n);
  const int64_t half = exponent / 2;
  return value * Pow2(half) * Pow2(exponent - half);
}

double ContractLog(double x) {
  if (x != x || x < 0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0) return -std::numeric_limits<double>::infinity();
  if (x == std::numeric_limits<double>::infinity()) return x;
  int64_t exponent = 0;
  if (x < 0x1p-1022) {  // denormal
    x *= 0x1p54;
    exponent = -54;
  }
  // x = 2^exponent * m with m in [sqrt(1/2), sqrt(2)).
  uint64_t bits = std::bit_cast<uint64_t>(x);
  exponent += static_cast<int64_t>(bits >> 52) - 1023;
  bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
  double m = std::bit_cast<double>(bits);
  if (m > 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    exponent += 1;
  }
  // log(1 + f) = 2 atanh(s) = f - f^2/2 + s (f^2/2 + R(s^2)) with s = f / (2 + f); written so, the
  // rounding of s does not touch the leading term.
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double ss = s * s;
  constexpr double kTerms[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11, 2.0 / 13,
                               2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23};
  const double tail = ss * Polynomial(kTerms, ss);
  const double half_ff = 0.5 * f * f;
  const double n = static_cast<double>(exponent);
  return n * kLn2Hi - ((half_ff - (s * (half_ff + tail) + n * kLn2Lo)) - f);
}

double ContractPow(double base, double exponent) {
  return ContractExp(exponent * ContractLog(base));
}

void ContractSinCos(double x, double* sin, double* cos) {
  // Each difference is exact (or rounds once, in the third), whatever cancels: the products are,
  // and the results are multiples of 2^-53 below 1.
  const double k = Rint(x * kTwoOverPi);
  const double r = ((x - k * kHalfPi1) - k * kHalfPi2) - k * kHalfPi3;
  const double s = SinKernel(r);
  const double c = CosKernel(r);
  switch (static_cast<int64_t>(k) & 3) {
    case 0:
      *sin = s;
      *cos = c;
      break;
    case 1:
      *sin = c;
      *cos = -s;
      break;
    case 2:
      *sin = -s;
      *cos = -c;
      break;
    default:
      *sin = -c;
      *cos = s;
      break;
  }
}

// Scratch sizes have no better home: they are the same for every table.
namespace {

size_t RoundUp16(int64_t n) { return static_cast<size_t>(n + 15) / 16 * 16; }

}  // namespace

// An fp32 copy of two groups of K or V (at least 16 KB), the scores of all rows, room to align.
size_t AttnScratchFloats(int64_t head_dim) {
  return 4096 + 32 * RoundUp16(head_dim) + static_cast<size_t>(kMaxAttnRows) * 64 + 64;
}

// Per head scores [keys], output, lanes of minima (half the channels), int8 products and the
// rotated query; fp32 copies of a group of K or V (at least 16 KB), its scales and its codes, a
// byte each; room to align.
size_t DraftScratchFloats(int64_t num_heads, int64_t num_keys, int64_t head_dim) {
  const size_t channels = RoundUp16(head_dim);
  const size_t per_head = RoundUp16(num_keys) + kKvLanes + 3 * channels;
  const size_t group = (kDraftGroup + 3 + kDraftGroup / sizeof(float)) * channels;
  return static_cast<size_t>(num_heads) * per_head + 4096 + group + 64;
}

}  // namespace vericache
