#include "cli/bench_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/status_macros.h"
#include "cli/errors.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "cli/progress.h"
#include "vericache/benchmark.h"

namespace vericache::cli {
namespace {

constexpr int kReadTries = 3;

int64_t MostWork(const BenchOptions& o) {
  int64_t work = o.decode;
  for (int width : o.widths) work = std::max<int64_t>(work, width);
  for (const ReplayTrace& trace : o.traces) work = std::max(work, trace.most_work());
  return o.prefill_depths ? std::max(work, o.prefill) : work;
}

class Measurer {
 public:
  Measurer(const BenchOptions& options, const ModelInfo& info, Benchmark* benchmark,
           Metrics* metrics)
      : o_(options),
        info_(info),
        benchmark_(benchmark),
        metrics_(metrics),
        bar_("bench", ProgressUnit::kMeasurements, WishOf(options.model)) {
    for (int64_t depth : o_.depths)
      if (DepthFits(o_, depth, info_.context_length)) depths_.push_back(depth);
    int64_t a_round = 2 + static_cast<int64_t>(depths_.size() * (1 + o_.widths.size()));
    for (int64_t depth : depths_) {
      if (depth == 0) continue;
      a_round += static_cast<int64_t>(o_.draft_specs.size()) + o_.prefill_depths;
      if (!o_.traces.empty()) a_round += 1 + static_cast<int64_t>(o_.traces.size());
    }
    total_ = a_round * o_.repeat;
  }

  absl::Status Round() {
    VC_ASSIGN_OR_RETURN(const double read_gbps, benchmark_->ReadGbps(kReadTries));
    metrics_->Add("read_gbps", read_gbps);
    Progress();
    double first_step_ms = 0;
    for (int64_t depth : depths_) {
      VC_ASSIGN_OR_RETURN(const double step_ms, Decode(depth, read_gbps));
      if (depth == 0) first_step_ms = step_ms;
    }
    VC_RETURN_IF_ERROR(Prefill(0, "prefill_tps"));
    for (int64_t depth : depths_) {
      for (int width : o_.widths) VC_RETURN_IF_ERROR(Verify(depth, width));
      if (depth == 0) continue;  // nothing to compress, and the prefill is known
      for (const std::string& spec : o_.draft_specs)
        VC_RETURN_IF_ERROR(Draft(depth, spec, first_step_ms));
      if (o_.prefill_depths) VC_RETURN_IF_ERROR(Prefill(depth, DepthName("prefill_tps", depth)));
      if (!o_.traces.empty()) VC_RETURN_IF_ERROR(Replay(depth));
    }
    return absl::OkStatus();
  }

 private:
  // Milliseconds of one step.
  absl::StatusOr<double> Decode(int64_t depth, double read_gbps) {
    VC_ASSIGN_OR_RETURN(const WorkSample work, benchmark_->Decode(depth, o_.decode));
    VC_RETURN_IF_ERROR(SameOutputs(DepthName("decode", depth), work));
    const double step_s = work.seconds / static_cast<double>(o_.decode);
    metrics_->Add(DepthName("decode_tps", depth), 1 / step_s);
    metrics_->Add(DepthName("decode_read_share", depth),
                  BytesPerStep(o_, info_, depth) / step_s / (read_gbps * 1e9));
    return step_s * 1e3;
  }

  absl::Status Prefill(int64_t depth, const std::string& name) {
    VC_ASSIGN_OR_RETURN(const WorkSample work, benchmark_->Prefill(depth, o_.prefill));
    VC_RETURN_IF_ERROR(SameOutputs(name, work));
    metrics_->Add(name, static_cast<double>(o_.prefill) / work.seconds);
    return absl::OkStatus();
  }

  absl::Status Verify(int64_t depth, int width) {
    VC_ASSIGN_OR_RETURN(const WorkSample work, benchmark_->Verify(depth, width));
    VC_RETURN_IF_ERROR(SameOutputs(WidthName("verify", depth, width), work));
    metrics_->Add(WidthName("verify_ms", depth, width), work.seconds * 1e3);
    metrics_->Add(WidthName("verify_ms_per_position", depth, width), work.seconds * 1e3 / width);
    return absl::OkStatus();
  }

  absl::Status Draft(int64_t depth, const std::string& spec, double first_step_ms) {
    VC_ASSIGN_OR_RETURN(const DraftSample draft, benchmark_->Draft(depth, spec, o_.decode));
    VC_RETURN_IF_ERROR(SameOutputs(DraftName("draft", depth, spec), draft.work));
    const double step_ms = draft.work.seconds * 1e3 / static_cast<double>(o_.decode);
    metrics_->Add(DraftName("draft_step_ms", depth, spec), step_ms);
    metrics_->Add(DraftName("draft_step_ratio", depth, spec), step_ms / first_step_ms);
    metrics_->Add(DraftName("draft_kept_fraction", depth, spec), draft.kept_fraction);
    return absl::OkStatus();
  }

