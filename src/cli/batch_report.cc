#include "cli/batch_report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/progress.h"

namespace vericache::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr struct {
  TimelineEvent::Lane lane;
  int process;
  const char* name;
} kLanes[] = {{TimelineEvent::Lane::kPass, 1, "passes"},
              {TimelineEvent::Lane::kRequest, 2, "requests"},
              {TimelineEvent::Lane::kFetch, 3, "fetches"}};

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Whole microseconds with three digits behind the point.
double Microseconds(double seconds) { return std::round(seconds * 1e9) * 1e-3; }

double Rate(const BatchReport& r) {
  return r.seconds > 0 ? static_cast<double>(r.num_emitted) / r.seconds : 0;
}

std::string NameEvent(const char* what, int process, int64_t thread, const std::string& name) {
  return Dump(
      {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}});
}

std::string EventLine(const TimelineEvent& event, int process) {
  Json args = Json::object();
  if (event.lane == TimelineEvent::Lane::kFetch) {
    args["bytes"] = event.bytes;
  } else {
    args["rows"] = event.rows;
    if (event.name == "verify") args["accepted"] = event.accepted;
    if (event.stall_s > 0) args["stall_ms"] = Microseconds(event.stall_s) * 1e-3;
  }
  const bool is_pass = event.lane == TimelineEvent::Lane::kPass;
  return Dump({{"name", event.name},
               {"ph", "X"},
               {"ts", Microseconds(event.begin_s)},
               {"dur", Microseconds(std::fmax(0, event.end_s - event.begin_s))},
               {"pid", process},
               {"tid", is_pass ? 0 : event.request + 1},
               {"args", std::move(args)}});
}

}  // namespace

std::string BatchSummary(const BatchCounts& c, const BatchReport& r) {
  const auto unless_none = [](int64_t count, const char* what) {
    return count > 0 ? fmt::format(", {} {}", count, what) : std::string();
  };
  std::string text = fmt::format(
      "batch    {} request{}: {} computed{}{}; {}\n", c.requests, c.requests == 1 ? "" : "s",
      c.computed, unless_none(static_cast<int64_t>(c.kept), "kept"),
      unless_none(static_cast<int64_t>(c.failed), "failed"), FormatSeconds(r.seconds));
  if (r.num_passes == 0) return text;
  text += fmt::format("answers  {} tokens, {:.1f} tok/s; {} passes, {} at once at most{}\n",
                      r.num_emitted, Rate(r), r.num_passes, r.most_running,
                      unless_none(r.num_preempted, "preempted"));
  if (r.peak_kv_bytes > 0)
    text += fmt::format("memory   {} for KV at most; {} read back in {}, {} waited for\n",
                        FormatBytes(r.peak_kv_bytes), FormatBytes(r.fetched_bytes),
                        FormatSeconds(r.fetch_s), FormatSeconds(r.stall_s));
  return text;
}

std::string BatchStatsJson(const BatchCounts& c, const BatchReport& r) {
  return Dump({{"requests", c.requests},
               {"computed", c.computed},
               {"kept", c.kept},
               {"failed", c.failed},
               {"seconds", r.seconds},
               {"tokens", r.num_emitted},
               {"tokens_per_s", Rate(r)},
               {"passes", r.num_passes},
               {"preempted", r.num_preempted},
               {"most_running", r.most_running},
               {"pass_s", r.pass_s},
               {"stall_s", r.stall_s},
               {"fetch_s", r.fetch_s},
               {"fetched_bytes", r.fetched_bytes},
               {"peak_kv_bytes", r.peak_kv_bytes},
               {"prediction_error", r.prediction_error}}) +
         "\n";
}

std::string ChromeTrace(const std::vector<TimelineEvent>& timeline,
                        const std::vector<std::string>& names) {
  std::string head, body;
  std::set<std::pair<int, int64_t>> threads;
  for (const auto& lane : kLanes)
    head += NameEvent("process_name", lane.process, 0, lane.name) + ",\n";
  for (const TimelineEvent& event : timeline) {
    const int process = static_cast<int>(event.lane) + 1;
    if (event.lane != TimelineEvent::Lane::kPass) threads.emplace(process, event.request);
    body += (body.empty() ? "" : ",\n") + EventLine(event, process);
  }
  for (const auto& [process, request] : threads)
    if (request >= 0 && static_cast<size_t>(request) < names.size())
      head += NameEvent("thread_name", process, request + 1, names[request]) + ",\n";
  if (body.empty()) head.resize(head.size() - 2);
  return "[\n" + head + body + "\n]\n";
}

}  // namespace vericache::cli
