#include "tokenizer/byte_alphabet.h"

#include <array>

#include "tokenizer/utf8.h"

namespace vericache {
namespace {

constexpr int kNumOtherBytes = 68;  // bytes that are no printable Latin-1 character

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> char_of_byte{};
  std::array<int16_t, 256 + kNumOtherBytes> byte_of_char{};

  constexpr Alphabet() {
    for (int16_t& byte : byte_of_char) byte = -1;
    int num_others = 0;
    for (int byte = 0; byte < 256; ++byte) {
      char_of_byte[byte] = StandsForItself(byte) ? byte : 256 + num_others++;
      byte_of_char[char_of_byte[byte]] = static_cast<int16_t>(byte);
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

char32_t CharOfByte(uint8_t byte) { return kAlphabet.char_of_byte[byte]; }

std::optional<std::string> BytesOfAlphabetText(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char next = DecodeUtf8Char(text);
    if (next.code_point >= kAlphabet.byte_of_char.size()) return std::nullopt;
    const int16_t byte = kAlphabet.byte_of_char[next.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    text.remove_prefix(next.size);
  }
  return bytes;
}

}  // namespace vericache
