#include "gguf/messages.h"

#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace vericache {
namespace {

// Longer than any name in use, short enough that a message fits a terminal.
constexpr size_t kMaxShownBytes = 96;

struct ValueTypeInfo {
  const char* name;
  uint64_t bytes;
};
// Indexed by the number in the format.
constexpr std::array<ValueTypeInfo, 13> kValueTypes = {{{"u8", 1},
                                                        {"i8", 1},
                                                        {"u16", 2},
                                                        {"i16", 2},
                                                        {"u32", 4},
                                                        {"i32", 4},
                                                        {"f32", 4},
                                                        {"bool", 1},
                                                        {"string", 0},
                                                        {"array", 0},
                                                        {"u64", 8},
                                                        {"i64", 8},
                                                        {"f64", 8}}};

}  // namespace

std::string Quoted(std::string_view name) {
  const bool is_long = name.size() > kMaxShownBytes;
  return absl::StrCat("'", absl::CHexEscape(AsAbsl(name.substr(0, kMaxShownBytes))),
                      is_long ? "...'" : "'");
}

std::string PathForMessage(std::string_view path) {
  std::string shown(path);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return shown;
}

std::string GgufValueTypeName(uint32_t type) {
  return type < kValueTypes.size() ? kValueTypes[type].name : absl::StrCat("type ", type);
}

uint64_t GgufScalarBytes(uint32_t type) {
  return type < kValueTypes.size() ? kValueTypes[type].bytes : 0;
}

}  // namespace vericache
