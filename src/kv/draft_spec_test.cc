#include "kv/draft_spec.h"

#include <string>

#include "gtest/gtest.h"

namespace vericache {
namespace {

TEST(DraftSpec, ParsesAndPrintsCanonically) {
  const std::pair<const char*, const char*> cases[] = {
      {"off", "off"},
      {"f16", "f16"},
      {"int8", "int8"},
      {"int4", "int4"},
      {"sink", "sink:0.25"},
      {"sink:0.1,sinks=8+int8", "sink:0.1,sinks=8+int8"},
      {"snapkv:0.25+int4", "snapkv:0.25+int4"},
      {"snapkv:1,window=16,pool=5", "snapkv:1,window=16,pool=5"},
      {"verify:0.25+int4", "verify:0.25+int4"},
      {"verify", "verify:0.25"},
      {"verify:0.1,window=8", "verify:0.1,window=8"},
      {"snapkv:0.5+f16", "snapkv:0.5"},
  };
  for (const auto& [text, canonical] : cases) {
    const auto spec = ParseDraftSpec(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->ToString(), canonical);
    EXPECT_EQ(ParseDraftSpec(canonical)->ToString(), canonical);
  }
}

// Sessions compare specs by their text: two fractions must never share one.
TEST(DraftSpec, PrintsEveryFractionExactly) {
  for (const char* text :
       {"0.123456789", "0.12345678", "1e-09", "0.3333333333333333", "0.999999"}) {
    const auto spec = ParseDraftSpec(std::string("snapkv:") + text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->ToString(), std::string("snapkv:") + text);
    EXPECT_EQ(ParseDraftSpec(spec->ToString())->fraction, spec->fraction);
  }
}

TEST(DraftSpec, RefusesInOneLineThatNamesThePart) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "unknown selector or codec"},
      {"snap", "\"snap\""},
      {"snapkv:0", "fraction"},
      {"snapkv:1.5", "fraction"},
      {"snapkv:nan", "fraction"},
      {"snapkv:0.25+int3", "int3"},
      {"snapkv:0.25,pool=4", "odd"},
      {"snapkv:0.25,sinks=4", "unknown key"},
      {"sink:0.1,window=1", "unknown key"},
      {"verify:0.1,sinks=2", "unknown key"},
      {"sink:0.1,sinks=x", "key=integer"},
  };
  for (const auto& [text, part] : cases) {
    const auto spec = ParseDraftSpec(text);
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_NE(spec.status().message().find(part), std::string::npos) << spec.status();
    EXPECT_EQ(spec.status().message().find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace vericache
