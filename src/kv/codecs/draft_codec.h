// The number format of a draft KV: which codes keep keys and values, and how many keys stay f16.
//
//   codec = "f16" | "int"N | "k"X"v"Y | "kivi2" | "kivi4" | "rot"N       N: 2 to 8; X, Y: N or 16
// intN codes K and V in N bits (int_codec.h), kXvY each in its own, 16 meaning f16. kiviN is intN
// with the newest 128 keys in f16 instead of 64 (arXiv 2402.02750). rotN rotates every 32 channels
// by a Hadamard matrix before it codes them, so that an outlier is spread over all (arXiv
// 2404.00456).
#pragma once

#include <string>
#include <string_view>

#include "kernels/kv_view.h"

namespace vericache {

struct DraftCodec {
  DraftFormat k = DraftFormat::kF16;
  DraftFormat v = DraftFormat::kF16;
  bool rotated = false;  // before coding; never what stays in f16
  int tail_keys = 64;    // newest kept keys that stay in f16 beside coded ones

  bool has_codes() const { return k != DraftFormat::kF16 || v != DraftFormat::kF16; }
  std::string ToString() const;  // canonical: int4 for k4v4; parses back to the same codec
  bool operator==(const DraftCodec& other) const = default;
};

// What ParseDraftCodec knows, for error messages.
inline constexpr std::string_view kDraftCodecNames =
    "f16, int2 to int8, kXvY with X and Y of 2 to 8 or 16, kivi2, kivi4, rot2 to rot8";

// False, and *codec unchanged, if there is no such codec.
bool ParseDraftCodec(std::string_view name, DraftCodec* codec);

}  // namespace vericache
