#include "api/stop_matcher.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace vericache {
namespace {

struct Outcome {
  std::string text, stop;
  std::vector<std::string> pieces;  // as shown

  bool operator==(const Outcome& other) const { return text == other.text && stop == other.stop; }
};

Outcome Feed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    outcome.pieces.push_back(matcher.Push(piece));
    outcome.text += outcome.pieces.back();
  }
  if (!matcher.matched()) outcome.text += matcher.Flush();
  outcome.stop = matcher.stop();
  return outcome;
}

// Byte by byte, by looking everywhere.
Outcome Search(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    Outcome found;
    for (const std::string& stop : stops) {
      if (stop.size() > end || text.compare(end - stop.size(), stop.size(), stop) != 0) continue;
      if (stop.size() > found.stop.size()) found.stop = stop;
    }
    if (found.stop.empty()) continue;
    found.text = text.substr(0, end - found.stop.size());
    return found;
  }
  return {text, "", {}};
}

// Case 37, in its own words.
TEST(StopMatcher, Case37TheReportedOutputs) {
  Outcome o = Feed({"DEFGHIJ"}, {"A", "BC", "DE", "FGH", "IJ", "K"});
  EXPECT_EQ(o.text, "ABC");
  EXPECT_EQ(o.stop, "DEFGHIJ");
  EXPECT_EQ(o.pieces, (std::vector<std::string>{"A", "BC", "", "", "", ""}));
  o = Feed({"\n"}, {"Is it", "?\n", "no"});
  EXPECT_EQ(o.text, "Is it?");
  o = Feed({"STOP"}, {"so ", "ST", "O"});  // held back, then the end
  EXPECT_EQ(o.text, "so STO");
  EXPECT_EQ(o.stop, "");
  o = Feed({"DEF", "DE"}, {"ABCD", "EF"});  // one is the beginning of the other
  EXPECT_EQ(o.text, "ABC");
  EXPECT_EQ(o.stop, "DE");
  o = Feed({"EF", "DEF"}, {"ABCDEF"});  // one is the end of the other
  EXPECT_EQ(o.text, "ABC");
  o = Feed({"aab"}, {"aa", "a", "b"});
  EXPECT_EQ(o.text, "a");
  EXPECT_EQ(o.pieces[1], "a") << "only what can still become a stop is held back";
  EXPECT_EQ(Feed({}, {"x", "y"}).text, "xy");
}

TEST(StopMatcher, EveryCuttingOfRandomTextsGivesTheSame) {
  uint64_t state = 1;
  const auto pick = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  uint64_t num_letters = 2;
  const auto word = [&](uint64_t most) {
    std::string text;
    for (uint64_t n = 1 + pick(most); n > 0; --n)
      text += static_cast<char>('a' + pick(num_letters));
    return text;
  };
  int matched = 0;
  for (int i = 0; i < 20000; ++i) {
    num_letters = 2 + i % 2;
    std::vector<std::string> stops;
    for (uint64_t n = pick(4); n > 0; --n) stops.push_back(word(10));
    // Beginnings of the strings, so that many a match nearly comes about.
    std::string text = word(10);
    for (uint64_t n = pick(8); n > 0 && !stops.empty(); --n) {
      const std::string& stop = stops[pick(stops.size())];
      text += stop.substr(0, pick(stop.size() + 1)) + (pick(4) == 0 ? word(2) : "");
    }
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, pick(5)));
      at += pieces.back().size();
    }
    const Outcome want = Search(stops, text);
    ASSERT_EQ(Feed(stops, pieces), want) << text << " pieces " << pieces.size();
    ASSERT_EQ(Feed(stops, {text}), want) << text;
    matched += !want.stop.empty();
  }
  EXPECT_GT(matched, 5000);
}

}  // namespace
}  // namespace vericache
