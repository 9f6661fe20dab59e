// Unicode normalisation form C, which some reference tokenizers apply before anything else.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace vericache {

// `text` in NFC; nullopt if it is NFC already and can be used as it is.
// REQUIRES: `text` is UTF-8.
// COST:     linear, but n log n in a run of combining marks.
// SOURCE:   Unicode Standard Annex 15; tables by nfc_data.h.
std::optional<std::string> ToNfc(std::string_view text);

}  // namespace vericache
