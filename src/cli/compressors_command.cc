// `vericache compressors`: flags, progress, and where the results go.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "base/status_macros.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/compressors.h"
#include "cli/compressors_plot.h"
#include "cli/compressors_report.h"
#include "cli/errors.h"
#include "cli/files.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "cli/progress.h"
#include "cli/spec_list.h"

namespace vericache::cli {
namespace {

constexpr char kDefaultSpecs[] =
    "verify:0.25+int4,verify:0.1+int4,snapkv:0.25+int4,kvzip:0.25+int4,sink:0.25+int4,int8,int4";

struct Settings {
  ModelFlags model;
  CompressorsOptions study;
  std::string prompts, answers, plot, draft_model;
  bool json = false;
};

absl::Status CheckSettings(const Settings& s) {
  if (s.prompts.empty()) return UsageError("give the prompts with -f FILE: a JSON object a line");
  if (!s.answers.empty()) VC_RETURN_IF_ERROR(CheckWritable("--answers", s.answers));
  if (!s.plot.empty()) VC_RETURN_IF_ERROR(CheckWritable("--plot", s.plot));
  return absl::OkStatus();
}

absl::Status Run(Settings s) {
  VC_RETURN_IF_ERROR(CheckSettings(s));
  if (s.study.specs.empty()) VC_RETURN_IF_ERROR(ParseSpecList(kDefaultSpecs, &s.study.specs));
  VC_ASSIGN_OR_RETURN(const CompareInput input, ReadPromptsInput(s.prompts));
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(s.model));
  std::unique_ptr<Engine> draft_model;
  if (!s.draft_model.empty()) {
    ModelFlags small = s.model;
    small.model = s.draft_model;
    VC_ASSIGN_OR_RETURN(draft_model, LoadEngine(small));
    s.study.draft_model = draft_model.get();
  }
  std::string answers;
  StepProgress progress(WishOf(s.model));
  CompressorsCallbacks callbacks;
  callbacks.cancelled = [] { return Interrupted(); };
  callbacks.on_step = [&](int64_t done, int64_t total, const std::string& what) {
    progress.Show(done, total, what, /*at_once=*/done == 0);
  };
  callbacks.on_studied = [&](const StudiedPrompt& prompt, const StudiedSpec& spec) {
    if (!s.answers.empty() && spec.runs.back().has_value())
      answers += AnswerLine(prompt, spec.spec, *spec.runs.back());
  };
  const absl::StatusOr<CompressorsReport> report =
      StudyCompressors(engine.get(), input.questions, s.study, callbacks);
  progress.Clear();
  if (!report.ok()) return report.status();
  if (!s.answers.empty()) VC_RETURN_IF_ERROR(WriteFileAtomic(s.answers, answers));
  if (!s.plot.empty()) VC_RETURN_IF_ERROR(WriteFileAtomic(s.plot, CompressorsPlot(*report)));
  fmt::print("{}", s.json ? CompressorsJson(*report) + "\n" : CompressorsTable(*report));
  if (report->AllIdentical()) return absl::OkStatus();
  return absl::InternalError(
      "VeriCache differs from full KV in an answer: this is a bug, please report it with the "
      "output of --json");
}

}  // namespace

CommandBody DeclareCompressors(Flags* flags) {
  auto settings = std::make_shared<Settings>();
  Settings* s = settings.get();
  s->model.Declare(flags);
  flags->Group("Prompts");
  flags->Text(
      "-f,--file", "FILE",
      "Prompts: a JSON object a line, {\"prompt\" | \"question\" | \"messages\", \"tools\", "
      "\"kind\", \"custom_id\", \"max_tokens\"}",
      &s->prompts);
  flags->Integer("-n,--max-tokens", "N", "Tokens an answer at most (default: the prompt's, or 256)",
                 &s->study.max_tokens, 1, int64_t{1} << 40);
  flags->Group("Draft KVs");
  flags->Custom("--specs", "LIST",
                std::string("Draft specs, by commas (default ") + kDefaultSpecs + ")",
                [s](const std::string& text) { return ParseSpecList(text, &s->study.specs); });
  flags->Integer("--draft-len", "N", "Tokens drafted a round at most (default 64)",
                 &s->study.draft_len, 1, 256);
  flags->Text("--draft-model", "MODEL",
              "Also show what this smaller model with the same tokens would draft right",
              &s->draft_model);
  flags->Integer(
      "--runs", "N",
      "Prompts of each kind that are decoded with each spec, verified and not; the others "
      "are replayed along full KV's answer (default 2)",
      &s->study.runs_per_kind, 0, 1 << 20);
  flags->Group("Output");
  flags->Switch("--json", "Print one JSON object", &s->json);
  flags->Text("--plot", "FILE", "Write run length over kept fraction as SVG", &s->plot);
  flags->Text("--answers", "FILE", "Write the decoded answers, a JSON object a line", &s->answers);
  flags->Examples(
      "  vericache compressors -m qwen2.5-coder-0.5b -f prompts.jsonl --plot runs.svg\n"
      "  vericache compressors -m model.gguf -f prompts.jsonl --specs "
      "int4,kvzip:0.25,window=8+k4v2\n"
      "\n"
      "Every answer is decoded once on the full KV. The rounds of each spec along that answer are\n"
      "then computed at prefill speed: the same run lengths as real decoding has. Consecutive\n"
      "prompts that begin alike share the prefill. Exit status 1 if a verified answer differs "
      "from\n"
      "full KV's in a token or in the hash of its logits.");
  return [settings] { return Run(*settings); };
}

}  // namespace vericache::cli
