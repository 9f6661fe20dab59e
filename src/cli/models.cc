#include "cli/models.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/status_macros.h"
#include "cli/errors.h"
#include "hub/hub.h"
#include "vericache/prefixes.h"

namespace vericache::cli {

absl::StatusOr<std::string> ModelsFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/vericache/models";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return std::string(home) + "/.cache/vericache/models";
  return absl::FailedPreconditionError(
      "there is no models folder: set HOME or XDG_CACHE_HOME, or give -m a path");
}

absl::StatusOr<std::string> FindModel(const std::string& name_or_path) {
  if (name_or_path.empty())
    return UsageError("no model given: -m takes a GGUF file or a name from `vericache pull`");
  const absl::StatusOr<std::string> folder = ModelsFolder();
  // A path needs no models folder.
  if (!folder.ok() && access(name_or_path.c_str(), F_OK) == 0) return name_or_path;
  if (!folder.ok()) return folder.status();
  return ResolveModel(name_or_path, *folder);
}

ProgressWish WishOf(const ModelFlags& flags) {
  return flags.progress ? ProgressWish::kAlways : ProgressWish::kTerminalOnly;
}

std::string EnvironmentOf(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::unique_ptr<Engine>> LoadEngine(const ModelFlags& flags,
                                                   const PrefixFlags& prefix,
                                                   const std::string& draft_model) {
  EngineOptions options;
  VC_ASSIGN_OR_RETURN(options.model_path, FindModel(flags.model));
  if (!draft_model.empty()) {
    VC_ASSIGN_OR_RETURN(options.draft_model_path, FindModel(draft_model));
  }
  options.num_threads = flags.threads;
  options.context_length = flags.ctx;
  options.rope = flags.rope;
  options.isa = flags.isa;
  options.prefill_chunk = flags.chunk;
  options.kv_memory = flags.kv_memory;
  options.kv_dir = flags.kv_dir;
  options.kv_read_limit = flags.kv_read_limit;
  options.prefix_store = prefix.store;
  options.prefix_store_mode = prefix.mode;
  options.prefix_store_bytes = prefix.store_bytes;
  options.prefix_plan = prefix.plan;
  options.prefix_memory_bytes = prefix.memory_bytes;
  options.environment = EnvironmentOf;
  ProgressBar bar("load", ProgressUnit::kBytes, WishOf(flags));
  options.on_load = [&bar](uint64_t done, uint64_t total) {
    bar.Update(static_cast<int64_t>(done), static_cast<int64_t>(total));
  };
  options.on_notice = [](std::string_view text) {
    fmt::print(stderr, "vericache: note: {}\n", text);
  };
  VC_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Load(options));
  bar.Finish();
  const ModelInfo& info = engine->info();
  const std::string limit = info.context_length < info.model_context && flags.ctx == 0
                                ? fmt::format(" of {} (what memory allows)", info.model_context)
                                : "";
  const std::string rope = info.rope.scaling.empty() ? ""
                           : info.rope.scale == 0
                               ? fmt::format(", rope {}", info.rope.scaling)
                               : fmt::format(", rope {} x {}", info.rope.scaling, info.rope.scale);
  fmt::print(stderr, "model    {} ({}), context {}{}{}, {} thread{}, {}\n",
             OneLine(info.name.empty() ? options.model_path : info.name), info.architecture,
             info.context_length, limit, rope, info.num_threads, info.num_threads == 1 ? "" : "s",
             info.isa);
  if (!prefix.store.empty()) {
    const PrefixCacheStats stats = engine->prefix_stats();
    // Counting what a remote store holds would be a walk over the network.
    const std::string held =
        prefix.store.find("://") == prefix.store.npos
            ? fmt::format(": {} in {} blobs", FormatBytes(stats.store_bytes), stats.store_blobs)
            : "";
    fmt::print(stderr, "prefixes {}{}{}\n", OneLine(PrefixStoreName(prefix.store)), held,
               prefix.mode == "ro" ? ", read only" : "");
  }
  return engine;
}

}  // namespace vericache::cli
