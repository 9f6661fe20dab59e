// `vericache compare`: flags, what is shown while it runs, and the exit status.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/status_macros.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/compare.h"
#include "cli/compare_report.h"
#include "cli/compare_view.h"
#include "cli/errors.h"
#include "cli/files.h"
#include "cli/interrupt.h"
#include "cli/json_out.h"
#include "cli/models.h"
#include "cli/progress.h"
#include "cli/rounds_view.h"
#include "cli/terminal.h"

namespace vericache::cli {
namespace {

constexpr int kStaticRoundsMax = 6;
constexpr char kDemoReceipt[] = "receipt.json";

struct Settings {
  ModelFlags model;
  PrefixFlags prefix;
  DecodingFlags decoding;
  std::string prompts, document, questions, receipt;
  int64_t max_tokens = 0;
  bool demo = false, json = false;
};

// Shows the run as it goes on. Scripts (--json) get the progress on stderr and nothing else before
// the end; the demo tells every step on stdout.
class Stage {
 public:
  Stage(const Settings& settings, const Engine& engine, size_t num_questions)
      : settings_(settings),
        engine_(engine),
        num_questions_(num_questions),
        bar_("document", ProgressUnit::kTokens, WishOf(settings.model)) {}

  CompareCallbacks MakeCallbacks() {
    CompareCallbacks callbacks;
    callbacks.cancelled = [] { return Interrupted(); };
    callbacks.on_document = [this](int64_t done, int64_t total) { return OnDocument(done, total); };
    callbacks.on_question = [this](const CompareQuestion& question, int num_done, int) {
      OnQuestion(question, num_done);
    };
    callbacks.on_row = [this](const CompareRow& row) { OnRow(row); };
    if (settings_.demo) callbacks.live = MakeLive();
    return callbacks;
  }

  void Begin() {
    if (!settings_.demo || settings_.document.empty()) return;
    fmt::print("\nThe document: {}, prefilled once for all {} questions\n",
               OneLine(settings_.document), num_questions_);
    std::fflush(stdout);
  }

  void TakeAwayProgress() {
    bar_.Finish();
    if (IsTerminal(STDERR_FILENO)) fmt::print(stderr, "{}", kClearLine);
  }

 private:
  using Clock = std::chrono::steady_clock;

  double Elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  bool OnDocument(int64_t done, int64_t total) {
    bar_.Update(done, total);
    if (done >= total) {
      bar_.Finish();
      if (settings_.demo) {
        const double seconds = Elapsed();
        fmt::print("  {} tokens in {}, {:.0f} tok/s\n", total, FormatSeconds(seconds),
                   static_cast<double>(total) / seconds);
      }
    }
    return !Interrupted();
  }

  void OnQuestion(const CompareQuestion& question, int num_done) {
    if (num_done == 0) {
      start_ = Clock::now();
      if (settings_.demo) ShowFirstQuestion(question);
      return;
    }
    if (!IsTerminal(STDERR_FILENO)) return;
    const double left = Elapsed() / num_done * static_cast<double>(num_questions_ - num_done);
    fmt::print(stderr, "{}  {} of {}: {}, about {} left", kClearLine, num_done + 1, num_questions_,
               OneLine(question.id), FormatSeconds(left));
    std::fflush(stderr);
  }

  void ShowFirstQuestion(const CompareQuestion& question) {
    fmt::print("\nQuestion 1, live: ");
    if (IsTerminal(STDOUT_FILENO)) {
      fmt::print("{}unverified tokens{}, then verified ones; {}yellow{} where full KV corrected\n",
                 kDim, kReset, kYellow, kReset);
    } else {
      fmt::print("what was drafted, and what full KV kept of it\n");
    }
    fmt::print("  {}\n", OneLine(question.text.empty() ? question.id : question.text));
    std::fflush(stdout);
  }

  Callbacks MakeLive() {
    Callbacks live;
    if (IsTerminal(STDOUT_FILENO)) {
      view_ = std::make_unique<LiveView>(engine_, SizeOfTerminal(STDOUT_FILENO));
      live.on_text = [this](std::string_view text) { return view_->OnText(text); };
      live.on_round = [this](const RoundView& round) { view_->OnRound(round); };
    } else {
      lines_ = std::make_unique<StaticRounds>(
          stdout,
          [this](int32_t id) {
            return engine_.Detokenize({&id, 1});
          },
          kStaticRoundsMax);
      live.on_text = [this](std::string_view text) {
        lines_->OnText(text);
        return true;
      };
      live.on_round = [this](const RoundView& round) { lines_->OnRound(round); };
    }
    return live;
  }

  void OnRow(const CompareRow& row) {
    if (!settings_.demo) return;
    const bool is_first = num_rows_++ == 0;
    // The live answer has left the cursor behind its text, and no progress line to take away.
    if (is_first && view_ != nullptr) {
      fmt::print("\n");
    } else if (IsTerminal(STDERR_FILENO)) {
      fmt::print(stderr, "{}", kClearLine);
    }
    if (is_first) {
      if (lines_ != nullptr) {
        lines_->Finish();
        fmt::print("  {}\n", SafeForTerminal(row.verified.completion.text));
      }
      fmt::print("\nAll {} questions, each with full KV, unverified draft KV and VeriCache\n",
                 num_questions_);
    }
    fmt::print("{}\n", CompareLine(row));
    std::fflush(stdout);
  }

