// Tables of Unicode normalisation, written by tests/golden/tokenizer/make_nfc_data.py.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace vericache {

// Canonical decomposition, one level: `whole` = `first` + `second` (0: one character only).
struct NfcDecomposition {
  uint32_t whole, first, second;
  bool composes;  // `first` + `second` become `whole` again
};
// Canonical combining class of [begin, end); 0 elsewhere.
struct NfcClassRange {
  uint32_t begin, end;
  uint8_t combining_class;
};

absl::Span<const NfcDecomposition> NfcDecompositions();  // sorted by `whole`
absl::Span<const NfcClassRange> NfcClassRanges();        // sorted

}  // namespace vericache
