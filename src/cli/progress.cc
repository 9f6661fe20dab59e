#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/errors.h"
#include "cli/terminal.h"

namespace vericache::cli {

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (!(seconds >= 0)) return "?";
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const int64_t whole = std::llround(std::min(seconds, 1e12));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

ProgressBar::ProgressBar(std::string label, ProgressUnit unit, ProgressWish wish)
    : label_(std::move(label)), unit_(unit), form_(Form::kNone) {
  if (IsTerminal(STDERR_FILENO)) {
    form_ = Form::kBar;
  } else if (wish == ProgressWish::kAlways) {
    form_ = Form::kLines;
  }
}

std::string ProgressBar::Line(int64_t done, int64_t total, double seconds) const {
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0;
  const double rate = seconds > 0 ? static_cast<double>(done - first_done_) / seconds : 0;
  std::string line = fmt::format("{} {:3.0f}%", label_, share * 100);
  if (form_ == Form::kBar) {
    constexpr int kWidth = 24;
    const int filled = static_cast<int>(std::lround(share * kWidth));
    line += fmt::format(" [{}{}]", std::string(filled, '#'), std::string(kWidth - filled, '.'));
  }
  if (unit_ == ProgressUnit::kBytes) {
    line += fmt::format(" {} of {}", FormatBytes(static_cast<uint64_t>(done)),
                        FormatBytes(static_cast<uint64_t>(total)));
    if (rate > 0) line += fmt::format(", {}/s", FormatBytes(static_cast<uint64_t>(rate)));
  } else if (unit_ == ProgressUnit::kMeasurements) {
    line += fmt::format(" {} of {} measurements", done, total);
  } else {
    line += fmt::format(" {} of {} tokens", done, total);
    if (rate > 0) line += fmt::format(", {:.0f}/s", rate);
  }
  if (done < total && rate > 0)
    line += fmt::format(", {} left", FormatSeconds(static_cast<double>(total - done) / rate));
  return line;
}

void ProgressBar::Update(int64_t done, int64_t total) {
  if (form_ == Form::kNone) return;
  const Clock::time_point now = Clock::now();
  if (!started_) {
    started_ = true;
    start_ = last_draw_ = now;
    first_done_ = done;
    if (form_ == Form::kBar) last_draw_ -= std::chrono::seconds(1);
  }
  const auto pause =
      form_ == Form::kBar ? std::chrono::milliseconds(100) : std::chrono::milliseconds(2000);
  if (now - last_draw_ < pause && (form_ == Form::kBar || done < total)) return;
  last_draw_ = now;
  drawn_ = true;
  std::string line = Line(done, total, std::chrono::duration<double>(now - start_).count());
  if (form_ == Form::kBar) {
    // A line that wraps could not be taken back by one carriage return.
    line.resize(std::min<size_t>(line.size(), SizeOfTerminal(STDERR_FILENO).columns - 1));
    fmt::print(stderr, "{}{}", kClearLine, line);
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
}

void ProgressBar::Finish() {
  if (form_ == Form::kBar && drawn_) fmt::print(stderr, "{}", kClearLine);
  form_ = Form::kNone;
}

StepProgress::StepProgress(ProgressWish wish)
    : on_terminal_(IsTerminal(STDERR_FILENO)), lines_(wish == ProgressWish::kAlways) {}

void StepProgress::Show(int64_t done, int64_t total, const std::string& what, bool at_once) {
  if (!on_terminal_ && !lines_) return;
  const auto now = Clock::now();
  const auto pause = std::chrono::milliseconds(on_terminal_ ? 100 : 10000);
  if (!at_once && last_ != Clock::time_point() && now - last_ < pause) return;
  last_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const std::string left =
      done > 0 ? fmt::format(", about {} left", FormatSeconds(elapsed / static_cast<double>(done) *
                                                              static_cast<double>(total - done)))
               : "";
  std::string line = fmt::format("{} of {}{}  {}", done, total, left, OneLine(what));
  if (on_terminal_) {
    // A line that wraps could not be taken back by one carriage return.
    line.resize(std::min<size_t>(line.size(), SizeOfTerminal(STDERR_FILENO).columns - 1));
    fmt::print(stderr, "{}{}", kClearLine, line);
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
}

void StepProgress::Clear() {
  if (on_terminal_) fmt::print(stderr, "{}", kClearLine);
}

}  // namespace vericache::cli
