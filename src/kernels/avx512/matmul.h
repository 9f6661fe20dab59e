// Exported by matmul_per32.cc and matmul_per256.cc for FillMatmul (internal to avx512/).
#pragma once

#include "kernels/avx2/weights.h"

namespace vericache::avx512 {

void MatmulQ8_0(const avx2::MatmulArgs& args);
void MatmulQ5_0(const avx2::MatmulArgs& args);
void MatmulQ4_1(const avx2::MatmulArgs& args);
void MatmulQ4_K(const avx2::MatmulArgs& args);
void MatmulQ6_K(const avx2::MatmulArgs& args);

}  // namespace vericache::avx512
