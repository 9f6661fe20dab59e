// What a terminal needs to know and to be told: ANSI codes, widths, text that cannot harm it.
#pragma once

#include <string>
#include <string_view>

namespace vericache::cli {

inline constexpr char kDim[] = "\x1b[2m";
inline constexpr char kYellow[] = "\x1b[33m";
inline constexpr char kBold[] = "\x1b[1m";
inline constexpr char kReset[] = "\x1b[0m";
inline constexpr char kClearLine[] = "\r\x1b[K";
inline constexpr char kClearBelow[] = "\x1b[J";

// True for a terminal that understands ANSI codes (TERM is not "dumb").
bool IsTerminal(int fd);

struct TerminalSize {
  int rows = 24;
  int columns = 80;
};
TerminalSize SizeOfTerminal(int fd);

// Control characters other than line break and tab, and what is no UTF-8, become U+FFFD: text that
// a model or a file chose may not move the cursor, ring, or set the clipboard.
std::string SafeForTerminal(std::string_view text);

// One character of UTF-8 text at `pos`: its bytes and the columns it takes (0, 1 or 2).
struct Glyph {
  size_t num_bytes = 1;
  int columns = 1;
};
Glyph GlyphAt(std::string_view text, size_t pos);

// Writes to stdout at once. False: the reader has gone away or the disk is full.
bool WriteStdout(std::string_view text);

}  // namespace vericache::cli
