// `vericache bench`: what prefill, plain decoding, verification and drafting cost on this machine,
// beside a plain read of memory. Depths are filled with synthetic K/V (vericache/benchmark.h).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status_macros.h"
#include "base/text.h"
#include "cli/bench_measure.h"
#include "cli/bench_table.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "cli/spec_list.h"
#include "vericache/benchmark.h"

namespace vericache::cli {
namespace {

constexpr int64_t kLengthMax = 1 << 20;
constexpr int kWidthMax = 257;  // the longest draft, and the token after it
constexpr size_t kListMax = 16;
// More waiting for a core than this is told: it is beyond the usual spread of repeats.
constexpr double kWaitShareMax = 0.05;
constexpr char kNone[] = "none";

// Memory of this process that is in RAM, or 0 if the system does not tell.
uint64_t ResidentBytes() {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    uint64_t kib = 0;
    if (key == "VmRSS:" && status >> kib) return kib << 10;
    status.ignore(256, '\n');
  }
  return 0;
}

// Seconds that this thread has been ready to run and waited for a core, or 0 if the system does
// not tell.
double WaitedSeconds() {
  std::ifstream schedstat("/proc/thread-self/schedstat");
  uint64_t ran_ns = 0, waited_ns = 0;
  schedstat >> ran_ns >> waited_ns;
  return static_cast<double>(waited_ns) * 1e-9;
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Measures, and says what share of the time other programs held the core.
absl::Status MeasureWatched(const BenchOptions& o, Engine* engine, Metrics* metrics) {
  const double start = NowSeconds(), waited = WaitedSeconds();
  VC_RETURN_IF_ERROR(MeasureAll(o, engine, metrics));
  const double share = (WaitedSeconds() - waited) / (NowSeconds() - start);
  metrics->Add("cpu_wait_share", share);
  if (share > kWaitShareMax)
    Notice(
        fmt::format("other programs held the core {:.0f} % of the time: speeds are too low, and "
                    "only ratios mean anything; run it again on an idle machine",
                    share * 100));
  return absl::OkStatus();
}

absl::Status CheckListLength(size_t length) {
  if (length <= kListMax) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("at most {} values", kListMax));
}

// Distinct numbers in [min, max], in ascending order.
template <typename Int>
absl::Status ParseNumbers(const std::string& text, int64_t min, int64_t max,
                          std::vector<Int>* numbers) {
  numbers->clear();
  for (const std::string_view part : Split(text, ',')) {
    int64_t number = 0;
    VC_RETURN_IF_ERROR(ParseInteger(std::string(part), min, max, &number));
    numbers->push_back(static_cast<Int>(number));
  }
  std::sort(numbers->begin(), numbers->end());
  numbers->erase(std::unique(numbers->begin(), numbers->end()), numbers->end());
  return CheckListLength(numbers->size());
}

absl::Status ParseSpecs(const std::string& text, std::vector<std::string>* specs) {
  specs->clear();
  if (text == kNone) return absl::OkStatus();
  VC_RETURN_IF_ERROR(ParseSpecList(text, specs));
  return CheckListLength(specs->size());
}

// Lowest and highest value of each metric that has any.
nlohmann::ordered_json SpreadJson(const Metrics& metrics) {
  nlohmann::ordered_json spread = nlohmann::ordered_json::object();
  for (const auto& [name, series] : metrics.all()) {
    if (!series.values.empty()) spread[name] = {series.Low(), series.High()};
  }
  return spread;
}

absl::Status RunBench(const BenchOptions& o) {
  Metrics metrics;
  const double start = NowSeconds();
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(o.model));
  const ModelInfo& info = engine->info();
  metrics.Add("load_s", NowSeconds() - start);
  metrics.Add("rss_bytes", static_cast<double>(ResidentBytes()));
  InstallInterruptHandler();
  VC_RETURN_IF_ERROR(MeasureWatched(o, engine.get(), &metrics));
  if (!o.json) {
    fmt::print("{}", BenchTable(o, info, metrics));
    return absl::OkStatus();
  }
  nlohmann::ordered_json json = {{"model", info.name},
                                 {"threads", info.num_threads},
                                 {"isa", info.isa},
                                 {"repeat", o.repeat},
                                 {"prefill", o.prefill},
                                 {"decode", o.decode},
                                 {"file_bytes", info.file_bytes},
                                 {"weight_bytes", info.weight_bytes},
                                 {"kv_bytes_per_token", info.kv_bytes_per_token}};
  for (const auto& [name, series] : metrics.all()) {
    if (series.values.empty()) {
      json[name] = nullptr;
    } else {
      json[name] = series.Median();
    }
  }
  json["spread"] = SpreadJson(metrics);
  fmt::print("{}\n", json.dump());
  return absl::OkStatus();
}

}  // namespace

