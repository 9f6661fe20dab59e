#include "cli/args.h"

#include <gtest/gtest.h>

namespace vericache::cli {
namespace {

TEST(ParseInteger, TakesDecimalDigitsWithinTheRangeOnly) {
  int64_t value = -7;
  EXPECT_TRUE(ParseInteger("8", 1, 8, &value).ok());
  EXPECT_EQ(value, 8);
  EXPECT_TRUE(ParseInteger("010", 1, 100, &value).ok());
  EXPECT_EQ(value, 10) << "no octal numbers";
  for (const char* bad :
       {"0", "9", "-1", "", "x", "1.5", "1e2", "0x4", "4 5", "99999999999999999999", "nan"}) {
    EXPECT_FALSE(ParseInteger(bad, 1, 8, &value).ok()) << bad;
    EXPECT_EQ(value, 10) << "unchanged by " << bad;
  }
}

TEST(ParseBytes, KnowsPowersOf1024) {
  uint64_t bytes = 0;
  for (const auto& [text, expected] : {std::pair{"8GiB", uint64_t{8} << 30},
                                       {"512M", uint64_t{512} << 20},
                                       {"1.5k", 1536},
                                       {"2GB", uint64_t{2} << 30},
                                       {"100", 100},
                                       {"100B", 100},
                                       {"1e9", 1000000000}}) {
    ASSERT_TRUE(ParseBytes(text, &bytes).ok()) << text;
    EXPECT_EQ(bytes, expected) << text;
  }
  for (const char* bad : {"", "B", "GiB", "iB", "-1G", "0", "nan", "inf", "1e30", "9999999T", "8Q"})
    EXPECT_FALSE(ParseBytes(bad, &bytes).ok()) << bad;
}

}  // namespace
}  // namespace vericache::cli
