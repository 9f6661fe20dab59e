#include "base/fp_env.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace vericache {

#if defined(__x86_64__)
// MXCSR: all exceptions masked, round to nearest even, no FTZ (bit 15), no DAZ (bit 6).
constexpr unsigned kContractMxcsr = 0x1f80;
ScopedFpEnv::ScopedFpEnv() : saved_(_mm_getcsr()) { _mm_setcsr(kContractMxcsr); }
ScopedFpEnv::~ScopedFpEnv() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
// FPCR 0: round to nearest, no flush-to-zero, no default NaN, no traps.
ScopedFpEnv::ScopedFpEnv() {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
}
ScopedFpEnv::~ScopedFpEnv() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
#else
#error "vericache knows the floating-point control register of x86-64 and arm64 only"
#endif

}  // namespace vericache
