// Integer codecs of draft keys and values: asymmetric, scale and minimum in f16, 2 to 8 bits.
//
// K per channel over groups of 32 kept keys (outliers of keys sit in fixed channels), V per key
// over groups of 32 channels. SOURCE: arXiv 2402.02750 (KIVI); group sizes as measured in
// acceptance.md. value ~ min + scale * code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace vericache {

// REQUIRES, for both: head_dim is a multiple of 32; `format` is not f16.

// k: [head_dim][32 keys] fp32. Writes one group in the layout of kv_view.h; scale, min: [head_dim]
// f16.
void EncodeKeyGroup(const KernelTable& kernels, DraftFormat format, const float* k, int head_dim,
                    uint8_t* codes, uint16_t* scale, uint16_t* min);
// v: [32 keys][head_dim] fp32; scale, min: [head_dim / 32][32 keys] f16.
void EncodeValueGroup(const KernelTable& kernels, DraftFormat format, const float* v, int head_dim,
                      uint8_t* codes, uint16_t* scale, uint16_t* min);

// Bytes of the codes of one group of 32 keys (K and V alike); of f16 values as well.
constexpr size_t GroupCodeBytes(DraftFormat format, int head_dim) {
  return static_cast<size_t>(head_dim) * kDraftGroup * BitsOf(format) / 8;
}

}  // namespace vericache
