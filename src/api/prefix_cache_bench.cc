// Time to the first token: cold, from RAM, from the prefix store after a restart, with and without
// the kernel's copy of the files; and what drafting does afterwards.
//
//   prefix_cache_bench MODEL.gguf TEXT_FILE FOLDER [NUM_TOKENS [REPEATS]]
//
// FOLDER is emptied. Every answer is compared with the cold one before its time counts.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "vericache/engine.h"

namespace vericache {
namespace {

namespace fs = std::filesystem;

struct Bench {
  EngineOptions options;
  Request request;
  int repeats = 5;
  Completion cold;

  std::unique_ptr<Engine> Load() const {
    auto engine = Engine::Load(options);
    if (!engine.ok()) std::fprintf(stderr, "%s\n", std::string(engine.status().message()).c_str());
    VC_CHECK(engine.ok());
    return *std::move(engine);
  }

  // Seconds to the first token.
  double Run(Engine* engine, Completion* out) const {
    auto completion = engine->Generate(request);
    VC_CHECK(completion.ok());
    if (!cold.token_ids.empty()) {
      VC_CHECK(completion->token_ids == cold.token_ids);
      VC_CHECK(completion->logits_hash == cold.logits_hash);
    }
    engine->WaitForPrefixWrites();
    *out = *std::move(completion);
    return out->stats.prefill_s;
  }

  void Report(const char* name, std::vector<double> seconds, const Completion& c) const {
    std::sort(seconds.begin(), seconds.end());
    std::printf(
        "%-28s %8.3f s (%.3f to %.3f)  cached %6lld  rounds %3lld  accepted %3lld of %lld\n", name,
        seconds[seconds.size() / 2], seconds.front(), seconds.back(),
        static_cast<long long>(c.usage.cached_tokens), static_cast<long long>(c.stats.rounds),
        static_cast<long long>(c.stats.accepted), static_cast<long long>(c.stats.drafted));
    std::fflush(stdout);
  }
};

void DropFromPageCache(const fs::path& folder) {
  sync();
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const int fd = open(entry.path().c_str(), O_RDONLY);
    if (fd < 0) continue;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
  }
}

void Main(const char* model, const char* text_file, const fs::path& folder, int64_t num_tokens,
          int repeats) {
  Bench bench;
  bench.repeats = repeats;
  bench.options.model_path = model;
  fs::remove_all(folder);
  std::ifstream in(text_file);
  bench.request.prompt.assign(std::istreambuf_iterator<char>(in), {});
  bench.request.max_tokens = 64;
  bench.options.prefix_memory_bytes = uint64_t{2} << 30;
  Completion c;
  {
    const auto engine = bench.Load();
    auto ids = engine->TokenizePrompt(bench.request);
    VC_CHECK(ids.ok() && static_cast<int64_t>(ids->size()) >= num_tokens);
    ids->resize(static_cast<size_t>(num_tokens));
    bench.request.prompt.clear();
    bench.request.prompt_token_ids = *std::move(ids);
    const double cold_s = bench.Run(engine.get(), &bench.cold);
    bench.Report("cold", {cold_s}, bench.cold);
    std::vector<double> warm;
    for (int i = 0; i < bench.repeats; ++i) warm.push_back(bench.Run(engine.get(), &c));
    bench.Report("from RAM", warm, c);
  }
  bench.options.prefix_memory_bytes = 0;
  bench.options.prefix_store = folder;
  {
    const auto engine = bench.Load();
    bench.Report("cold, and written", {bench.Run(engine.get(), &c)}, c);
  }
  for (bool in_page_cache : {true, false}) {
    std::vector<double> warm;
    for (int i = 0; i < bench.repeats; ++i) {
      const auto engine = bench.Load();
      if (!in_page_cache) DropFromPageCache(folder);
      warm.push_back(bench.Run(engine.get(), &c));
    }
    bench.Report(in_page_cache ? "from the store, page cache" : "from the store, disk", warm, c);
  }
}

}  // namespace
}  // namespace vericache

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s MODEL.gguf TEXT_FILE FOLDER [NUM_TOKENS [REPEATS]]\n", argv[0]);
    return 2;
  }
  vericache::Main(argv[1], argv[2], argv[3], argc > 4 ? std::atoll(argv[4]) : 4096,
                  argc > 5 ? std::atoi(argv[5]) : 5);
  return 0;
}
