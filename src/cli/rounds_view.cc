#include "cli/rounds_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "cli/errors.h"

namespace vericache::cli {
namespace {

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '\n') {
      quoted += "\\n";
    } else if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else {
      quoted += c;
    }
  }
  return SafeForTerminal(quoted + "\"");
}

}  // namespace

void LiveView::Lay(std::string_view text, int rows_max, Cursor* cursor, std::string* out) const {
  for (size_t pos = 0; pos < text.size();) {
    const Glyph glyph = GlyphAt(text, pos);
    const bool tab = text[pos] == '\t';
    const bool line_break = text[pos] == '\n';
    const int columns = tab ? 8 - cursor->column % 8 : glyph.columns;
    // We wrap and not the terminal: at its right edge a cursor's column would be ambiguous.
    if (line_break || cursor->column + columns >= size_.columns) {
      if (cursor->row + 1 >= rows_max) return;
      *out += "\r\n";
      ++cursor->row;
      cursor->column = 0;
    }
    if (!line_break && !(tab && cursor->column == 0 && columns < 8)) {
      *out += tab ? std::string(columns, ' ') : std::string(text.substr(pos, glyph.num_bytes));
      cursor->column += columns;
    }
    pos += glyph.num_bytes;
  }
}

std::string LiveView::Erase() {
  if (!dim_shown_) return "";
  dim_shown_ = false;
  std::string codes;
  if (dim_rows_ > 0) codes += fmt::format("\x1b[{}A", dim_rows_);
  return codes + fmt::format("\x1b[{}G", cursor_.column + 1) + kClearBelow;
}

void LiveView::OnRound(const RoundView& view) {
  std::string out = Erase();
  if (view.verified) {
    const size_t accepted = std::min<size_t>(view.num_accepted, view.emitted.size());
    num_accepted_bytes_ = view.drafted.empty() && accepted == 0
                              ? std::string::npos
                              : engine_.Detokenize({view.emitted.data(), accepted}).size();
    // A wholly accepted draft ends in a bonus token, which corrects nothing.
    if (accepted >= view.drafted.size()) num_accepted_bytes_ = std::string::npos;
  } else {
    Cursor end = cursor_;
    out += kDim;
    // What scrolls off the top could not be taken back.
    Lay(SafeForTerminal(engine_.Detokenize(view.drafted)), size_.rows - 1, &end, &out);
    out += kReset;
    dim_rows_ = end.row;
    dim_shown_ = true;
  }
  (void)WriteStdout(out);  // a closed stdout is told by the next OnText()
}

bool LiveView::OnText(std::string_view text) {
  constexpr int kNoLimit = std::numeric_limits<int>::max();
  std::string out = Erase();
  size_t split = std::min(num_accepted_bytes_, text.size());
  // Characters that were held back shift the border by some bytes: never cut one in two.
  while (split < text.size() && (static_cast<unsigned char>(text[split]) & 0xc0) == 0x80) ++split;
  Lay(SafeForTerminal(text.substr(0, split)), kNoLimit, &cursor_, &out);
  if (split < text.size()) {
    out += kYellow;
    Lay(SafeForTerminal(text.substr(split)), kNoLimit, &cursor_, &out);
    out += kReset;
  }
  cursor_.row = 0;
  num_accepted_bytes_ = std::string::npos;
  return WriteStdout(out);
}

void RoundLines::OnRound(const RoundView& view) {
  if (!view.verified) {
    drafted_ = view.drafted;
    return;
  }
  ++num_rounds_;
  const size_t accepted = std::min<size_t>(view.num_accepted, view.emitted.size());
  std::string line = fmt::format("round {}: drafted {}, accepted {}, emitted {}", num_rounds_,
                                 drafted_.size(), accepted, view.emitted.size());
  if (accepted > 0)
    line += "; accepted " + Quoted(engine_.Detokenize({view.emitted.data(), accepted}));
  if (accepted < drafted_.size())
    line += "; rejected " +
            Quoted(engine_.Detokenize({drafted_.data() + accepted, drafted_.size() - accepted}));
  if (accepted < view.emitted.size())
    line += "; full KV says " + Quoted(engine_.Detokenize({view.emitted.data() + accepted,
                                                           view.emitted.size() - accepted}));
  fmt::print(stderr, "{}\n", line);
  drafted_.clear();
}

}  // namespace vericache::cli
