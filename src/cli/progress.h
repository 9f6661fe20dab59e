// A progress bar with the time left, on stderr.
//
// On a terminal one line, redrawn; elsewhere nothing, or plain lines now and then where the user
// asked by --progress.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace vericache::cli {

enum class ProgressWish {
  kTerminalOnly,
  kAlways,  // --progress
};
enum class ProgressUnit { kTokens, kBytes, kMeasurements };

class ProgressBar {
 public:
  ProgressBar(std::string label, ProgressUnit unit, ProgressWish wish);
  ~ProgressBar() { Finish(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Cheap to call often; draws a few times a second.
  void Update(int64_t done, int64_t total);
  // Takes the bar off the terminal.
  void Finish();

 private:
  enum class Form { kNone, kBar, kLines };
  using Clock = std::chrono::steady_clock;

  std::string Line(int64_t done, int64_t total, double seconds) const;

  const std::string label_;
  const ProgressUnit unit_;
  Form form_;
  bool started_ = false, drawn_ = false;
  Clock::time_point start_, last_draw_;
  int64_t first_done_ = 0;  // where the work began: a session or a part of a file was there
};

// Work in steps of unequal length: "3 of 7, about 2 min 05 s left  WHAT", where ProgressBar shows
// anything at all.
class StepProgress {
 public:
  explicit StepProgress(ProgressWish wish);
  ~StepProgress() { Clear(); }
  StepProgress(const StepProgress&) = delete;
  StepProgress& operator=(const StepProgress&) = delete;

  // Cheap to call often; draws a few times a second, or a line every ten seconds. at_once: draw.
  void Show(int64_t done, int64_t total, const std::string& what, bool at_once = false);
  // Takes the line off the terminal.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  const bool on_terminal_, lines_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_;
};

// "1.5 GiB", "12.3 MiB", "512 B".
std::string FormatBytes(uint64_t bytes);
// "2 h 05 min", "3 min 20 s", "12.3 s", "80 ms".
std::string FormatSeconds(double seconds);

}  // namespace vericache::cli
