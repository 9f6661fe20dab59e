// How text from a hostile file appears in an error message: one line, short, printable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vericache {

// A key or tensor name in quotes: escaped to plain ASCII, and cut when it is long.
std::string Quoted(std::string_view name);
// A path as typed, except that control characters become '?'.
std::string PathForMessage(std::string_view path);

// "u32", "string"; "type 99" for numbers the format has not given out.
std::string GgufValueTypeName(uint32_t type);
// Bytes of one scalar; 0 for strings, arrays and unknown types.
uint64_t GgufScalarBytes(uint32_t type);

}  // namespace vericache
