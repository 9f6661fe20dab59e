// `vericache bench`: plain prefill and decoding speed, on the full KV alone.
//
// Decoding at a depth stands on a prefill of that many tokens, done once; each repeat gets its own
// copy of the session. Every repeat must give the same tokens, else there is no number.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/interrupt.h"
#include "cli/models.h"

namespace vericache::cli {
namespace {

constexpr int64_t kLengthMax = 1 << 20;
constexpr size_t kDepthsMax = 16;
// Ordinary words: their token ids are valid and ordinary in every vocabulary.
constexpr char kText[] =
    "The river rose in the night and by the morning the lower fields were under water. He walked "
    "along the wall with a lantern, counting posts, and wrote each number into a small book: "
    "twelve, thirteen, fourteen. Nobody had asked him to. In the village they said that the old "
    "bridge would hold, as it had held in 1847, 1902 and 1954.";

struct BenchOptions {
  ModelFlags model;
  int64_t prefill = 512, decode = 32;
  int repeat = 3;
  std::vector<int64_t> depths = {0, 8192};
  bool json = false;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

absl::Status ParseDepths(const std::string& text, std::vector<int64_t>* depths) {
  depths->clear();
  for (const std::string_view part : Split(text, ',')) {
    int64_t depth = 0;
    VC_RETURN_IF_ERROR(ParseInteger(std::string(part), 0, kLengthMax, &depth));
    depths->push_back(depth);
  }
  if (depths->size() > kDepthsMax)
    return absl::InvalidArgumentError(fmt::format("at most {} depths", kDepthsMax));
  return absl::OkStatus();
}

class Bench {
 public:
  Bench(const BenchOptions& options, Engine* engine) : o_(options), engine_(engine) {}

  // Token ids to feed, the same in every run: picks of a fixed linear congruential generator.
  absl::Status MakeIds(int64_t count) {
    Request request;
    request.prompt = kText;
    VC_ASSIGN_OR_RETURN(const std::vector<int32_t> pool, engine_->TokenizePrompt(request));
    uint64_t state = 1;
    ids_.clear();
    for (int64_t i = 0; i < count; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth, MMIX
      ids_.push_back(pool[(state >> 33) % pool.size()]);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> PrefillSpeed() {
    std::vector<double> speeds;
    for (int i = 0; i < o_.repeat; ++i) {
      const double start = Seconds();
      VC_RETURN_IF_ERROR(engine_->Prefill(Prompt(o_.prefill), Stoppable()).status());
      speeds.push_back(static_cast<double>(o_.prefill) / (Seconds() - start));
    }
    return Median(speeds);
  }

  // REQUIRES: depth + decode + 1 <= context_length
  absl::StatusOr<double> DecodeSpeed(int64_t depth) {
    // A prompt has at least one token; that one is decoded from, so "depth" tokens lie before it.
    Request request = Prompt(depth + 1);
    request.max_tokens = o_.decode + 1;  // the first token comes out of the prefill
    Session session = engine_->NewSession();
    if (depth > 0) {
      VC_ASSIGN_OR_RETURN(session, engine_->Prefill(Prompt(depth), Stoppable()));
    }
    std::vector<double> speeds;
    std::string hash;
    for (int i = 0; i < o_.repeat; ++i) {
      Session copy = session.Fork();
      const double start = Seconds();
      VC_ASSIGN_OR_RETURN(const Completion c, engine_->Generate(request, &copy, Stoppable()));
      const double seconds = Seconds() - start - c.stats.prefill_s;
      if (Interrupted()) return absl::CancelledError("stopped");
      if (c.usage.completion_tokens != o_.decode + 1 || c.usage.cached_tokens != depth ||
          (!hash.empty() && hash != c.logits_hash))
        return absl::InternalError(fmt::format(
            "repeat {} at depth {} did other work than the first: no number", i + 1, depth));
      hash = c.logits_hash;
      speeds.push_back(static_cast<double>(o_.decode) / seconds);
    }
    return Median(speeds);
  }

 private:
  Request Prompt(int64_t count) const {
    Request request;
    request.prompt_token_ids.assign(ids_.begin(), ids_.begin() + count);
    request.draft = "off";
    request.ignore_eos = true;
    return request;
  }

  static Callbacks Stoppable() {
    Callbacks callbacks;
    callbacks.on_prefill = [](int64_t, int64_t) { return !Interrupted(); };
    callbacks.on_text = [](std::string_view) { return !Interrupted(); };
    return callbacks;
  }

  const BenchOptions& o_;
  Engine* const engine_;
  std::vector<int32_t> ids_;
};

absl::Status RunBench(const BenchOptions& o) {
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(o.model));
  InstallInterruptHandler();
  const int64_t context = engine->info().context_length;
  const int64_t depth_max = *std::max_element(o.depths.begin(), o.depths.end());
  if (o.prefill >= context)
    return absl::OutOfRangeError(
        fmt::format("--prefill {} does not fit into a context of {}", o.prefill, context));
  Bench bench(o, engine.get());
  VC_RETURN_IF_ERROR(bench.MakeIds(std::max(o.prefill, depth_max + 1)));
  nlohmann::ordered_json json = {
      {"model", engine->info().name}, {"threads", engine->info().num_threads},
      {"isa", engine->info().isa},    {"repeat", o.repeat},
      {"prefill", o.prefill},         {"decode", o.decode}};
  VC_ASSIGN_OR_RETURN(const double prefill_tps, bench.PrefillSpeed());
  json["prefill_tps"] = prefill_tps;
  if (!o.json) fmt::print("prefill of {:>6} tokens  {:10.2f} tok/s\n", o.prefill, prefill_tps);
  for (int64_t depth : o.depths) {
    const std::string key = fmt::format("decode_tps_{}", depth);
    if (depth + o.decode + 2 > context) {
      Notice(fmt::format("depth {} and {} tokens do not fit into a context of {}: left out", depth,
                         o.decode, context));
      json[key] = nullptr;
      continue;
    }
    VC_ASSIGN_OR_RETURN(const double tps, bench.DecodeSpeed(depth));
    json[key] = tps;
    if (!o.json) fmt::print("decode after {:>6} tokens {:9.2f} tok/s\n", depth, tps);
    std::fflush(stdout);
  }
  if (o.json) fmt::print("{}\n", json.dump());
  return absl::OkStatus();
}

}  // namespace

CommandBody DeclareBench(Flags* flags) {
  auto o = std::make_shared<BenchOptions>();
  flags->Integer("--prefill", "N", "Tokens of the measured prefill (default 512)", &o->prefill, 1,
                 kLengthMax);
  flags->Integer("--decode", "N", "Tokens decoded at each depth (default 32)", &o->decode, 1,
                 kLengthMax);
  flags->Custom(
      "--depths", "LIST", "Tokens before the decoded ones (default 0,8192)",
      [raw = o.get()](const std::string& text) { return ParseDepths(text, &raw->depths); });
  flags->Integer("--repeat", "N", "Repeats; the median is printed (default 3)", &o->repeat, 1,
                 1000);
  flags->Switch("--json", "One JSON object on stdout", &o->json);
  o->model.Declare(flags);
  flags->Examples(
      "  vericache bench -m smollm2-135m\n"
      "  vericache bench -m model.gguf --threads 2 --depths 0,2048,8192 --json\n"
      "\n"
      "Measures plain decoding on the full KV; `vericache compare` measures drafting. A depth "
      "that\n"
      "does not fit into the context is left out (null in the JSON).");
  return [o] { return RunBench(*o); };
}

}  // namespace vericache::cli
