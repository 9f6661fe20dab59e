// CHECK ends the process when the program itself is wrong. Bad input must give a Status instead.
#pragma once

#include <cstdio>
#include <cstdlib>

#define VC_CHECK(condition)                                                              \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#ifdef NDEBUG
#define VC_DCHECK(condition) \
  do {                       \
  } while (false && (condition))
#else
#define VC_DCHECK(condition) VC_CHECK(condition)
#endif