  const Settings& settings_;
  const Engine& engine_;
  const size_t num_questions_;
  ProgressBar bar_;
  Clock::time_point start_ = Clock::now();
  int num_rows_ = 0;
  std::unique_ptr<LiveView> view_;
  std::unique_ptr<StaticRounds> lines_;
};

absl::Status CheckSettings(const Settings& s) {
  const bool with_document = !s.document.empty() || !s.questions.empty();
  if (s.prompts.empty() && !with_document)
    return UsageError("nothing to compare: give -f PROMPTS, or --document and --questions");
  if (!s.prompts.empty() && with_document)
    return UsageError("-f and --document do not go together");
  if (s.document.empty() != s.questions.empty())
    return UsageError("--document and --questions go together");
  if (s.demo && s.json) return UsageError("--demo and --json do not go together");
  VC_ASSIGN_OR_RETURN(const std::string draft, CanonicalDraftSpec(s.decoding.draft));
  if (draft == "off") return UsageError("--draft off leaves nothing to compare with full KV");
  if (!s.receipt.empty()) return CheckWritable("--receipt", s.receipt);
  return absl::OkStatus();
}

// How the reader calls this program from where they stand.
std::string CommandName() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "vericache";
  const auto here = std::filesystem::current_path(error);
  if (error) return "vericache";
  const std::filesystem::path relative = self.lexically_relative(here);
  if (relative.empty() || *relative.begin() == "..") return "vericache";
  return relative.has_parent_path() ? relative.string() : "./" + relative.string();
}

// A receipt of the first prompt's answer, the one that --demo shows live.
absl::Status WriteReceipt(Engine* engine, const CompareReport& report, const std::string& path) {
  const CompareRow& row = report.rows.front();
  VC_ASSIGN_OR_RETURN(const Receipt receipt,
                      engine->MakeReceipt(row.verified.completion, row.request.sampling));
  return WriteFileAtomic(path, ReceiptJson(receipt));
}

absl::Status Run(Settings s) {
  VC_RETURN_IF_ERROR(CheckSettings(s));
  if (s.demo && s.receipt.empty()) s.receipt = kDemoReceipt;
  VC_ASSIGN_OR_RETURN(const CompareInput input, s.document.empty()
                                                    ? ReadPromptsInput(s.prompts)
                                                    : ReadDocumentInput(s.document, s.questions));
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(s.model, s.prefix));
  CompareOptions options;
  options.draft = s.decoding.draft;
  options.draft_len = s.decoding.draft_len;
  options.max_tokens = s.max_tokens;
  Stage stage(s, *engine, input.questions.size());
  stage.Begin();
  absl::StatusOr<CompareReport> report =
      Compare(engine.get(), input, options, stage.MakeCallbacks());
  stage.TakeAwayProgress();
  if (!report.ok()) return report.status();
  if (!s.receipt.empty()) VC_RETURN_IF_ERROR(WriteReceipt(engine.get(), *report, s.receipt));
  if (s.json) {
    fmt::print("{}\n", CompareJson(*report));
  } else {
    fmt::print("\n{}\n{}\n{}", CompareSetup(*report), CompareTable(*report),
               CompareSummary(*report));
    if (!s.receipt.empty())
      fmt::print("\nreceipt of the first answer: {}; it is audited by: {} audit {}\n", s.receipt,
                 CommandName(), s.receipt);
  }
  if (report->AllVerifiedIdentical()) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("VeriCache differs from full KV in {} of {} answers: this is a bug, please "
                  "report it with the output of --json",
                  report->rows.size() - static_cast<size_t>(report->NumVerifiedIdentical()),
                  report->rows.size()));
}

}  // namespace

CommandBody DeclareCompare(Flags* flags) {
  auto settings = std::make_shared<Settings>();
  settings->model.Declare(flags);
  settings->prefix.Declare(flags);
  flags->Group("Prompts");
  flags->Text("-f,--file", "FILE",
              "Prompts: a JSON object a line, {\"prompt\" | \"question\" | \"messages\"}",
              &settings->prompts);
  flags->Text("--document", "FILE", "Text that all questions are about; prefilled once",
              &settings->document);
  flags->Text("--questions", "FILE",
              "A JSON object a line: {\"question\", \"id\", \"kind\", \"max_tokens\"}",
              &settings->questions);
  flags->Integer("-n,--max-tokens", "N", "Tokens an answer at most (default: the prompt's, or 256)",
                 &settings->max_tokens, 1, int64_t{1} << 40);
  settings->decoding.DeclareDraft(flags);
  flags->Group("Output");
  flags->Switch("--demo", "Show every step and the first answer live", &settings->demo);
  flags->Switch("--json", "Print one JSON object", &settings->json);
  flags->Text("--receipt", "FILE", "Write a receipt of VeriCache's first answer",
              &settings->receipt);
  flags->Examples(
      "  vericache compare -m qwen2.5-coder-0.5b --document FILE --questions FILE\n"
      "  vericache compare -m smollm2-135m -f prompts.jsonl --draft int4 --json\n"
      "\n"
      "Exit status 1 if an answer of VeriCache differs from full KV's in a token or in the hash\n"
      "of its logits.");
  return [settings] { return Run(*settings); };
}

}  // namespace vericache::cli
