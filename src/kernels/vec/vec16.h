// Sixteen fp32 lanes, as the contract counts them, on the ISA this unit is compiled for.
//
// Kernels are written over this type alone, so that another ISA needs only another copy of
// avx2/vec16.h. What can be said in that file's operations stands here.
#pragma once

#define VC_INLINE inline __attribute__((always_inline))
#define VC_NOINLINE __attribute__((noinline))

#if defined(__AVX512F__)
#include "kernels/avx512/vec16.h"
#else
#include "kernels/avx2/vec16.h"
#endif

namespace vericache::VC_KERNEL_NS {
namespace {

// Partial vectors: lanes from n on read as zero and are not written.
template <typename T>
VC_INLINE Vec16 LoadFirst(const T* p, int64_t n) {
  T full[16] = {};
  for (int64_t i = 0; i < n; ++i) full[i] = p[i];
  return Load(full);
}
VC_INLINE void StoreFirst(Vec16 v, float* p, int64_t n) {
  float full[16];
  Store(v, full);
  for (int64_t i = 0; i < n; ++i) p[i] = full[i];
}

// The contract's exp. NaN passes through the arithmetic.
VC_INLINE Vec16 Exp(Vec16 x) {
  const Vec16 n = RoundToInt(Mul(x, Set(1.44269504f)));
  Vec16 f = Fma(n, Set(-0.693359375f), x);
  f = Fma(n, Set(2.12194440e-4f), f);
  Vec16 p = Set(1.9875691500e-4f);
  p = Fma(p, f, Set(1.3981999507e-3f));
  p = Fma(p, f, Set(8.3334519073e-3f));
  p = Fma(p, f, Set(4.1665795894e-2f));
  p = Fma(p, f, Set(1.6666665459e-1f));
  p = Fma(p, f, Set(5.0000001201e-1f));
  Vec16 y = Mul(Fma(p, Mul(f, f), Add(f, Set(1.0f))), Pow2(n));
  y = ZeroWhere(Less(x, Set(-87.0f)), y);
  return Select(Less(Set(88.0f), x), Set(__builtin_inff()), y);
}

// The contract's exp2 for t <= 0. REQUIRES: no lane is NaN (then an integer addition may scale).
struct Exp2NonPositiveNoNan {
  // Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits.
  Vec16 magic = InRegister(0x1.8p23f);
  Vec16 c5 = InRegister(0x1.5bba14p-10f);
  Vec16 c4 = InRegister(0x1.3cea88p-7f);
  Vec16 c3 = InRegister(0x1.c6b752p-5f);
  Vec16 c2 = InRegister(0x1.ebf9bcp-3f);
  Vec16 c1 = InRegister(0x1.62e42ap-1f);
  Vec16 c0 = InRegister(1.0f);

  VC_INLINE Vec16 operator()(Vec16 t) const {
    const Vec16 k = Add(t, magic);
    const Vec16 f = Sub(t, Sub(k, magic));
    Vec16 p = Fma(c5, f, c4);
    p = Fma(p, f, c3);
    p = Fma(p, f, c2);
    p = Fma(p, f, c1);
    p = Fma(p, f, c0);
    return ZeroWhere(Less(t, Set(-125.0f)), AddToExponent(p, k));
  }
};

}  // namespace
}  // namespace vericache::VC_KERNEL_NS
