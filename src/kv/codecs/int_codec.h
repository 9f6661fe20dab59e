// Integer codecs of draft keys and values: asymmetric, scale and minimum in f16.
//
// K per channel over groups of 32 kept keys (outliers of keys sit in fixed channels), V per key
// over groups of 32 channels. SOURCE: arXiv 2402.02750 (KIVI); group sizes as measured in
// acceptance.md. value ~ min + scale * code.
#pragma once

#include <cstdint>

#include "kernels/kv_view.h"

namespace vericache {

// k: [32 keys][head_dim] fp32, head_dim a multiple of 32. Writes one group in the layout of
// kv_view.h; scale, min: [head_dim] f16.
void EncodeKeyGroup(DraftFormat format, const float* k, int head_dim, uint8_t* codes,
                    uint16_t* scale, uint16_t* min);
// v: [32 keys][head_dim] fp32, head_dim a multiple of 32; scale, min: [head_dim / 32][32 keys] f16.
void EncodeValueGroup(DraftFormat format, const float* v, int head_dim, uint8_t* codes,
                      uint16_t* scale, uint16_t* min);

// Bytes of one encoded group's codes (K and V alike).
size_t GroupCodeBytes(DraftFormat format, int head_dim);

}  // namespace vericache
