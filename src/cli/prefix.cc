// vericache prefix push|ls|rm|stat|check: what lies in a prefix store.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/files.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "cli/prefix_report.h"
#include "cli/request_line.h"
#include "vericache/engine.h"
#include "vericache/prefixes.h"

namespace vericache::cli {
namespace {

enum class Verb { kNone, kPush, kList, kRemove, kStat, kCheck };

struct PrefixCommand {
  Verb verb = Verb::kNone;
  PrefixFlags prefix;
  bool json = false, progress = false;
  // push
  ModelFlags model;
  std::string file, text, system, label;
  bool text_given = false, raw = false;
  std::vector<std::string> drafts;
  // rm
  PrefixFilter filter;
  bool dry_run = false;
  // check
  bool repair = false;
};

absl::Status Print(const std::string& text) {
  return WriteStdout(text) ? absl::OkStatus()
                           : absl::UnavailableError("cannot write to standard output");
}

absl::StatusOr<std::unique_ptr<PrefixAdmin>> OpenAdmin(const PrefixCommand& o, bool read_only) {
  if (o.prefix.store.empty())
    return UsageError("no prefix store given: --prefix-store takes a folder or a URL");
  PrefixStoreOptions options;
  options.store = o.prefix.store;
  options.read_only = read_only;
  options.environment = EnvironmentOf;
  options.on_notice = [](std::string_view text) { Notice(OneLine(text)); };
  return PrefixAdmin::Open(options);
}

absl::StatusOr<Request> RequestOf(const PrefixCommand& o, const ModelInfo& info) {
  std::string text = o.text;
  if (!o.text_given) {
    VC_ASSIGN_OR_RETURN(text, ReadWholeFile(o.file.empty() ? "-" : o.file, kPromptBytesMax));
  }
  Request request;
  if (o.raw || !info.has_chat_template) {
    if (!o.system.empty()) return UsageError("--system needs the chat template: drop it, or --raw");
    request.prompt = std::move(text);
    return request;
  }
  try {
    request.messages_json = ChatOf(o.system, text);
  } catch (const nlohmann::json::type_error&) {
    return absl::InvalidArgumentError("the prompt is not UTF-8 text; convert it first");
  }
  return request;
}

absl::Status Push(PrefixCommand o) {
  if (o.prefix.store.empty())
    return UsageError("no prefix store given: --prefix-store takes a folder or a URL");
  if (o.text_given && !o.file.empty()) return UsageError("give -p or -f, not both");
  if (!o.text_given && o.file.empty() && isatty(STDIN_FILENO) == 1)
    return UsageError("no prefix: give -f FILE, -p TEXT, or pipe text into standard input");
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(o.model, o.prefix, ""));
  InstallStopHandler();
  VC_ASSIGN_OR_RETURN(const Request request, RequestOf(o, engine->info()));
  PrefixPushOptions options;
  options.drafts = o.drafts;
  options.label = !o.label.empty() ? o.label : o.file;
  WatchOptions watch;
  watch.text = TextOutput::kNone;
  watch.progress = WishOf(o.model);
  Watcher watcher(*engine, watch);
  ProgressBar bar("store", ProgressUnit::kBytes, WishOf(o.model));
  const absl::StatusOr<PrefixPushReport> report = engine->PushPrefix(
      request, options, watcher.MakeCallbacks(), [&bar](uint64_t done, uint64_t total) {
        bar.Update(static_cast<int64_t>(done), static_cast<int64_t>(total));
      });
  watcher.Finish();
  bar.Finish();
  VC_RETURN_IF_ERROR(report.status());
  return Print(o.json ? PrefixPushJson(*report) + "\n" : PrefixPushText(*report));
}

absl::Status List(const PrefixCommand& o) {
  VC_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(o, /*read_only=*/true));
  VC_ASSIGN_OR_RETURN(const std::vector<StoredPrefix> prefixes, admin->List());
  return Print(o.json ? PrefixListJson(prefixes) + "\n" : PrefixListText(prefixes));
}

absl::Status Remove(const PrefixCommand& o) {
  VC_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(o, o.dry_run));
  const auto removing = o.dry_run ? PrefixAdmin::Removing::kDryRun : PrefixAdmin::Removing::kReally;
  VC_ASSIGN_OR_RETURN(const PrefixRemoval removal, admin->Remove(o.filter, removing));
  return Print(o.json ? PrefixRemovalJson(removal, o.dry_run) + "\n"
                      : PrefixRemovalText(removal, o.dry_run));
}

absl::Status Stat(const PrefixCommand& o) {
  VC_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(o, /*read_only=*/true));
  const std::vector<PrefixTier> tiers = admin->Stat();
  VC_RETURN_IF_ERROR(Print(o.json ? PrefixStatJson(tiers) + "\n" : PrefixStatText(tiers)));
  for (const PrefixTier& tier : tiers)
    if (!tier.error.empty()) return absl::UnavailableError(tier.error);
  return absl::OkStatus();
}

