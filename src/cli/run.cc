// `vericache run`: one prompt, one answer.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status_macros.h"
#include "cli/audit_report.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/files.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/json_out.h"
#include "cli/models.h"
#include "cli/remote_flags.h"

namespace vericache::cli {
namespace {

constexpr int64_t kMaxTokensMax = int64_t{1} << 31;

struct RunOptions {
  ModelFlags model;
  PrefixFlags prefix;
  DecodingFlags decoding;
  RemoteFlags remote;
  std::string prompt, file, system;
  std::string receipt, trace, session;
  int64_t max_tokens = Request().max_tokens;
  bool prompt_given = false;
  bool raw = false, json = false, audit = false, show_rounds = false, ignore_eos = false;
};

// Everything that can be known to be wrong before a model is loaded.
absl::Status CheckOptions(const RunOptions& o) {
  if (o.raw && !o.system.empty())
    return UsageError("--system needs the chat template, which --raw leaves out: drop one of them");
  if (o.prompt_given && o.prompt.empty() && o.file.empty())
    return UsageError("the prompt is empty: give -p some text");
  if (!o.prompt_given && o.file.empty() && isatty(STDIN_FILENO) == 1)
    return UsageError("no prompt: give -p TEXT, -f FILE, or pipe text into standard input");
  if (!o.receipt.empty()) VC_RETURN_IF_ERROR(CheckWritable("--receipt", o.receipt));
  if (!o.trace.empty()) VC_RETURN_IF_ERROR(CheckWritable("--trace", o.trace));
  if (!o.session.empty()) VC_RETURN_IF_ERROR(CheckWritable("--session", o.session));
  if (o.remote.wanted()) {
    if (!o.session.empty())
      return UsageError("--session keeps K/V that a --verifier has: drop one of them");
    VC_RETURN_IF_ERROR(o.remote.Connect().status());
  }
  return FindModel(o.model.model).status();
}

// -p alone, -f alone, -f with -p (a document, a blank line, a question), or standard input.
absl::StatusOr<std::string> ReadPrompt(const RunOptions& o) {
  std::string text = o.prompt;
  if (!o.prompt_given || !o.file.empty()) {
    const std::string path = o.file.empty() ? "-" : o.file;
    VC_ASSIGN_OR_RETURN(text, ReadWholeFile(path, kPromptBytesMax));
    if (text.empty())
      return absl::InvalidArgumentError(fmt::format("the prompt is empty: {} holds no text",
                                                    path == "-" ? "standard input" : path));
    if (!o.prompt.empty()) text += "\n\n" + o.prompt;
  }
  return text;
}

absl::Status SetPrompt(const RunOptions& o, const ModelInfo& info, std::string text,
                       Request* request) {
  if (!o.raw && info.has_chat_template) {
    auto messages = nlohmann::ordered_json::array();
    if (!o.system.empty()) messages.push_back({{"role", "system"}, {"content", o.system}});
    messages.push_back({{"role", "user"}, {"content", std::move(text)}});
    // Strict: text that is not UTF-8 must be refused and not repaired, as for a raw prompt.
    try {
      request->messages_json = messages.dump();
    } catch (const nlohmann::json::type_error&) {
      return absl::InvalidArgumentError("the prompt is not UTF-8 text; convert it first");
    }
    return absl::OkStatus();
  }
  if (!o.system.empty())
    return absl::FailedPreconditionError(
        "--system: this model has no chat template; put the text into the prompt");
  if (!o.raw) Notice("this model has no chat template: the prompt is taken raw, as by --raw");
  request->prompt = std::move(text);
  return absl::OkStatus();
}

absl::StatusOr<Session> OpenSession(Engine* engine, const std::string& path) {
  if (path.empty() || !FileExists(path)) return engine->NewSession();
  return engine->LoadSession(path);
}

// Writes what was asked for beside the answer: receipt, trace, audit.
absl::Status WriteExtras(const RunOptions& o, const SamplingOptions& sampling,
                         const Completion& completion, Engine* engine) {
  if (!o.trace.empty()) VC_RETURN_IF_ERROR(WriteFileAtomic(o.trace, TraceLines(completion.stats)));
  if (o.receipt.empty() && !o.audit) return absl::OkStatus();
  if (completion.token_ids.empty()) {
    Notice("there is no token, so there is no receipt and nothing to audit");
    return absl::OkStatus();
  }
  VC_ASSIGN_OR_RETURN(const Receipt receipt, engine->MakeReceipt(completion, sampling));
  if (!o.receipt.empty()) VC_RETURN_IF_ERROR(WriteFileAtomic(o.receipt, ReceiptJson(receipt)));
  if (!o.audit) return absl::OkStatus();
  return AuditAndReport(engine, receipt, AuditMode::kOnePass, WishOf(o.model), stderr);
}

absl::StatusOr<Completion> GenerateFarAway(const RunOptions& o, const Request& request,
                                           const Callbacks& callbacks, Engine* engine,
                                           std::string* summary) {
  VC_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<RemoteVerifier>> owned, o.remote.Connect());
  std::vector<RemoteVerifier*> verifiers;
  for (const auto& verifier : owned) verifiers.push_back(verifier.get());
  RemoteOptions options;
  options.draft_len = 0;  // where --draft-len is auto: by measured times
  options.early_tokens = 4;
  options.wait_s = std::min<double>(options.wait_s, o.remote.timeout_s);
  RemoteStats stats;
  absl::StatusOr<Completion> completion =
      GenerateRemote(engine, request, verifiers, options, callbacks, &stats);
  *summary = RemoteSummary(stats);
  return completion;
}

absl::Status Run(const RunOptions& o) {
  VC_RETURN_IF_ERROR(CheckOptions(o));
  VC_ASSIGN_OR_RETURN(std::string text, ReadPrompt(o));
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      LoadEngine(o.model, o.prefix, o.decoding.draft_model));
  InstallStopHandler();
  Request request;
  VC_RETURN_IF_ERROR(SetPrompt(o, engine->info(), std::move(text), &request));
  request.max_tokens = o.max_tokens;
  request.draft = o.decoding.draft;
  request.draft_len = o.decoding.draft_len;
  request.propose = o.decoding.propose;
  request.ignore_eos = o.ignore_eos;
  request.sampling = o.decoding.SettleSampling();
  VC_ASSIGN_OR_RETURN(Session session, OpenSession(engine.get(), o.session));

