// From a number of rows to code made for it (internal to the kernel units).
#pragma once

namespace vericache::VC_KERNEL_NS {
namespace {

// Calls f.operator()<R>() for R = rows, 1 to kMax (at most 12).
template <int kMax, typename F>
inline __attribute__((always_inline)) void WithRows(int rows, F f) {
  static_assert(kMax <= 12);
#define VC_ROWS_CASE(R)                                         \
  case R:                                                       \
    if constexpr (R <= kMax) return f.template operator()<R>(); \
    break;
  switch (rows) {
    VC_ROWS_CASE(1)
    VC_ROWS_CASE(2)
    VC_ROWS_CASE(3)
    VC_ROWS_CASE(4)
    VC_ROWS_CASE(5)
    VC_ROWS_CASE(6)
    VC_ROWS_CASE(7)
    VC_ROWS_CASE(8)
    VC_ROWS_CASE(9)
    VC_ROWS_CASE(10)
    VC_ROWS_CASE(11)
    VC_ROWS_CASE(12)
  }
#undef VC_ROWS_CASE
}

}  // namespace
}  // namespace vericache::VC_KERNEL_NS