absl::Status Check(const PrefixCommand& o) {
  VC_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(o, !o.repair));
  ProgressBar bar("check", ProgressUnit::kBytes,
                  o.progress ? ProgressWish::kAlways : ProgressWish::kTerminalOnly);
  const std::vector<PrefixCheckTier> tiers =
      admin->Check(o.repair ? PrefixAdmin::Checking::kRepair : PrefixAdmin::Checking::kOnlyLook,
                   [&bar](uint64_t done, uint64_t total) {
                     bar.Update(static_cast<int64_t>(done), static_cast<int64_t>(total));
                   });
  bar.Finish();
  VC_RETURN_IF_ERROR(Print(o.json ? PrefixCheckJson(tiers) + "\n" : PrefixCheckText(tiers)));
  for (const PrefixCheckTier& tier : tiers) {
    if (!tier.error.empty()) return absl::UnavailableError(tier.error);
    if (!o.repair && tier.damaged + tier.incomplete_prefixes > 0)
      return absl::DataLossError(fmt::format(
          "{} is damaged; `vericache prefix check --repair` removes what is", tier.name));
  }
  return absl::OkStatus();
}

void DeclareShared(Flags* flags, PrefixCommand* o) {
  o->prefix.DeclareStore(flags);
  flags->Switch("--json", "One JSON object on stdout", &o->json);
}

void DeclarePush(Flags* flags, PrefixCommand* o) {
  DeclareShared(flags, o);
  o->prefix.DeclareSize(flags);
  flags->Name("-f,--file", "FILE", "The prefix (- or nothing: standard input)", &o->file);
  flags->Custom("-p,--prompt", "TEXT", "The prefix itself", [o](const std::string& text) {
    o->text = text;
    o->text_given = true;
    return absl::OkStatus();
  });
  flags->Text("--system", "TEXT", "System message before it", &o->system);
  flags->Switch("--raw", "Take the text as it is, without the model's chat template", &o->raw);
  flags->List("--draft", "SPEC", "Store its draft KV, too; may be given several times",
              [o](const std::vector<std::string>& texts) {
                o->drafts = texts;
                for (const std::string& text : texts)
                  if (absl::Status s = CanonicalDraftSpec(text).status(); !s.ok()) return s;
                return absl::OkStatus();
              });
  flags->Text("--label", "TEXT", "Shown by ls (default: the file's name)", &o->label);
  o->model.Declare(flags);
  flags->Examples(
      "  vericache prefix push -m MODEL -f book.txt --prefix-store redis://cache/ \\\n"
      "      --draft verify:0.25+int4 --draft kvzip:0.2+int4");
}

void DeclareRemove(Flags* flags, PrefixCommand* o) {
  DeclareShared(flags, o);
  flags->Positionals("ID", "Ids that ls shows, or their beginnings", &o->filter.ids);
  flags->Name("--of-model", "MODEL", "Only of this model: its name, or its SHA-256's beginning",
              &o->filter.model);
  flags->Custom("--older-than", "AGE", "Only those not used for so long, such as 12h or 7d",
                [o](const std::string& text) { return ParseAge(text, &o->filter.older_than_s); });
  flags->Switch("--all", "All of them", &o->filter.everything);
  flags->Switch("--dry-run", "Only say what would go", &o->dry_run);
  flags->Examples("  vericache prefix rm --prefix-store DIR --older-than 30d --dry-run");
}

void DeclareCheck(Flags* flags, PrefixCommand* o) {
  DeclareShared(flags, o);
  flags->Switch("--repair", "Remove what is damaged or incomplete", &o->repair);
  flags->Switch("--progress", "Show progress even if stderr is no terminal", &o->progress);
}

absl::Status Run(const PrefixCommand& o) {
  switch (o.verb) {
    case Verb::kPush:
      return Push(o);
    case Verb::kList:
      return List(o);
    case Verb::kRemove:
      return Remove(o);
    case Verb::kStat:
      return Stat(o);
    case Verb::kCheck:
      return Check(o);
    case Verb::kNone:
      break;
  }
  return UsageError("say what: push, ls, rm, stat or check; see `vericache prefix --help`");
}

}  // namespace

CommandBody DeclarePrefix(Flags* flags) {
  // One set of values each, so that a flag of one command has no say in another.
  auto chosen = std::make_shared<std::shared_ptr<PrefixCommand>>();
  const auto add = [&](Verb verb, const char* name, const char* summary,
                       void (*declare)(Flags*, PrefixCommand*)) {
    auto o = std::make_shared<PrefixCommand>();
    o->verb = verb;
    flags->Subcommand(
        name, summary, [&](Flags* own) { declare(own, o.get()); }, [chosen, o] { *chosen = o; });
  };
  add(Verb::kPush, "push", "Prefill a text once and store it, with draft KVs", DeclarePush);
  add(Verb::kList, "ls", "The prefixes in a store, of any model", DeclareShared);
  add(Verb::kRemove, "rm", "Remove prefixes", DeclareRemove);
  add(Verb::kStat, "stat", "What each tier of a store holds", DeclareShared);
  add(Verb::kCheck, "check", "Read everything in a store and verify it", DeclareCheck);
  return [chosen] { return Run(*chosen == nullptr ? PrefixCommand() : **chosen); };
}

}  // namespace vericache::cli
