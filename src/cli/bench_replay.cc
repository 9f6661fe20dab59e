#include "cli/bench_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "base/text.h"
#include "base/types.h"
#include "cli/files.h"
#include "cli/request_line.h"

namespace vericache::cli {
namespace {

using Json = nlohmann::json;

// A line is an object of numbers and texts.
constexpr int kTraceDepthMax = 2;

bool GetCount(const Json& object, const char* field, int max, int* count) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_number_unsigned() || it->get<uint64_t>() > uint64_t(max))
    return false;
  *count = it->get<int>();
  return true;
}

}  // namespace

int64_t ReplayTrace::num_tokens() const {
  int64_t sum = 0;
  for (const TraceRound& round : rounds) sum += round.accepted + 1;
  return sum;
}

int64_t ReplayTrace::most_work() const {
  int most = 0;
  for (const TraceRound& round : rounds) most = std::max(most, round.drafted);
  return num_tokens() + most;
}

absl::StatusOr<std::vector<TraceRound>> ParseTrace(std::string_view text) {
  std::vector<TraceRound> rounds;
  VC_RETURN_IF_ERROR(ForEachLine(text, [&](size_t number, std::string_view line) {
    const auto limit_depth = [](int depth, Json::parse_event_t, Json&) {
      return depth <= kTraceDepthMax;
    };
    const Json json = Json::parse(line, limit_depth, /*allow_exceptions=*/false);
    TraceRound round;
    if (!json.is_object() || !GetCount(json, "drafted", kMaxDraftLen, &round.drafted) ||
        !GetCount(json, "accepted", round.drafted, &round.accepted))
      return absl::InvalidArgumentError(
          fmt::format("line {} is no round: expected what `vericache run --trace` writes", number));
    rounds.push_back(round);
    return absl::OkStatus();
  }));
  if (rounds.empty()) return absl::InvalidArgumentError("it holds no rounds");
  return rounds;
}

absl::StatusOr<std::vector<ReplayTrace>> ReadTraces(const std::string& list) {
  std::vector<ReplayTrace> traces;
  for (const std::string_view part : Split(list, ',')) {
    const std::string path(part);
    ReplayTrace trace;
    trace.name = std::filesystem::path(path).stem().string();
    VC_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kJsonBytesMax));
    absl::StatusOr<std::vector<TraceRound>> rounds = ParseTrace(text);
    if (!rounds.ok())
      return absl::InvalidArgumentError(
          fmt::format("{}: {}", path, std::string(rounds.status().message())));
    trace.rounds = *std::move(rounds);
    for (const ReplayTrace& other : traces)
      if (other.name == trace.name)
        return absl::InvalidArgumentError(
            fmt::format("two traces are named {}: rename one", trace.name));
    traces.push_back(std::move(trace));
  }
  return traces;
}

}  // namespace vericache::cli
