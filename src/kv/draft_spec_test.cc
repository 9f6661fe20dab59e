#include "kv/draft_spec.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace vericache {
namespace {

DraftSpec Parse(const std::string& text) {
  const auto spec = ParseDraftSpec(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : DraftSpec();
}

// All that a spec says, field by field; ToString() is what is tested.
void ExpectSame(const DraftSpec& a, const DraftSpec& b, const std::string& text) {
  EXPECT_EQ(a.enabled, b.enabled) << text;
  EXPECT_EQ(a.selector, b.selector) << text;
  EXPECT_EQ(a.fraction, b.fraction) << text;
  EXPECT_EQ(a.sinks, b.sinks) << text;
  EXPECT_EQ(a.window, b.window) << text;
  EXPECT_EQ(a.pool, b.pool) << text;
  EXPECT_EQ(a.score, b.score) << text;
  EXPECT_EQ(a.floor, b.floor) << text;
  EXPECT_EQ(a.chunk, b.chunk) << text;
  EXPECT_EQ(a.future, b.future) << text;
  EXPECT_EQ(a.whole, b.whole) << text;
  EXPECT_EQ(a.file, b.file) << text;
  EXPECT_EQ(a.keep_layers.ranges, b.keep_layers.ranges) << text;
  EXPECT_EQ(a.f16_layers.ranges, b.f16_layers.ranges) << text;
  EXPECT_TRUE(a.codec == b.codec) << text;
}

TEST(DraftSpec, ParsesAndPrintsCanonically) {
  const std::pair<const char*, const char*> cases[] = {
      {"off", "off"},
      {"f16", "f16"},
      {"int8", "int8"},
      {"int4", "int4"},
      {"k4v4", "int4"},
      {"k4v2", "k4v2"},
      {"kivi2", "kivi2"},
      {"rot3", "rot3"},
      {"all", "f16"},
      {"all+int4", "int4"},
      {"all,keep=1", "all,keep=1"},
      {"all,f16=0-1/27+rot4", "all,f16=0-1/27+rot4"},
      {"sink", "sink:0.25"},
      {"sink:0.1,sinks=8+int8", "sink:0.1,sinks=8+int8"},
      {"sink:0.1,sinks=4", "sink:0.1"},
      {"snapkv:0.25+int4", "snapkv:0.25+int4"},
      {"snapkv:1,window=16,pool=5", "snapkv:1,window=16,pool=5"},
      {"snapkv:1,pool=5,window=16", "snapkv:1,window=16,pool=5"},
      {"verify:0.25+int4", "verify:0.25+int4"},
      {"verify", "verify:0.25"},
      {"verify:0.1,window=8", "verify:0.1,window=8"},
      {"verify:0.1,score=snapkv", "verify:0.1"},
      {"verify:0.1,score=vegas", "verify:0.1,score=vegas"},
      {"verify:0.3,floor=0.1,pool=1", "verify:0.3,pool=1,floor=0.1"},
      {"verify:0.3,floor=0", "verify:0.3"},
      {"kvzip", "kvzip:0.25"},
      {"kvzip:0.3+k4v2", "kvzip:0.3+k4v2"},
      {"kvzip:0.3,chunk=64,window=1,sinks=0", "kvzip:0.3,sinks=0,window=1,chunk=64"},
      {"expected:0.5,future=16", "expected:0.5,future=16"},
      {"h2o:0.4+int2", "h2o:0.4+int2"},
      {"quest:0.2,whole=0", "quest:0.2,whole=0"},
      {"kept,file=mine.npz", "kept,file=mine.npz"},
      {"kept,keep=2,file=a/b.npz+int4", "kept,file=a/b.npz,keep=2+int4"},
      {"snapkv:0.5+f16", "snapkv:0.5"},
      {"h2o,keep=0-0/3-5", "h2o:0.25,keep=0/3-5"},
      {"sink:0.1,sinks=1,sinks=2", "sink:0.1,sinks=2"},
      {"sink:0.1,keep=1,keep=2", "sink:0.1,keep=2"},
  };
  for (const auto& [text, canonical] : cases) {
    const DraftSpec spec = Parse(text);
    EXPECT_EQ(spec.ToString(), canonical);
    EXPECT_EQ(Parse(canonical).ToString(), canonical);
    ExpectSame(spec, Parse(canonical), text);
  }
}

// A file may hold plus signs, equals signs and colons; the codec stands behind the last plus sign.
TEST(DraftSpec, KeepsTheNameOfAFile) {
  const struct {
    const char *text, *file, *codec;
  } cases[] = {
      {"kept,file=a+b.npz", "a+b.npz", "f16"},
      {"kept,file=a+b.npz+int4", "a+b.npz", "int4"},
      {"kept,file=a+int4.npz", "a+int4.npz", "f16"},
      {"kept,file=a+int4", "a", "int4"},
      {"kept,file=a+int4+f16", "a+int4", "f16"},
      {"kept,file=a+int4+int8", "a+int4", "int8"},
      {"kept,file=a+f16+f16", "a+f16", "f16"},
      {"kept,file=c:/x=1.npz+k4v2", "c:/x=1.npz", "k4v2"},
      {"kept,file=+", "+", "f16"},
      {"kept,f16=1,file=x+int4", "x", "int4"},
      {"kept,file=x+int4+f16,f16=1", "x+int4+f16", "f16"},
      {"kept,file=sp ace.npz", "sp ace.npz", "f16"},
  };
  for (const auto& c : cases) {
    const DraftSpec spec = Parse(c.text);
    EXPECT_EQ(spec.file, c.file) << c.text;
    EXPECT_EQ(spec.codec.ToString(), c.codec) << c.text;
    ExpectSame(Parse(spec.ToString()), spec, c.text);
  }
}

// Every combination of the keys a selector takes, in one text each, comes back whole.
TEST(DraftSpec, RoundTripsEveryKeyOfEverySelector) {
  const std::pair<const char*, std::vector<const char*>> selectors[] = {
      {"all", {}},
      {"sink:0.5", {"sinks=0"}},
      {"snapkv:0.5", {"window=256", "pool=63"}},
      {"verify:0.5", {"window=1", "pool=1", "floor=0.25", "chunk=64"}},
      {"verify:0.5", {"window=1", "pool=1", "score=vegas"}},
      {"kvzip:0.5", {"sinks=4096", "window=1", "chunk=64"}},
      {"expected:0.5", {"sinks=1", "window=2", "future=65536"}},
      {"h2o:0.5", {}},
      {"quest:0.5", {"whole=1024"}},
      {"kept,file=x.npz", {}},
  };
  for (auto [selector, keys] : selectors) {
    keys.push_back("keep=0-1/27");
    keys.push_back("f16=3/4095");
    for (unsigned subset = 0; subset < 1u << keys.size(); ++subset) {
      for (const char* codec : {"", "+int4", "+k16v2"}) {
        std::string text = selector;
        for (size_t i = 0; i < keys.size(); ++i)
          if (subset >> i & 1) text += std::string(",") + keys[i];
        text += codec;
        const DraftSpec spec = Parse(text);
        ExpectSame(Parse(spec.ToString()), spec, text);
        EXPECT_EQ(Parse(spec.ToString()).ToString(), spec.ToString());
      }
    }
  }
}

TEST(DraftSpec, SaysWhatItNeeds) {
  const struct {
    const char *text, *key;
    bool queries, reselects;
  } cases[] = {
      {"off", "", false, false},
      {"sink", "", false, false},
      {"snapkv", "", true, false},
      {"verify", "", true, true},
      {"verify,score=vegas", "", true, true},
      {"verify,floor=0.1", "kvzip 2048", true, true},
      {"verify,floor=0.1,chunk=64", "kvzip 64", true, true},
      {"kvzip", "kvzip 2048", false, false},
      {"kvzip,chunk=64,sinks=0", "kvzip 64", false, false},
      {"expected", "expected 4 512", false, false},
      {"expected,sinks=0,future=7,window=3", "expected 0 7", false, false},
      {"h2o:0.9", "h2o", false, false},
      {"quest", "", false, false},
      {"kept,file=x", "", false, false},
  };
  for (const auto& c : cases) {
    const DraftSpec spec = Parse(c.text);
    EXPECT_EQ(spec.score_key(), c.key) << c.text;
    EXPECT_EQ(spec.uses_queries(), c.queries) << c.text;
    EXPECT_EQ(spec.reselects(), c.reselects) << c.text;
  }
}

TEST(DraftSpec, TellsLayersApart) {
  const DraftSpec spec = Parse("sink:0.5,keep=0-1/4,f16=1/3-4+int4");
  const bool keeps[] = {true, true, false, false, true, false};
  const bool f16[] = {false, true, false, true, true, false};
  const std::vector<DraftCodec> codecs = spec.CodecsOf(6);
  for (int layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(spec.keep_layers.Has(layer), keeps[layer]) << layer;
    EXPECT_EQ(spec.FractionOf(layer), keeps[layer] ? 1.0 : 0.5) << layer;
    EXPECT_EQ(codecs[layer].ToString(), f16[layer] ? "f16" : "int4") << layer;
  }
  EXPECT_EQ(Parse("quest:0.1").FractionOf(0), 1.0) << "stores all tokens";
  EXPECT_EQ(Parse("quest:0.1,whole=1").reads().fraction, 0.1);
  EXPECT_EQ(Parse("quest:0.1,whole=1").reads().whole_layers, 1);
  EXPECT_EQ(Parse("sink:0.1").reads().fraction, 1.0);
}

// Sessions compare specs by their text: two fractions must never share one.
TEST(DraftSpec, PrintsEveryFractionExactly) {
  for (const char* text :
       {"0.123456789", "0.12345678", "1e-09", "0.3333333333333333", "0.999999"}) {
    const DraftSpec spec = Parse(std::string("snapkv:") + text);
    EXPECT_EQ(spec.ToString(), std::string("snapkv:") + text);
    EXPECT_EQ(Parse(spec.ToString()).fraction, spec.fraction);
    const DraftSpec floor = Parse(std::string("verify:1,floor=") + text);
    EXPECT_EQ(floor.ToString(), std::string("verify:1,floor=") + text);
  }
}

void ExpectRefused(const std::string& text, const std::string& part) {
  const auto spec = ParseDraftSpec(text);
  ASSERT_FALSE(spec.ok()) << text;
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(spec.status().message());
  EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
  EXPECT_NE(message.find("\"" + text + "\""), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(DraftSpec, RefusesInOneLineThatNamesThePart) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "unknown selector or codec"},
      {"snap", "\"snap\""},
      {"Off", "\"Off\""},
      {"off+int4", "\"off\""},
      {"int4:0.5", "\"int4\""},
      {"int4+int4", "\"int4\""},
      {"snapkv:0", "fraction \"0\""},
      {"snapkv:1.5", "fraction \"1.5\""},
      {"snapkv:nan", "fraction \"nan\""},
      {"snapkv:-0.1", "fraction \"-0.1\""},
      {"snapkv:", "fraction \"\""},
      {"all:0.5", "\"all\" takes no fraction"},
      {"kept:0.5,file=x", "\"kept\" takes no fraction"},
      {"kept", "kept needs file="},
      {"kept,file=", "\"file=\" is not key=value"},
      {"kept,file=a,b.npz", "\"b.npz\""},
      {"snapkv:0.25+int9", "unknown codec \"int9\""},
      {"snapkv:0.25+", "unknown codec \"\""},
      {"snapkv:0.25+int4+", "unknown codec \"\""},
      {"snapkv:0.25,pool=4", "pool must be odd"},
      {"snapkv:0.25,pool=65", "pool must be 1 to 63"},
      {"snapkv:0.25,window=0", "window must be 1 to 256"},
      {"snapkv:0.25,window=257", "window must be 1 to 256"},
      {"snapkv:0.25,sinks=4", "snapkv takes window, pool, keep, f16"},
      {"snapkv,score=vegas", "unknown key \"score\""},
      {"snapkv,floor=0.1", "unknown key \"floor\""},
      {"h2o,sinks=1", "h2o takes keep, f16"},
      {"sink:0.1,window=1", "unknown key \"window\""},
      {"sink:0.1,", "unknown key \"\""},
      {"sink:0.1,,sinks=1", "unknown key \"\""},
      {"verify:0.1,sinks=2", "unknown key \"sinks\""},
      {"verify:0.1,score=h2o", "score must be snapkv or vegas"},
      {"verify:0.1,floor=x", "floor \"x\""},
      {"verify:0.1,floor=-0.1", "floor \"-0.1\""},
      {"verify:0.1,floor=nan", "floor \"nan\""},
      {"verify:0.1,floor=1.1", "floor \"1.1\""},
      {"verify:0.1,floor=0.2", "floor 0.2 is above the fraction 0.1"},
      {"verify:0.2,floor=0.1,score=vegas", "vegas"},
      {"kvzip,chunk=65", "chunk must be 64 to 2048, a multiple of 16"},
      {"kvzip,chunk=48", "chunk must be 64 to 2048"},
      {"kvzip,chunk=2064", "chunk must be 64 to 2048"},
      {"kvzip,pool=1", "kvzip takes sinks, window, chunk, keep, f16"},
      {"expected,future=0", "future must be 1 to 65536"},
      {"quest,whole=-1", "whole must be 0 to 1024"},
      {"sink:0.1,sinks=x", "\"sinks=x\" is not key=integer"},
      {"sink:0.1,sinks=99999999999", "\"sinks=99999999999\""},
      {"sink:0.1,sinks", "\"sinks\" is not key=value"},
      {"sink:0.1,sinks=", "\"sinks=\" is not key=value"},
      {"sink:0.1,keep", "\"keep\" is not key=value"},
      {"sink:0.1,keep=2-1", "\"keep=2-1\": layers are like 0-1/27"},
      {"sink:0.1,keep=1/", "\"keep=1/\""},
      {"sink:0.1,keep=-1", "\"keep=-1\""},
      {"sink:0.1,keep=1-2-3", "\"keep=1-2-3\""},
      {"sink:0.1,f16=4096", "\"f16=4096\""},
      {"sink:0.1,f16=a", "\"f16=a\""},
  };
  for (const auto& [text, part] : cases) ExpectRefused(text, part);
}

// What is allowed instead stands in the same line.
TEST(DraftSpec, ListsEverySelectorWhereOneIsUnknown) {
  const std::string message(ParseDraftSpec("nothing").status().message());
  for (const char* name : {"off", "int2", "kXvY", "kivi2", "rot2", "all", "sink", "snapkv",
                           "verify", "kvzip", "expected", "h2o", "quest", "kept"})
    EXPECT_NE(message.find(name), std::string::npos) << name;
}

}  // namespace
}  // namespace vericache
