// What a batch did, for people, scripts and timeline viewers.
#pragma once

#include <string>
#include <vector>

#include "vericache/batch.h"

namespace vericache::cli {

struct BatchCounts {
  size_t requests = 0;
  size_t kept = 0;      // answers from an earlier run
  size_t computed = 0;  // in this one
  size_t failed = 0;
};

// Lines for stderr.
std::string BatchSummary(const BatchCounts& counts, const BatchReport& report);
// One JSON object, with its line break.
std::string BatchStatsJson(const BatchCounts& counts, const BatchReport& report);

// The timeline as Chrome's trace events, for chrome://tracing, Perfetto and the like: a JSON array
// of complete events ("ph": "X", times in microseconds) behind the names of their lanes ("M").
// Lanes are processes: 1 passes, 2 requests, 3 fetches; in 2 and 3 thread i is request i - 1 of
// `names`, to which TimelineEvent::request points.
// SOURCE: "Trace Event Format", Google, 2016.
std::string ChromeTrace(const std::vector<TimelineEvent>& timeline,
                        const std::vector<std::string>& names);

}  // namespace vericache::cli
