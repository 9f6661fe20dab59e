#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace vericache::cli {
namespace {

struct Range {
  uint32_t first, last;
};

// Wide in East Asian Width, as ranges of scripts: enough to place a cursor.
constexpr Range kWide[] = {
    {0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0x33ff},   {0x3400, 0x4dbf},
    {0x4e00, 0x9fff},   {0xa000, 0xa4cf},   {0xac00, 0xd7a3},   {0xf900, 0xfaff},
    {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},   {0x1f300, 0x1f64f},
    {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd},
};
// Combining marks, joiners and variation selectors.
constexpr Range kZero[] = {{0x0300, 0x036f}, {0x0591, 0x05bd},   {0x064b, 0x065f},
                           {0x0e31, 0x0e3a}, {0x200b, 0x200f},   {0x20d0, 0x20ff},
                           {0xfe00, 0xfe0f}, {0x1f3fb, 0x1f3ff}, {0xe0100, 0xe01ef}};

template <size_t kSize>
bool Holds(const Range (&ranges)[kSize], uint32_t code) {
  for (const Range& range : ranges)
    if (code >= range.first && code <= range.last) return true;
  return false;
}

// Bytes of the UTF-8 character at `pos` (RFC 3629: no overlong form, no surrogate); 0 if it is
// none.
size_t CharacterBytes(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[pos + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2   ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length == 0 || pos + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f)) return 0;
  if ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) return 0;
  return length;
}

}  // namespace

bool IsTerminal(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

TerminalSize SizeOfTerminal(int fd) {
  winsize size = {};
  TerminalSize result;
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 && size.ws_col > 1) {
    result.rows = size.ws_row;
    result.columns = size.ws_col;
  }
  return result;
}

Glyph GlyphAt(std::string_view text, size_t pos) {
  Glyph glyph;
  glyph.num_bytes = std::max<size_t>(CharacterBytes(text, pos), 1);
  if (glyph.num_bytes == 1) return glyph;
  uint32_t code = static_cast<unsigned char>(text[pos]) & (0x7fU >> glyph.num_bytes);
  for (size_t i = 1; i < glyph.num_bytes; ++i)
    code = code << 6 | (static_cast<unsigned char>(text[pos + i]) & 0x3fU);
  glyph.columns = Holds(kZero, code) ? 0 : Holds(kWide, code) ? 2 : 1;
  return glyph;
}

std::string SafeForTerminal(std::string_view text) {
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  std::string safe;
  for (size_t pos = 0; pos < text.size();) {
    const unsigned char byte = static_cast<unsigned char>(text[pos]);
    const size_t length = CharacterBytes(text, pos);
    const bool c0 = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
    // U+0080..U+009F: the same commands in one character.
    const bool c1 = byte == 0xc2 && length == 2 && static_cast<unsigned char>(text[pos + 1]) < 0xa0;
    if (c0 || c1 || length == 0) {
      safe += kReplacement;
    } else {
      safe += text.substr(pos, length);
    }
    pos += std::max<size_t>(length, 1);
  }
  return safe;
}

bool WriteStdout(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace vericache::cli
