#include "cli/compare_view.h"

#include <fmt/format.h>

#include "cli/terminal.h"

namespace vericache::cli {
namespace {

// A token's text on one line.
std::string Escaped(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\t') {
      line += "\\t";
    } else {
      line += c;
    }
  }
  return SafeForTerminal(line);
}

}  // namespace

std::string RoundLine(const std::vector<int32_t>& drafted, const RoundView& view,
                      const std::function<std::string(int32_t id)>& token_text) {
  const size_t num_kept = static_cast<size_t>(view.num_accepted);
  std::string line = "[";
  if (drafted.empty()) {
    line += "no draft][";
  } else {
    line += "draft: ";
    for (size_t i = 0; i < drafted.size(); ++i)
      line += (i == 0 ? "" : "|") + Escaped(token_text(drafted[i]));
    line += fmt::format("][kept {} of {}", num_kept, drafted.size());
  }
  // A round that ends the answer inside its draft has neither correction nor bonus.
  if (view.emitted.size() > num_kept) {
    if (!drafted.empty()) line += ", ";
    line += drafted.empty() ? "full KV:" : num_kept == drafted.size() ? "bonus:" : "corrected:";
    const std::string text = Escaped(token_text(view.emitted.back()));
    line += (text.starts_with(' ') ? "" : " ") + text;
  }
  return line + "]";
}

void StaticRounds::OnText(std::string_view text) {
  if (!in_rounds_) fmt::print(out_, "  [from the prefill: {}]\n", Escaped(text));
}

void StaticRounds::OnRound(const RoundView& view) {
  in_rounds_ = true;
  if (!view.verified) {
    drafted_ = view.drafted;
    return;
  }
  const std::vector<int32_t> drafted = std::exchange(drafted_, {});
  if (num_rounds_++ >= num_rounds_max_) return;
  fmt::print(out_, "  {}\n", RoundLine(drafted, view, token_text_));
  std::fflush(out_);
}

void StaticRounds::Finish() {
  if (num_rounds_ > num_rounds_max_)
    fmt::print(out_, "  ... and {} more rounds\n", num_rounds_ - num_rounds_max_);
}

}  // namespace vericache::cli
