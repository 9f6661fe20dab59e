// What `run` and `chat` share: watching an answer being made, and summing it up.
#pragma once

#include <memory>
#include <string>

#include "cli/progress.h"
#include "cli/rounds_view.h"
#include "vericache/engine.h"

namespace vericache::cli {

// Where the answer's text goes while it is made.
enum class TextOutput { kStdout, kNone };
enum class RoundsOutput { kNone, kShown };

struct WatchOptions {
  TextOutput text = TextOutput::kStdout;
  RoundsOutput rounds = RoundsOutput::kNone;
  ProgressWish progress = ProgressWish::kTerminalOnly;
};

// Streams one answer: prefill bar, text, rounds; stops it on Ctrl-C or when stdout is closed.
class Watcher {
 public:
  Watcher(const Engine& engine, const WatchOptions& options);

  // REQUIRES: *this outlives the call they are given to.
  Callbacks MakeCallbacks();
  // Ends the text on a terminal's line of its own. Call it once, after the answer.
  void Finish();
  bool stdout_failed() const { return stdout_failed_; }

 private:
  bool OnText(std::string_view text);
  bool OnPrefill(int64_t done, int64_t total);

  const Engine& engine_;
  const WatchOptions options_;
  const bool on_terminal_;
  ProgressBar bar_;
  std::unique_ptr<LiveView> live_;
  std::unique_ptr<RoundLines> lines_;
  bool stdout_failed_ = false;
  bool line_open_ = false;
};

// Five lines for stderr: prompt, answer, rounds, KV, logits.
std::string Summary(const Completion& completion);
// Waits for the prefix store; a line for stderr on what it did, "" if there is none.
std::string PrefixSummary(Engine* engine);

}  // namespace vericache::cli
