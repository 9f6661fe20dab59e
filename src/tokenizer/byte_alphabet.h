// The GPT-2 byte alphabet: vocabularies write each of the 256 bytes as one printable character
// ("Ġ" is a space), so that a token is always readable text.
//
// SOURCE: GPT-2 (Radford et al. 2019), `bytes_to_unicode`: printable Latin-1 characters stand for
// themselves, the other 68 bytes are U+0100, U+0101, ... in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vericache {

// The character that stands for `byte`.
char32_t CharOfByte(uint8_t byte);

// The bytes that `text` stands for; nullopt if a character is not in the alphabet.
// REQUIRES: `text` is UTF-8.
std::optional<std::string> BytesOfAlphabetText(std::string_view text);

}  // namespace vericache
