// Shows how an answer comes about: what was drafted, what the full KV accepted or replaced.
//
// On a terminal (LiveView) drafted tokens stand dim behind the verified text and turn solid, or
// are replaced, when they are checked. Elsewhere (RoundLines) it is a line a round on stderr.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cli/terminal.h"
#include "vericache/engine.h"

namespace vericache::cli {

// Writes the answer to stdout itself; the only writer there while it lives.
class LiveView {
 public:
  LiveView(const Engine& engine, TerminalSize size) : engine_(engine), size_(size) {}

  void OnRound(const RoundView& view);
  // Verified text; of the round that OnRound() told last, if `view.verified` was set.
  // False: stdout is closed.
  bool OnText(std::string_view text);

 private:
  // Where the cursor is: rows since the start of what may be taken back.
  struct Cursor {
    int row = 0, column = 0;
  };
  // Appends `text`, wrapped by us, to `*out`; stops before `rows_max` rows are full.
  void Lay(std::string_view text, int rows_max, Cursor* cursor, std::string* out) const;
  // The codes that take the dim text away.
  std::string Erase();

  const Engine& engine_;
  const TerminalSize size_;
  Cursor cursor_;     // after the verified text; row is always 0
  int dim_rows_ = 0;  // rows that the dim text goes below cursor_
  bool dim_shown_ = false;
  size_t num_accepted_bytes_ = std::string::npos;  // of the coming text; the rest is the full KV's
};

class RoundLines {
 public:
  explicit RoundLines(const Engine& engine) : engine_(engine) {}
  void OnRound(const RoundView& view);

 private:
  const Engine& engine_;
  std::vector<int32_t> drafted_;
  int64_t num_rounds_ = 0;
};

}  // namespace vericache::cli
