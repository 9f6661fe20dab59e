// `vericache perplexity`: how well a model predicts a text.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status_macros.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/files.h"
#include "cli/interrupt.h"
#include "cli/models.h"

namespace vericache::cli {
namespace {

struct PerplexityOptions {
  ModelFlags model;
  std::string file;
  int64_t window = 512;
  bool json = false;
};

absl::Status MeasurePerplexity(const PerplexityOptions& o) {
  if (o.file.empty()) return UsageError("no text given: -f FILE (- for standard input)");
  VC_RETURN_IF_ERROR(FindModel(o.model.model).status());
  VC_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(o.file, kPromptBytesMax));
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(o.model));
  InstallInterruptHandler();
  ProgressBar bar("perplexity", ProgressUnit::kTokens, WishOf(o.model));
  Callbacks callbacks;
  callbacks.on_prefill = [&bar](int64_t done, int64_t total) {
    bar.Update(done, total);
    return !Interrupted();
  };
  VC_ASSIGN_OR_RETURN(const PerplexityReport report, engine->Perplexity(text, o.window, callbacks));
  bar.Finish();
  if (o.json) {
    const nlohmann::ordered_json json = {{"perplexity", report.perplexity},
                                         {"mean_nll", report.mean_nll},
                                         {"window", o.window},
                                         {"num_tokens", report.num_tokens},
                                         {"num_scored", report.num_scored},
                                         {"num_windows", report.num_windows}};
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("perplexity {:.4f}  ({} of {} tokens scored, in {} windows of {})\n",
               report.perplexity, report.num_scored, report.num_tokens, report.num_windows,
               o.window);
  }
  return absl::OkStatus();
}

}  // namespace

CommandBody DeclarePerplexity(Flags* flags) {
  auto o = std::make_shared<PerplexityOptions>();
  flags->Name("-f,--file", "FILE", "The text (- for standard input)", &o->file);
  flags->Integer("--window", "N", "Tokens of a window (default 512)", &o->window, 2, 1 << 20);
  flags->Switch("--json", "One JSON object on stdout", &o->json);
  o->model.Declare(flags);
  flags->Examples(
      "  vericache perplexity -m smollm2-135m -f book.txt\n"
      "  vericache perplexity -m model.gguf -f book.txt --window 2048 --json\n"
      "\n"
      "Each window starts from nothing, without BOS; all its tokens but the first are scored; the\n"
      "last, partial window is left out.");
  return [o] { return MeasurePerplexity(*o); };
}

}  // namespace vericache::cli
