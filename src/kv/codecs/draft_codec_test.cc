#include "kv/codecs/draft_codec.h"

#include <set>

#include "gtest/gtest.h"

namespace vericache {
namespace {

DraftCodec Parsed(std::string_view name) {
  DraftCodec codec;
  EXPECT_TRUE(ParseDraftCodec(name, &codec)) << name;
  return codec;
}

std::vector<std::string> AllNames() {
  std::vector<std::string> names = {"f16", "kivi2", "kivi4"};
  const std::vector<std::string> bits = {"2", "3", "4", "5", "6", "7", "8", "16"};
  for (const std::string& k : bits) {
    if (k != "16") names.push_back("int" + k);
    if (k != "16") names.push_back("rot" + k);
    for (const std::string& v : bits)
      if (k != v) names.push_back("k" + k + "v" + v);
  }
  return names;
}

TEST(DraftCodec, EveryNameIsItsOwnCanonicalText) {
  std::set<std::string> seen;
  for (const std::string& name : AllNames()) {
    const DraftCodec codec = Parsed(name);
    EXPECT_EQ(codec.ToString(), name);
    EXPECT_EQ(Parsed(codec.ToString()), codec);
    EXPECT_TRUE(seen.insert(name).second);
  }
  EXPECT_EQ(seen.size(), 3u + 14 + 56);
}

TEST(DraftCodec, NamesMeanWhatTheySay) {
  EXPECT_EQ(Parsed("f16"), DraftCodec());
  EXPECT_EQ(Parsed("int3"), (DraftCodec{DraftFormat::kInt3, DraftFormat::kInt3, false, 64}));
  EXPECT_EQ(Parsed("k8v4"), (DraftCodec{DraftFormat::kInt8, DraftFormat::kInt4, false, 64}));
  EXPECT_EQ(Parsed("k16v2"), (DraftCodec{DraftFormat::kF16, DraftFormat::kInt2, false, 64}));
  EXPECT_EQ(Parsed("kivi2"), (DraftCodec{DraftFormat::kInt2, DraftFormat::kInt2, false, 128}));
  EXPECT_EQ(Parsed("rot5"), (DraftCodec{DraftFormat::kInt5, DraftFormat::kInt5, true, 64}));
}

TEST(DraftCodec, EqualHalvesHaveAShorterName) {
  EXPECT_EQ(Parsed("k4v4").ToString(), "int4");
  EXPECT_EQ(Parsed("k16v16").ToString(), "f16");
  EXPECT_EQ(Parsed("k2v2"), Parsed("int2"));
}

TEST(DraftCodec, RefusesEverythingElse) {
  for (const char* name : {"",      "f",     "f16 ",   "F16",    "int",   "int1", "int9",  "int16",
                           "int04", "int4 ", "k",      "kv",     "k4",    "k4v",  "kv4",   "k4v4v4",
                           "k1v4",  "k4v9",  "k016v4", "k4v16x", "k 4v4", "kivi", "kivi3", "kivi8",
                           "rot",   "rot1",  "rot16",  "rot4x",  "off",   "sink", "quest"}) {
    DraftCodec codec{DraftFormat::kInt7, DraftFormat::kInt6, false, 5};
    EXPECT_FALSE(ParseDraftCodec(name, &codec)) << name;
    EXPECT_EQ(codec, (DraftCodec{DraftFormat::kInt7, DraftFormat::kInt6, false, 5})) << name;
  }
}

}  // namespace
}  // namespace vericache
