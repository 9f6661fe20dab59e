#include "kv/codecs/int_codec.h"

namespace vericache {

void EncodeKeyGroup(const KernelTable& kernels, DraftFormat format, const float* k, int head_dim,
                    uint8_t* codes, uint16_t* scale, uint16_t* min) {
  for (int d = 0; d < head_dim; d += 32) {
    kernels.encode_block(format, k + d * 32, 32, codes + GroupCodeBytes(format, d), scale + d,
                         min + d);
  }
}

void EncodeValueGroup(const KernelTable& kernels, DraftFormat format, const float* v, int head_dim,
                      uint8_t* codes, uint16_t* scale, uint16_t* min) {
  for (int c = 0; c < head_dim; c += 32) {
    kernels.encode_block(format, v + c, head_dim, codes + GroupCodeBytes(format, c), scale + c,
                         min + c);
  }
}

}  // namespace vericache
