// The metrics of `vericache bench` as tables for people.
#pragma once

#include <string>

#include "cli/bench_measure.h"
#include "cli/bench_metrics.h"
#include "vericache/stats.h"

namespace vericache::cli {

std::string BenchTable(const BenchOptions& options, const ModelInfo& info, const Metrics& metrics);

}  // namespace vericache::cli
