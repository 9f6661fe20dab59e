#include "cli/terminal.h"

#include <gtest/gtest.h>

#include "cli/errors.h"

namespace vericache::cli {
namespace {

constexpr char kBad[] = "\xef\xbf\xbd";

TEST(SafeForTerminal, KeepsTextAndTakesCommandsAway) {
  EXPECT_EQ(SafeForTerminal("a\tb\n\xc3\xa9 \xe7\xb3\xb3 \xf0\x9f\x98\x80"),
            "a\tb\n\xc3\xa9 \xe7\xb3\xb3 \xf0\x9f\x98\x80");
  EXPECT_EQ(SafeForTerminal("\x1b[2J"), std::string(kBad) + "[2J");
  EXPECT_EQ(SafeForTerminal("\xc2\x9b"), kBad) << "CSI as one C1 character";
  EXPECT_EQ(SafeForTerminal(std::string(1, '\0') + "\r\x7f"), std::string(kBad) + kBad + kBad);
}

TEST(SafeForTerminal, TakesAwayWhatIsNoUtf8) {
  for (const std::string bad : {"\xff", "\x80", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                                "\xf0\x80\x80\xaf", "\xf4\x90\x80\x80", "\xe7\xb3", "\xf5"}) {
    std::string expected;
    for (size_t i = 0; i < bad.size(); ++i) expected += kBad;
    EXPECT_EQ(SafeForTerminal(bad), expected);
  }
}

TEST(GlyphAt, KnowsWideAndCombiningCharacters) {
  const std::string text = "a\xe7\xb3\xb3\xcc\x81\xc3\xa9\xff";
  EXPECT_EQ(GlyphAt(text, 0).columns, 1);
  EXPECT_EQ(GlyphAt(text, 1).num_bytes, 3);
  EXPECT_EQ(GlyphAt(text, 1).columns, 2);
  EXPECT_EQ(GlyphAt(text, 4).columns, 0);
  EXPECT_EQ(GlyphAt(text, 6).num_bytes, 2);
  EXPECT_EQ(GlyphAt(text, 6).columns, 1);
  EXPECT_EQ(GlyphAt(text, 8).num_bytes, 1);
}

TEST(OneLine, IsOneLine) { EXPECT_EQ(OneLine("a\nb\r\nc\x1b"), std::string("a b  c") + kBad); }

}  // namespace
}  // namespace vericache::cli
