#include "cli/batch_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace vericache::cli {
namespace {

using Json = nlohmann::json;
using Lane = TimelineEvent::Lane;

TEST(ChromeTrace, HasEveryEventInItsLane) {
  const std::vector<TimelineEvent> timeline = {{Lane::kRequest, 1, "verify", 0.5, 1.25, 7, 3, 0},
                                               {Lane::kFetch, 1, "fetch", 0.25, 0.75, 7, 3, 4096},
                                               {Lane::kPass, 0, "verify 1", 0.5, 1.25, 7, 0, 0}};
  const Json trace = Json::parse(ChromeTrace(timeline, {"a", "\xff\"b"}));
  std::vector<Json> events;
  for (const Json& event : trace)
    if (event["ph"] == "X") events.push_back(event);
  ASSERT_EQ(events.size(), 3);
  EXPECT_EQ(events[0], Json::parse(R"({"name": "verify", "ph": "X", "ts": 5e5, "dur": 7.5e5,
      "pid": 2, "tid": 2, "args": {"rows": 7, "accepted": 3}})"));
  EXPECT_EQ(events[1], Json::parse(R"({"name": "fetch", "ph": "X", "ts": 2.5e5, "dur": 5e5,
      "pid": 3, "tid": 2, "args": {"bytes": 4096}})"));
  EXPECT_EQ(events[2]["pid"], 1);
  EXPECT_EQ(events[2]["tid"], 0);
  std::vector<std::string> names;
  for (const Json& event : trace)
    if (event["ph"] == "M") names.push_back(event["args"]["name"]);
  EXPECT_THAT(names, testing::ElementsAre("passes", "requests", "fetches", "\xef\xbf\xbd\"b",
                                          "\xef\xbf\xbd\"b"));
  EXPECT_EQ(Json::parse(ChromeTrace({}, {})).size(), 3);
}

TEST(BatchStatsJson, IsOneObject) {
  BatchReport report;
  report.seconds = 2;
  report.num_emitted = 30;
  const Json stats = Json::parse(BatchStatsJson({5, 2, 2, 1}, report));
  EXPECT_EQ(stats["requests"], 5);
  EXPECT_EQ(stats["kept"], 2);
  EXPECT_EQ(stats["failed"], 1);
  EXPECT_EQ(stats["tokens_per_s"], 15);
}

TEST(BatchSummary, LeavesOutWhatDidNotHappen) {
  BatchReport report;
  EXPECT_EQ(BatchSummary({3, 3, 0, 0}, report), "batch    3 requests: 0 computed, 3 kept; 0 ms\n");
  report.num_passes = 4;
  report.num_emitted = 10;
  report.seconds = 2;
  report.most_running = 2;
  EXPECT_EQ(BatchSummary({1, 0, 1, 0}, report),
            "batch    1 request: 1 computed; 2.0 s\n"
            "answers  10 tokens, 5.0 tok/s; 4 passes, 2 at once at most\n");
}

}  // namespace
}  // namespace vericache::cli
