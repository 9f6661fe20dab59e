#include "tokenizer/utf8.h"

#include <cstring>

#include "tokenizer/tokenizer.h"

namespace vericache {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What may follow a lead byte (Unicode table 3-7): the number of bytes, and the range of the
// second one, which is where overlong forms, surrogates and values above U+10FFFF are refused.
struct LeadByte {
  int size;
  uint8_t second_min, second_max;
};

LeadByte LeadByteOf(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char DecodeUtf8Char(std::string_view bytes) {
  const auto byte_at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const LeadByte lead = LeadByteOf(byte_at(0));
  if (lead.size == 0) return {Utf8Char::Kind::kInvalid, 1, 0};
  if (lead.size == 1) return {Utf8Char::Kind::kValid, 1, byte_at(0)};
  char32_t code_point = byte_at(0) & (0xFF >> (lead.size + 1));
  for (int i = 1; i < lead.size; ++i) {
    if (static_cast<size_t>(i) == bytes.size()) return {Utf8Char::Kind::kCutShort, i, 0};
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte_at(i) < min || byte_at(i) > max) return {Utf8Char::Kind::kInvalid, i, 0};
    code_point = code_point << 6 | (byte_at(i) & 0x3F);
  }
  return {Utf8Char::Kind::kValid, lead.size, code_point};
}

size_t FindInvalidUtf8(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    // Eight ASCII bytes at a time: most text is mostly that.
    if (pos + 8 <= text.size()) {
      uint64_t word;
      std::memcpy(&word, text.data() + pos, 8);
      if ((word & 0x8080808080808080u) == 0) {
        pos += 8;
        continue;
      }
    }
    const Utf8Char next = DecodeUtf8Char(text.substr(pos));
    if (next.kind != Utf8Char::Kind::kValid) return pos;
    pos += next.size;
  }
  return std::string_view::npos;
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

std::string Utf8Assembler::Push(std::string_view bytes) {
  pending_.append(bytes);
  std::string complete;
  size_t pos = 0;
  while (pos < pending_.size()) {
    const Utf8Char next = DecodeUtf8Char(std::string_view(pending_).substr(pos));
    if (next.kind == Utf8Char::Kind::kCutShort) break;
    if (next.kind == Utf8Char::Kind::kValid) {
      complete.append(pending_, pos, next.size);
    } else {
      complete.append(kReplacement);
    }
    pos += next.size;
  }
  pending_.erase(0, pos);
  return complete;
}

std::string Utf8Assembler::Flush() {
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return unfinished ? std::string(kReplacement) : std::string();
}

}  // namespace vericache
