// The rotation of rotated codecs: every 32 channels times H32 / sqrt(32), where H32 is the Hadamard
// matrix (element (i, j) is (-1)^popcount(i & j)), its own inverse.
//
// An outlier channel becomes a little of every channel of its 32, so that one range fits them all.
// SOURCE: QuaRot, arXiv 2404.00456.
#pragma once

namespace vericache {

// REQUIRES, for both: head_dim is a multiple of 32.
void RotateKeys(int head_dim, float* k);    // [head_dim][32 keys], in place
void RotateValues(int head_dim, float* v);  // [32 keys][head_dim], in place

}  // namespace vericache
