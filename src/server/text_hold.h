// Holding back the end of a growing text where a mark may have begun.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace vericache::server {

inline constexpr std::string_view kBlanks = " \t\r\n";

// Length of the longest end of `text` that `mark` begins with, less than the whole mark.
inline size_t PartialMark(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size)
    if (text.ends_with(mark.substr(0, size))) return size;
  return 0;
}

// Length of `text` without the blanks at its end.
inline size_t TrimmedSize(std::string_view text) {
  return text.find_last_not_of(kBlanks) + 1;  // npos + 1 is 0
}

// What of `text` can be given away while blanks followed by `mark` may still come.
inline size_t SizeBeforeMark(std::string_view text, std::string_view mark) {
  return TrimmedSize(text.substr(0, text.size() - PartialMark(text, mark)));
}

}  // namespace vericache::server
