// `vericache pull`: a model from the Hugging Face Hub into the models folder.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/models.h"
#include "cli/progress.h"
#include "hub/hub.h"

namespace vericache::cli {
namespace {

std::string EnvironmentOr(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

struct PullFlags {
  std::string model;
  bool progress = false;
};

absl::Status Pull(const PullFlags& flags) {
  if (flags.model.empty())
    return UsageError(
        fmt::format("no model given: vericache pull OWNER/REPO[/FILE.gguf], or one of {}",
                    absl::StrJoin(ShortModelNames(), ", ")));
  PullOptions options;
  options.model = flags.model;
  VC_ASSIGN_OR_RETURN(options.models_dir, ModelsFolder());
  options.endpoint = EnvironmentOr("HF_ENDPOINT", kDefaultHubEndpoint);
  options.token = EnvironmentOr("HF_TOKEN", "");
  ProgressBar bar("pull", ProgressUnit::kBytes,
                  flags.progress ? ProgressWish::kAlways : ProgressWish::kTerminalOnly);
  options.on_progress = [&bar](int64_t done, int64_t total) { bar.Update(done, total); };
  options.on_note = [](const std::string& line) { Notice(line); };
  VC_ASSIGN_OR_RETURN(const std::string path, PullModel(options));
  bar.Finish();
  fmt::print("{}\n", path);
  return absl::OkStatus();
}

}  // namespace

CommandBody DeclarePull(Flags* flags) {
  auto o = std::make_shared<PullFlags>();
  flags->Positional("MODEL", "OWNER/REPO, OWNER/REPO/FILE.gguf, or a short name", &o->model);
  flags->Switch("--progress", "Show progress even if stderr is no terminal", &o->progress);
  flags->Examples(fmt::format(
      "  vericache pull smollm2-135m\n"
      "  vericache pull OWNER/REPO/model-q4_k_m.gguf\n"
      "  HF_TOKEN=... vericache pull OWNER/PRIVATE-REPO\n"
      "\n"
      "Short names: {}. Prints the file's path. A pull that was\n"
      "broken off goes on where it stopped. HF_ENDPOINT names another server with the Hub's API.",
      absl::StrJoin(ShortModelNames(), ", ")));
  return [o] { return Pull(*o); };
}

}  // namespace vericache::cli