  // Plain decoding of as many tokens as the longest trace emits, then every trace.
  absl::Status Replay(int64_t depth) {
    int64_t most = 0;
    for (const ReplayTrace& trace : o_.traces) most = std::max(most, trace.num_tokens());
    VC_ASSIGN_OR_RETURN(const WorkSample plain, benchmark_->Decode(depth, most));
    VC_RETURN_IF_ERROR(SameOutputs(DepthName("replay_plain", depth), plain));
    const double plain_tps = static_cast<double>(most) / plain.seconds;
    metrics_->Add(DepthName("replay_plain_tps", depth), plain_tps);
    for (const ReplayTrace& trace : o_.traces) {
      VC_ASSIGN_OR_RETURN(const RoundsSample rounds,
                          benchmark_->Rounds(depth, o_.replay_draft, trace.rounds));
      VC_RETURN_IF_ERROR(SameOutputs(DraftName("replay", depth, trace.name), rounds.work));
      const double tps = static_cast<double>(rounds.num_tokens) / rounds.work.seconds;
      metrics_->Add(DraftName("replay_tps", depth, trace.name), tps);
      metrics_->Add(DraftName("replay_speedup", depth, trace.name), tps / plain_tps);
      metrics_->Add(DraftName("replay_draft_s", depth, trace.name), rounds.draft_s);
      metrics_->Add(DraftName("replay_verify_s", depth, trace.name), rounds.verify_s);
    }
    return absl::OkStatus();
  }

  // A repeat that computed something else is not a repeat.
  absl::Status SameOutputs(const std::string& what, const WorkSample& work) {
    Progress();
    const auto [known, is_new] = hashes_.emplace(what, work.output_hash);
    if (is_new || known->second == work.output_hash) return absl::OkStatus();
    return absl::InternalError(
        fmt::format("{}: a repeat gave other outputs than the first: no number", what));
  }

  void Progress() { bar_.Update(++done_, total_); }

  const BenchOptions& o_;
  const ModelInfo& info_;
  Benchmark* const benchmark_;
  Metrics* const metrics_;
  std::vector<int64_t> depths_;  // those that fit
  std::map<std::string, std::string> hashes_;
  ProgressBar bar_;
  int64_t done_ = 0, total_ = 0;
};

// Fixes the order of the metrics, and the names of those that stay empty.
void DeclareAll(const BenchOptions& o, Metrics* metrics) {
  metrics->Declare("read_gbps");
  metrics->Declare("prefill_tps");
  for (int64_t depth : o.depths) {
    metrics->Declare(DepthName("decode_tps", depth));
    metrics->Declare(DepthName("decode_read_share", depth));
    if (depth > 0 && o.prefill_depths) metrics->Declare(DepthName("prefill_tps", depth));
    for (int width : o.widths)
      for (const char* what : {"verify_ms", "verify_ms_per_position"})
        metrics->Declare(WidthName(what, depth, width));
    if (depth == 0) continue;
    for (const std::string& spec : o.draft_specs)
      for (const char* what : {"draft_step_ms", "draft_step_ratio", "draft_kept_fraction"})
        metrics->Declare(DraftName(what, depth, spec));
    if (!o.traces.empty()) metrics->Declare(DepthName("replay_plain_tps", depth));
    for (const ReplayTrace& trace : o.traces)
      for (const char* what : {"replay_tps", "replay_speedup", "replay_draft_s", "replay_verify_s"})
        metrics->Declare(DraftName(what, depth, trace.name));
  }
}

}  // namespace

bool DepthFits(const BenchOptions& options, int64_t depth, int64_t context_length) {
  return depth + MostWork(options) < context_length;
}

double BytesPerStep(const BenchOptions& options, const ModelInfo& info, int64_t depth) {
  const double num_tokens = static_cast<double>(depth) + static_cast<double>(options.decode) / 2;
  return static_cast<double>(info.weight_bytes) +
         num_tokens * static_cast<double>(info.kv_bytes_per_token);
}

absl::Status MeasureAll(const BenchOptions& options, Engine* engine, Metrics* metrics) {
  const ModelInfo& info = engine->info();
  const int64_t context = info.context_length;
  if (options.prefill >= context)
    return absl::OutOfRangeError(
        fmt::format("--prefill {} does not fit into a context of {}", options.prefill, context));
  DeclareAll(options, metrics);
  BenchmarkOptions benchmark_options;
  benchmark_options.keep_going = [] { return !Interrupted(); };
  for (int64_t depth : options.depths) {
    if (DepthFits(options, depth, context)) {
      benchmark_options.num_tokens = std::max(benchmark_options.num_tokens, depth);
      continue;
    }
    Notice(fmt::format("depth {} and {} tokens do not fit into a context of {}: left out", depth,
                       MostWork(options), context));
  }
  VC_ASSIGN_OR_RETURN(Benchmark benchmark, Benchmark::Create(engine, benchmark_options));
  Measurer measurer(options, info, &benchmark, metrics);
  for (int i = 0; i < options.repeat; ++i) VC_RETURN_IF_ERROR(measurer.Round());
  return absl::OkStatus();
}

}  // namespace vericache::cli
