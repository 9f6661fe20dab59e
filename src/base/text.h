// Small text helpers over Abseil.
//
// Distributions build Abseil with a string_view of its own, to which std::string_view does not
// convert; these accept both, so that the rest of the code uses the standard one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace vericache {

inline absl::string_view AsAbsl(std::string_view text) { return {text.data(), text.size()}; }

namespace text_internal {
template <typename T>
const T& Arg(const T& value) {
  return value;
}
inline absl::string_view Arg(std::string_view value) { return AsAbsl(value); }
}  // namespace text_internal

template <typename... Args>
std::string StrCat(const Args&... args) {
  return absl::StrCat(text_internal::Arg(args)...);
}

// All parts between `separator`s, empty ones included.
inline std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at; (at = text.find(separator)) != text.npos; text.remove_prefix(at + 1))
    parts.push_back(text.substr(0, at));
  parts.push_back(text);
  return parts;
}

// One part, or the parts before and after the first `separator`.
inline std::vector<std::string_view> SplitOnce(std::string_view text, char separator) {
  const size_t at = text.find(separator);
  if (at == text.npos) return {text};
  return {text.substr(0, at), text.substr(at + 1)};
}

template <typename Int>
bool ParseInt(std::string_view text, Int* value) {
  return absl::SimpleAtoi(AsAbsl(text), value);
}
inline bool ParseDouble(std::string_view text, double* value) {
  return absl::SimpleAtod(AsAbsl(text), value);
}

}  // namespace vericache
