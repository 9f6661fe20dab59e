// What `vericache bench` measures, and in which order.
//
// Round i measures everything once before round i + 1 begins: a machine that slows down for a
// minute then slows every variant, and ratios within a round stay meaningful.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/args.h"
#include "cli/bench_metrics.h"
#include "cli/bench_replay.h"
#include "vericache/engine.h"

namespace vericache::cli {

struct BenchOptions {
  ModelFlags model;
  int64_t prefill = 512, decode = 32;
  int repeat = 3;
  std::vector<int64_t> depths = {0, 8192};
  std::vector<int> widths = {1, 4, 8, 16, 32};
  std::vector<std::string> draft_specs = {"sink:0.1+int4", "sink:0.25+int4", "int4"};
  std::vector<ReplayTrace> traces;  // gone through at every depth above 0
  std::string replay_draft = Request().draft;
  bool prefill_depths = false;  // measure the prefill at every depth
  bool json = false;
};

// True if all that is measured at `depth` fits into the context.
bool DepthFits(const BenchOptions& options, int64_t depth, int64_t context_length);

// Bytes of weights and of K/V that a plain step at `depth` reads, on the mean of the decoded ones.
double BytesPerStep(const BenchOptions& options, const ModelInfo& info, int64_t depth);

// Fills `metrics`; those of depths that do not fit are declared and stay empty.
// ERRORS: kCancelled (Ctrl-C), kInternal (repeats differ in their outputs), those of Benchmark.
absl::Status MeasureAll(const BenchOptions& options, Engine* engine, Metrics* metrics);

}  // namespace vericache::cli
