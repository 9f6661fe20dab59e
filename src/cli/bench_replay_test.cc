#include "cli/bench_replay.h"

#include <gtest/gtest.h>

#include <string>

#include "cli/json_out.h"

namespace vericache::cli {
namespace {

TEST(ParseTrace, ReadsWhatRunWrites) {
  CompletionStats stats;
  for (int accepted : {8, 3, 0}) {
    RoundRecord& record = stats.records.emplace_back();
    record.drafted = 8;
    record.accepted = accepted;
    record.mode = "draft-kv";
  }
  const auto rounds = ParseTrace(TraceLines(stats));
  ASSERT_TRUE(rounds.ok()) << rounds.status();
  const ReplayTrace trace = {"t", *rounds};
  ASSERT_EQ(trace.rounds.size(), 3u);
  EXPECT_EQ(trace.rounds[1].drafted, 8);
  EXPECT_EQ(trace.rounds[1].accepted, 3);
  EXPECT_EQ(trace.num_tokens(), 14);
  EXPECT_EQ(trace.most_work(), 22);
}

TEST(ParseTrace, RefusesWhatIsNoRoundByItsLine) {
  const std::string good = R"({"drafted": 4, "accepted": 4})";
  EXPECT_TRUE(ParseTrace(good + "\n\n" + good).ok());
  for (const char* bad :
       {"x", "3", "[]", "{}", R"({"drafted": 4})", R"({"accepted": 4})",
        R"({"drafted": 4, "accepted": 5})", R"({"drafted": -1, "accepted": 0})",
        R"({"drafted": 4, "accepted": -1})", R"({"drafted": 4, "accepted": 1.0})",
        R"({"drafted": 257, "accepted": 1})", R"({"drafted": "4", "accepted": 1})",
        R"({"drafted": 1e9, "accepted": 1})", "[[[[[[]]]]]]"}) {
    const auto rounds = ParseTrace(good + "\n" + bad);
    ASSERT_FALSE(rounds.ok()) << bad;
    EXPECT_NE(rounds.status().message().find("line 2"), std::string::npos) << rounds.status();
  }
  EXPECT_FALSE(ParseTrace("").ok());
  EXPECT_FALSE(ParseTrace("\n \n").ok());
}

}  // namespace
}  // namespace vericache::cli
