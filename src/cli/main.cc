// The command `vericache`: reads the command line, runs one command, gives its exit status.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "base/allocator.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace vericache::cli {
namespace {

constexpr char kVersion[] = "vericache " VERICACHE_VERSION;

struct Entry {
  const char* name;
  const char* summary;
  CommandBody (*declare)(Flags* flags);
};

constexpr Entry kCommands[] = {
    {"run", "Answer one prompt", DeclareRun},
    {"batch", "Answer many prompts in shared passes", DeclareBatch},
    {"chat", "Talk to a model", DeclareChat},
    {"serve", "OpenAI-compatible HTTP server", DeclareServe},
    {"audit", "Compute a receipt's answer again", DeclareAudit},
    {"compare", "Full KV, unverified draft KV and VeriCache on the same prompts", DeclareCompare},
    {"compressors", "How well draft KVs do on your prompts", DeclareCompressors},
    {"inspect", "What a model file holds and what its KV costs", DeclareInspect},
    {"perplexity", "Perplexity of a text", DeclarePerplexity},
    {"prefix", "Store prefixes, list, remove, measure, check them", DeclarePrefix},
    {"pull", "Fetch a model from the Hugging Face Hub", DeclarePull},
    {"verifier", "Verify what other machines draft, next to the prefix store", DeclareVerifier},
    {"bench", "Measure prefill and decoding", DeclareBench},
    {"version", "Print the version", DeclareVersion},
};

// Without the name of the environment twin at every flag: the closing lines give the rule.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_name().empty() ? "" : " " + option->get_type_name();
  }
};

constexpr char kHelpFooter[] =
    "Examples:\n"
    "  vericache pull smollm2-135m\n"
    "  vericache run -m smollm2-135m -p 'Why is the sky blue?'\n"
    "  vericache run --help\n"
    "\n"
    "Exit status: 0 success, 1 failure, 2 wrong usage. Every flag can be given as an environment\n"
    "variable: VERICACHE_<LONG NAME>, such as VERICACHE_DRAFT_LEN for --draft-len.";

// "The following argument was not expected: --x" and the like, as one line with the way out.
ExitStatus ReportParseError(const CLI::ParseError& error, const CLI::App& app) {
  std::string command = "vericache";
  for (const CLI::App* chosen : app.get_subcommands()) command += " " + chosen->get_name();
  return ReportError(
      UsageError(fmt::format("{}; see `{} --help`", OneLine(error.what()), command)));
}

int Main(int argc, char** argv) {
  MapLargeBlocks();
  CLI::App app("Runs GGUF models on a compressed KV cache and gives exactly the full-KV answer.",
               "vericache");
  app.footer(kHelpFooter);
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(0, 1);
  app.formatter(std::make_shared<HelpFormatter>());
  CommandBody body;
  for (const Entry& entry : kCommands) {
    CLI::App* command = app.add_subcommand(entry.name, entry.summary);
    Flags flags(command);
    // Set before parsing, so that CLI11 reads the environment for the chosen command alone.
    command->parse_complete_callback(
        [&body, declared = entry.declare(&flags)] { body = declared; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    return ReportParseError(error, app);
  }
  if (body == nullptr)
    return ReportError(UsageError("no command given, such as run or chat; see `vericache --help`"));
  IgnoreClosedPipes();
  const absl::Status status = body();
  if (std::fflush(stdout) != 0 && status.ok())
    return ReportError(absl::UnavailableError("cannot write to standard output"));
  return ReportError(status);
}

}  // namespace

CommandBody DeclareVersion(Flags*) {
  return [] {
    fmt::print("{}\n", kVersion);
    return absl::OkStatus();
  };
}

}  // namespace vericache::cli

int main(int argc, char** argv) {
  using vericache::cli::ReportError;
  try {
    return vericache::cli::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    return ReportError(
        absl::ResourceExhaustedError("out of memory; try a smaller --ctx or a smaller model"));
  } catch (const std::exception& error) {
    return ReportError(absl::InternalError(error.what()));
  }
}