CommandBody DeclareBench(Flags* flags) {
  auto o = std::make_shared<BenchOptions>();
  BenchOptions* const raw = o.get();
  flags->Integer("--prefill", "N", "Tokens of the measured prefill (default 512)", &o->prefill, 1,
                 kLengthMax);
  flags->Integer("--decode", "N", "Steps of decoding and drafting at each depth (default 32)",
                 &o->decode, 1, kLengthMax);
  flags->Custom("--depths", "LIST",
                "Tokens before the measured ones (default 0,8192; 0 is always measured)",
                [raw](const std::string& text) {
                  return ParseNumbers(text + ",0", 0, kLengthMax, &raw->depths);
                });
  flags->Custom("--widths", "LIST", "Positions of a verification, or none (default 1,4,8,16,32)",
                [raw](const std::string& text) {
                  raw->widths.clear();
                  return text == kNone ? absl::OkStatus()
                                       : ParseNumbers(text, 1, kWidthMax, &raw->widths);
                });
  flags->Custom("--draft-specs", "LIST",
                "Draft KVs to step on, or none (default sink:0.1+int4,sink:0.25+int4,int4)",
                [raw](const std::string& text) { return ParseSpecs(text, &raw->draft_specs); });
  flags->Custom("--replay", "FILES",
                "Traces of `run --trace`: their rounds at every depth, beside plain decoding",
                [raw](const std::string& text) {
                  VC_ASSIGN_OR_RETURN(raw->traces, ReadTraces(text));
                  return absl::OkStatus();
                });
  flags->Custom("--replay-draft", "SPEC",
                fmt::format("Draft KV of the replayed rounds (default {})", o->replay_draft),
                [raw](const std::string& text) {
                  raw->replay_draft = text;
                  return CanonicalDraftSpec(text).status();
                });
  flags->Switch("--prefill-depths", "Measure the prefill at every depth", &o->prefill_depths);
  flags->Integer("--repeat", "N", "Rounds, each of which measures everything once (default 3)",
                 &o->repeat, 1, 1000);
  flags->Switch("--json", "One JSON object of medians on stdout", &o->json);
  o->model.Declare(flags);
  flags->Examples(
      "  vericache bench -m smollm2-135m\n"
      "  vericache bench -m model.gguf --threads 2 --depths 0,8192,32000 --json\n"
      "  vericache bench -m model.gguf --widths none --draft-specs int8,sink:0.5+int4\n"
      "  vericache bench -m model.gguf --depths 16384 --replay trace.jsonl\n"
      "\n"
      "Depths are filled with random K/V, not with a text, so 32,000 tokens take seconds; the\n"
      "draft KV's choice of keys does not matter for the time of a step. A depth that does not\n"
      "fit into the context is left out (null in the JSON). Times vary with the neighbours of a\n"
      "shared machine: compare numbers of one run; cpu_wait_share is the share of the time that\n"
      "other programs held the core. `vericache compare` measures real texts.\n"
      "A replay runs whole rounds on the random K/V; how many tokens hold is the trace's.");
  return [o] { return RunBench(*o); };
}

}  // namespace vericache::cli
