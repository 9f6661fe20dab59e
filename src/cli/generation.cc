#include "cli/generation.h"

#include <fmt/format.h>
#include <unistd.h>

#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace vericache::cli {

Watcher::Watcher(const Engine& engine, const WatchOptions& options)
    : engine_(engine),
      options_(options),
      on_terminal_(IsTerminal(STDOUT_FILENO)),
      bar_("prefill", ProgressUnit::kTokens, options.progress) {
  if (options.rounds == RoundsOutput::kNone) return;
  if (on_terminal_ && options.text == TextOutput::kStdout) {
    live_ = std::make_unique<LiveView>(engine, SizeOfTerminal(STDOUT_FILENO));
  } else {
    lines_ = std::make_unique<RoundLines>(engine);
  }
}

bool Watcher::OnPrefill(int64_t done, int64_t total) {
  bar_.Update(done, total);
  if (done >= total) bar_.Finish();
  return !Interrupted();
}

bool Watcher::OnText(std::string_view text) {
  bar_.Finish();
  line_open_ = !text.ends_with('\n');
  if (live_ != nullptr) {
    stdout_failed_ |= !live_->OnText(text);
  } else if (options_.text == TextOutput::kStdout) {
    stdout_failed_ |= !WriteStdout(on_terminal_ ? SafeForTerminal(text) : std::string(text));
  }
  return !stdout_failed_ && !Interrupted();
}

Callbacks Watcher::MakeCallbacks() {
  Callbacks callbacks;
  callbacks.on_text = [this](std::string_view text) { return OnText(text); };
  callbacks.on_prefill = [this](int64_t done, int64_t total) { return OnPrefill(done, total); };
  if (live_ != nullptr) {
    callbacks.on_round = [this](const RoundView& view) { live_->OnRound(view); };
  } else if (lines_ != nullptr) {
    callbacks.on_round = [this](const RoundView& view) { lines_->OnRound(view); };
  }
  return callbacks;
}

void Watcher::Finish() {
  bar_.Finish();
  if (options_.text == TextOutput::kStdout && on_terminal_ && line_open_)
    stdout_failed_ |= !WriteStdout("\n");
}

std::string Summary(const Completion& c) {
  const CompletionStats& s = c.stats;
  const double decode_s = s.draft_s + s.verify_s;
  int64_t emitted = 0;  // by rounds; the first token comes out of the prefill
  for (const RoundRecord& record : s.records) emitted += record.emitted;
  const auto rate = [](int64_t tokens, double seconds) {
    return tokens > 0 && seconds > 0
               ? fmt::format(", {:.1f} tok/s", static_cast<double>(tokens) / seconds)
               : std::string();
  };
  const int64_t cached = c.usage.cached_tokens;
  std::string text =
      fmt::format("prompt   {} tokens{}; prefill {}{}\n", c.usage.prompt_tokens,
                  cached > 0 ? fmt::format(", {} cached", cached) : "", FormatSeconds(s.prefill_s),
                  rate(c.usage.prompt_tokens - cached, s.prefill_s));
  text += fmt::format("answer   {} tokens in {}{}; finished by {}\n", c.usage.completion_tokens,
                      FormatSeconds(decode_s), rate(emitted, decode_s), c.finish_reason);
  text += fmt::format("rounds   {}, {:.2f} tokens a round; {} of {} drafted tokens accepted\n",
                      s.rounds, s.mean_run_length, s.accepted, s.drafted);
  text += fmt::format("KV       draft {}, full {}; kept fraction {:.3f}\n",
                      FormatBytes(s.draft_bytes), FormatBytes(s.full_bytes), s.kept_fraction);
  if (const PrefixArrivalStats& a = s.arrival; !a.plan.empty()) {
    text += fmt::format("arrival  {}\n", a.reason);
    text += fmt::format("         {} of full KV after {}", FormatBytes(a.full_bytes),
                        FormatSeconds(a.full_s));
    if (a.draft_tokens > 0)
      text +=
          fmt::format("; draft {} after {}, {} of {} tokens drafted meanwhile accepted",
                      FormatBytes(a.draft_bytes), FormatSeconds(a.draft_s), a.accepted, a.drafted);
    text += "\n";
  }
  if (const KvMemoryStats& m = s.memory; m.budget_bytes > 0)
    text += fmt::format("memory   {} of {} for KV; {} spilled, {} read back in {}, {} waited for\n",
                        FormatBytes(m.peak_bytes), FormatBytes(m.budget_bytes),
                        FormatBytes(m.spilled_bytes), FormatBytes(m.streamed_bytes),
                        FormatSeconds(m.stream_s), FormatSeconds(m.stream_wait_s));
  text += fmt::format("logits   {}\n", c.logits_hash);
  return text;
}

std::string PrefixSummary(Engine* engine) {
  engine->WaitForPrefixWrites();
  const PrefixCacheStats s = engine->prefix_stats();
  if (s.lookups == 0) return "";
  const auto unless_none = [](int64_t count, const char* what) {
    return count > 0 ? fmt::format(", {} {}", count, what) : std::string();
  };
  return fmt::format(
      "prefixes {} of {} prompt tokens found; {} read, {} written{}{}{}{}{}\n", s.found_tokens,
      s.prompt_tokens, FormatBytes(s.read_bytes), FormatBytes(s.written_bytes),
      unless_none(s.damaged, "damaged blobs set aside"), unless_none(s.evicted, "evicted"),
      unless_none(s.failed_writes, "not written"), unless_none(s.store_errors, "not answered"),
      unless_none(s.store_skipped, "not tried"));
}

}  // namespace vericache::cli
