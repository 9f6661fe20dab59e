// Many requests at once, and what happened when.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "vericache/stats.h"

namespace vericache {

// A bar of a timeline: what the machine did, from the start of the batch on.
struct TimelineEvent {
  enum class Lane : uint8_t {
    kPass,     // one forward pass, with all it holds
    kRequest,  // a request's part in a pass
    kFetch,    // full KV of a request on its way from the spill file
  };
  Lane lane = Lane::kPass;
  int64_t request = 0;  // index in the batch; kPass: 0
  std::string name;     // "prefill", "draft", "verify", "plain", "fetch", or a summary of the pass
  double begin_s = 0;
  double end_s = 0;
  int64_t rows = 0;      // kPass, kRequest
  int64_t accepted = 0;  // kRequest: of a verification
  int64_t bytes = 0;     // kFetch
  double stall_s = 0;    // kPass: of it, waiting for K/V
};

struct BatchOptions {
  // Verifications wait for each other and their transfers begin with them: to be measured against.
  bool lock_step = false;
  bool timeline = false;   // fill BatchReport::timeline
  int max_running = 64;    // requests that are worked on at once
  double max_burst_s = 0;  // time to the next verified token is capped; 0: no cap
  // An engine that has run no pass yet times a few first (ServiceOptions::warm_up).
  bool warm_up = false;
  // After each finished or failed request, in order of finishing: its index and what it became.
  // False stops the batch; what is unfinished ends as kCancelled and is not told.
  std::function<bool(size_t idx, const absl::StatusOr<Completion>& result)> on_finished;
  // Tokens emitted so far, over all requests: after each pass, and again and again while nothing
  // but a prefix store is waited for. False stops the batch.
  std::function<bool(int64_t num_emitted)> on_progress;
};

struct BatchReport {
  double seconds = 0;
  int64_t num_passes = 0;
  int64_t num_emitted = 0;
  int64_t num_preempted = 0;
  int64_t num_staging_waits = 0;  // a request sat a pass out: no memory to read its K/V through
  int most_running = 0;
  double pass_s = 0;   // sum of all passes
  double stall_s = 0;  // of it, waiting for the spill file
  double fetch_s = 0;  // sum of transfer times
  uint64_t fetched_bytes = 0;
  uint64_t peak_kv_bytes = 0;   // draft KV, blocks in RAM and staging in use
  double prediction_error = 0;  // mean |predicted / measured - 1| of passes, by the cost model
  std::vector<TimelineEvent> timeline;
};

}  // namespace vericache