  WatchOptions watch;
  watch.text = o.json ? TextOutput::kNone : TextOutput::kStdout;
  watch.rounds = o.show_rounds ? RoundsOutput::kShown : RoundsOutput::kNone;
  watch.progress = WishOf(o.model);
  Watcher watcher(*engine, watch);
  std::string remote;
  const absl::StatusOr<Completion> completion =
      o.remote.wanted()
          ? GenerateFarAway(o, request, watcher.MakeCallbacks(), engine.get(), &remote)
          : engine->Generate(request, o.session.empty() ? nullptr : &session,
                             watcher.MakeCallbacks());
  watcher.Finish();
  VC_RETURN_IF_ERROR(completion.status());

  // The session first: the long prefill is worth keeping, also when the answer was stopped.
  if (!o.session.empty()) VC_RETURN_IF_ERROR(engine->SaveSession(session, o.session));
  const bool written =
      !watcher.stdout_failed() && (!o.json || WriteStdout(CompletionJson(*completion) + "\n"));
  if (!written) return absl::UnavailableError("cannot write the answer to standard output");
  if (!o.json) fmt::print(stderr, "{}{}", Summary(*completion), PrefixSummary(engine.get()));
  fmt::print(stderr, "{}", remote);
  VC_RETURN_IF_ERROR(WriteExtras(o, request.sampling, *completion, engine.get()));
  if (completion->finish_reason == "cancelled") return absl::CancelledError("stopped");
  return absl::OkStatus();
}

}  // namespace

CommandBody DeclareRun(Flags* flags) {
  auto o = std::make_shared<RunOptions>();
  flags->Custom("-p,--prompt", "TEXT", "The prompt; after the document where -f is given too",
                [raw = o.get()](const std::string& text) {
                  raw->prompt = text;
                  raw->prompt_given = true;
                  return absl::OkStatus();
                });
  flags->Name("-f,--file", "FILE", "Read the prompt from a file (- or nothing: standard input)",
              &o->file);
  flags->Text("--system", "TEXT", "System message", &o->system);
  flags->Switch("--raw", "Take the prompt as it is, without the model's chat template", &o->raw);
  flags->Integer("-n,--max-tokens", "N", "Tokens to generate at most (default 256)", &o->max_tokens,
                 0, kMaxTokensMax);
  flags->Switch("--ignore-eos", "Go on after an end token, up to -n tokens", &o->ignore_eos);
  o->model.Declare(flags);
  o->prefix.Declare(flags);
  o->prefix.DeclarePlan(flags);
  o->decoding.DeclareDraft(flags);
  o->decoding.DeclareSampling(flags);
  o->remote.Declare(flags);
  flags->Group("Output");
  flags->Switch("--json", "One JSON object on stdout instead of the text", &o->json);
  flags->Switch("--show-rounds", "Show drafted tokens as they are checked", &o->show_rounds);
  flags->Switch("--audit", "Compute the answer again afterwards and compare", &o->audit);
  flags->Name("--receipt", "FILE", "Write a receipt, for `vericache audit`", &o->receipt);
  flags->Name("--trace", "FILE", "Write a JSON line a round", &o->trace);
  flags->Name("--session", "FILE", "Keep the KV here; a later run goes on without prefill",
              &o->session);
  flags->Group("Options");
  flags->Examples(
      "  vericache run -m smollm2-135m -p 'Why is the sky blue?'\n"
      "  vericache run -m model.gguf -f report.txt -p 'Sum this up.' --audit\n"
      "  git diff | vericache run -m model.gguf -p 'Write a commit message.' -f -\n"
      "  vericache run -m model.gguf -p Hi --temp 0.8 --seed 7 --json --receipt receipt.json\n"
      "  vericache run -m model.gguf -f book.txt -n 0 --session book.kv   # prefill only\n"
      "  vericache run -m model.gguf -f book.txt -p Why? --prefix-store ~/.cache/prefixes");
  return [o] { return Run(*o); };
}

}  // namespace vericache::cli
