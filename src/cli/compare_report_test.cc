// Judge(), what the report says of it, and the form of a round without a terminal.
#include "cli/compare_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/compare.h"
#include "cli/compare_view.h"

namespace vericache::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

Completion Answer(std::vector<int32_t> ids, const std::string& hash, const std::string& text) {
  Completion c;
  c.token_ids = std::move(ids);
  c.logits_hash = hash;
  c.text = text;
  c.finish_reason = "stop";
  return c;
}

CompareRow Row(const std::string& id) {
  CompareRow row;
  row.question.id = id;
  row.full = {Answer({1, 2, 3}, "h", "a"), 1.0};
  row.unverified = {Answer({1, 2, 3}, "", "a"), 0.5};
  row.verified = {Answer({1, 2, 3}, "h", "a"), 0.8};
  return row;
}

CompareReport Report(std::vector<CompareRow> rows) {
  CompareReport report;
  report.model.num_heads = 14;
  report.model.num_kv_heads = 2;
  report.draft = "int4";
  for (CompareRow& row : rows) Judge(&row);
  report.rows = std::move(rows);
  return report;
}

TEST(Judge, CallsEqualAnswersIdentical) {
  const CompareReport report = Report({Row("1")});
  EXPECT_TRUE(report.rows[0].UnverifiedIdentical());
  EXPECT_TRUE(report.AllVerifiedIdentical());
  EXPECT_DOUBLE_EQ(report.rows[0].SpeedRatio(), 1.25);
}

TEST(Judge, ComparesTokensAndHashBoth) {
  CompareRow tokens = Row("tokens"), hash = Row("hash"), no_hash = Row("no_hash");
  tokens.verified.completion.token_ids.back() = 9;
  hash.verified.completion.logits_hash = "other";
  no_hash.verified.completion.logits_hash = no_hash.full.completion.logits_hash = "";
  const CompareReport report = Report({Row("same"), tokens, hash, no_hash});
  EXPECT_TRUE(report.rows[0].VerifiedIdentical());
  EXPECT_FALSE(report.rows[1].VerifiedIdentical());
  EXPECT_FALSE(report.rows[2].VerifiedIdentical());
  EXPECT_TRUE(report.rows[2].same_tokens);
  EXPECT_FALSE(report.rows[3].VerifiedIdentical());
  EXPECT_EQ(report.NumVerifiedIdentical(), 1);
  EXPECT_FALSE(report.AllVerifiedIdentical());
  EXPECT_THAT(CompareSummary(report),
              HasSubstr("VeriCache: 1 of 4 identical (token ids and logits hash)"));
  EXPECT_THAT(CompareTable(report), HasSubstr("NO: hash"));
}

TEST(Judge, TellsWhereTheUnverifiedAnswerDiffers) {
  CompareRow row = Row("1");
  row.unverified.completion.token_ids = {1, 5, 3, 4};
  const CompareReport report = Report({row, Row("2")});
  EXPECT_EQ(report.rows[0].first_divergence, 1);
  EXPECT_DOUBLE_EQ(report.rows[0].token_f1, 4.0 / 7);
  EXPECT_EQ(report.NumUnverifiedIdentical(), 1);
  EXPECT_TRUE(report.AllVerifiedIdentical());
  EXPECT_THAT(CompareSummary(report),
              HasSubstr("unverified draft KV: 1 of 2 identical to full KV"));
}

TEST(Judge, ParsesJsonAnswersOnly) {
  CompareRow json = Row("json"), words = Row("words");
  json.question.kind = "json";
  json.full.completion.text = "{\"a\": 1}";
  json.unverified.completion.text = "{\"a\": 2}";
  words.full.completion.text = "{\"a\": 1}";
  const CompareReport report = Report({json, words});
  EXPECT_EQ(report.rows[0].full_json, ParseState::kParses);
  EXPECT_EQ(report.rows[0].unverified_json, ParseState::kParses);
  EXPECT_FALSE(report.rows[0].same_json);
  EXPECT_EQ(report.rows[1].full_json, ParseState::kNone);
}

TEST(CompareReport, ShowsRowsThatDoNotPay) {
  CompareRow slow = Row("slow");
  slow.verified.decode_s = 2;
  std::string summary = CompareSummary(Report({slow, Row("fast")}));
  for (size_t begin = 0; begin < summary.size(); begin = summary.find('\n', begin) + 1)
    EXPECT_LE(summary.find('\n', begin) - begin, 100) << summary;
  std::replace(summary.begin(), summary.end(), '\n', ' ');
  EXPECT_THAT(summary, HasSubstr("slower than full KV in 1 of 2 rows"));
  EXPECT_THAT(summary, HasSubstr("VeriCache is not faster than plain decoding on a CPU"));
  EXPECT_THAT(CompareTable(Report({slow})), HasSubstr("0.50x"));
  EXPECT_THAT(CompareSummary(Report({Row("fast")})), Not(HasSubstr("slower")));
}

TEST(CompareReport, FitsAHundredColumns) {
  CompareRow row = Row("a name that is far too long");
  row.question.kind = "json";
  row.unverified.completion.token_ids.assign(1000, 1);
  row.unverified.completion.text = "{";
  row.full.completion.text = "{}";
  const std::string table = CompareTable(Report({row}));
  for (size_t begin = 0; begin < table.size();) {
    const size_t end = table.find('\n', begin);
    EXPECT_LE(end - begin, 100) << table;
    begin = end + 1;
  }
}

TEST(CompareReport, JsonHoldsTheVerdicts) {
  CompareRow row = Row("1");
  row.unverified.completion.token_ids = {1};
  row.full.completion.text = "broken \xff";  // must not throw
  const auto json = nlohmann::json::parse(CompareJson(Report({row})));
  EXPECT_EQ(json["summary"]["vericache_identical"], 1);
  EXPECT_EQ(json["summary"]["unverified_identical"], 0);
  EXPECT_EQ(json["rows"][0]["unverified"]["first_divergence"], 1);
  EXPECT_EQ(json["rows"][0]["vericache"]["identical"], true);
  EXPECT_FALSE(json["rows"][0]["unverified"].contains("logits_hash"));
}

std::string Letter(int32_t id) { return std::string(1, static_cast<char>('a' + id)); }

TEST(RoundLine, ShowsWhatWasKeptAndWhatReplacedTheRest) {
  RoundView view;
  view.verified = true;
  view.emitted = {0, 1, 25};
  view.num_accepted = 2;
  EXPECT_EQ(RoundLine({0, 1, 2, 3}, view, Letter), "[draft: a|b|c|d][kept 2 of 4, corrected: z]");
  EXPECT_EQ(RoundLine({0, 1}, view, Letter), "[draft: a|b][kept 2 of 2, bonus: z]");
  view.emitted = {0, 1};  // the answer ended with an accepted token
  EXPECT_EQ(RoundLine({0, 1, 2}, view, Letter), "[draft: a|b|c][kept 2 of 3]");
  view.emitted = {25};
  view.num_accepted = 0;
  EXPECT_EQ(RoundLine({}, view, Letter), "[no draft][full KV: z]");
}

TEST(RoundLine, KeepsControlCharactersFromTheTerminal) {
  RoundView view;
  view.emitted = {0};
  const std::string line = RoundLine({}, view, [](int32_t) { return std::string("\x1b[31m\n\t"); });
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_THAT(line, HasSubstr("\\n\\t"));
}

}  // namespace
}  // namespace vericache::cli
