// UTF-8 checks over bytes nobody has looked at yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace vericache {

// What stands at the start of some bytes.
struct Utf8Char {
  enum class Kind { kValid, kInvalid, kCutShort };
  Kind kind;
  int size;             // bytes of the character; of kInvalid: bytes that become one U+FFFD
  char32_t code_point;  // of kValid
};

// REQUIRES: !bytes.empty(). Invalid sequences are cut into maximal subparts, as Unicode 3.9
// recommends and as Python's "replace" does; overlong forms and surrogates are invalid.
Utf8Char DecodeUtf8Char(std::string_view bytes);

// Offset of the first byte that is not UTF-8, or npos.
size_t FindInvalidUtf8(std::string_view text);

// REQUIRES: a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string* out);

}  // namespace vericache
