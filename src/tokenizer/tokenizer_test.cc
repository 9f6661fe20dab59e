#include "tokenizer/tokenizer.h"

#include "gguf/writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/special_splitter.h"
#include "tokenizer/utf8.h"

namespace vericache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4;

// A vocabulary of all bytes (ids 0 to 255), a few merges and special tokens. Fields may be spoilt
// before Write().
struct TinyModel {
  std::string model = "gpt2";
  std::optional<std::string> pre = "gpt-2";
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<std::string> merges = {"h e", "l l", "he ll", "hell o"};
  std::optional<uint32_t> eos = 261, bos = 260;
  std::optional<bool> add_bos;

  TinyModel() {
    for (int byte = 0; byte < 256; ++byte) {
      std::string token;
      AppendUtf8(CharOfByte(static_cast<uint8_t>(byte)), &token);
      tokens.push_back(token);
    }
    for (const char* token : {"he", "ll", "hell", "hello", "<s>", "<|im_end|>", "<tool>"})
      tokens.push_back(token);
    types.assign(tokens.size(), kNormal);
    types[260] = types[261] = kControl;
    types[262] = kUserDefined;
  }

  GgufWriter Writer() const {
    GgufWriter writer;
    writer.AddString("tokenizer.ggml.model", model);
    if (pre.has_value()) writer.AddString("tokenizer.ggml.pre", *pre);
    writer.AddStrings("tokenizer.ggml.tokens", tokens);
    writer.AddInt32s("tokenizer.ggml.token_type", types);
    writer.AddStrings("tokenizer.ggml.merges", merges);
    if (eos.has_value()) writer.AddUint32("tokenizer.ggml.eos_token_id", *eos);
    if (bos.has_value()) writer.AddUint32("tokenizer.ggml.bos_token_id", *bos);
    if (add_bos.has_value()) writer.AddBool("tokenizer.ggml.add_bos_token", *add_bos);
    return writer;
  }
};

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const GgufWriter& writer) {
  const std::string bytes = writer.ToBytes();
  const auto file =
      GgufFile::FromMemory({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "test");
  if (!file.ok()) return file.status();
  return Tokenizer::Create(**file);  // must not need the file afterwards
}

std::unique_ptr<Tokenizer> LoadOk(const TinyModel& model) {
  auto tokenizer = Load(model.Writer());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

void ExpectRefused(const GgufWriter& writer, const std::string& what) {
  const absl::Status status = Load(writer).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

TEST(Tokenizer, MergesLowestRankFirst) {
  const auto tokenizer = LoadOk(TinyModel());
  EXPECT_THAT(*tokenizer->Encode("hello", SpecialText::kAsText), ElementsAre(259));
  EXPECT_THAT(*tokenizer->Encode("helll", SpecialText::kAsText), ElementsAre(258, 'l'));
  EXPECT_THAT(*tokenizer->Encode("", SpecialText::kAsText), ElementsAre());
}

TEST(Tokenizer, ControlTextIsATokenOnlyFromTemplates) {
  const auto tokenizer = LoadOk(TinyModel());
  EXPECT_THAT(*tokenizer->Encode("he<|im_end|>", SpecialText::kAsToken), ElementsAre(256, 261));
  const auto as_text = *tokenizer->Encode("he<|im_end|>", SpecialText::kAsText);
  EXPECT_EQ(as_text.size(), 11u);
  EXPECT_EQ(tokenizer->Decode(as_text, SpecialText::kAsText), "he<|im_end|>");
  EXPECT_THAT(*tokenizer->Encode("<tool>", SpecialText::kAsText), ElementsAre(262));
}

TEST(Tokenizer, DecodeLeavesControlTokensOut) {
  const auto tokenizer = LoadOk(TinyModel());
  const std::vector<TokenId> ids = {260, 259, 262, 261, -1, 100000};
  EXPECT_EQ(tokenizer->Decode(ids, SpecialText::kAsText), "hello<tool>");
  EXPECT_EQ(tokenizer->Decode(ids, SpecialText::kAsToken), "<s>hello<tool><|im_end|>");
}

TEST(Tokenizer, KnowsItsSpecialTokens) {
  const auto tokenizer = LoadOk(TinyModel());
  EXPECT_EQ(tokenizer->vocab_size(), 263);
  EXPECT_EQ(tokenizer->bos_id(), 260);
  EXPECT_EQ(tokenizer->eos_id(), 261);
  EXPECT_TRUE(tokenizer->IsControl(260));
  EXPECT_FALSE(tokenizer->IsControl(262));
  for (TokenId id : {-1, 263, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer->IsControl(id));
    EXPECT_FALSE(tokenizer->IsEndOfGeneration(id));
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
  }
}

TEST(Tokenizer, EndsAtEveryKnownEnd) {
  TinyModel model;
  model.eos = 260;
  const auto tokenizer = LoadOk(model);
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(260));  // by key
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(261));  // by its text
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(259));
  model.types[261] = kNormal;
  EXPECT_FALSE(LoadOk(model)->IsEndOfGeneration(261));  // ordinary text that only looks like it
  GgufWriter writer = model.Writer();
  writer.AddUint32("tokenizer.ggml.eot_token_id", 5);
  EXPECT_TRUE((*Load(writer))->IsEndOfGeneration(5));
}

TEST(Tokenizer, AddsBosByTheFileOrTheKind) {
  TinyModel model;
  EXPECT_FALSE(LoadOk(model)->add_bos());
  model.add_bos = true;
  EXPECT_TRUE(LoadOk(model)->add_bos());
  model.bos.reset();
  EXPECT_FALSE(LoadOk(model)->add_bos());  // there is none to add
  EXPECT_EQ(LoadOk(model)->bos_id(), -1);
  TinyModel llama;
  llama.pre = "llama-bpe";
  EXPECT_TRUE(LoadOk(llama)->add_bos());
  llama.add_bos = false;
  EXPECT_FALSE(LoadOk(llama)->add_bos());
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8WithItsOffset) {
  const auto tokenizer = LoadOk(TinyModel());
  for (const std::string& bad : std::vector<std::string>{
           "\x80", "\xE2\x80", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5", "\xFF"}) {
    const absl::Status status = tokenizer->Encode("123" + bad, SpecialText::kAsText).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("byte 3"));
  }
}

TEST(Tokenizer, AnyValidTextComesBack) {
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe"}) {
    TinyModel model;
    model.pre = pre;
    const auto tokenizer = LoadOk(model);
    for (char32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 61) {
      if (c >= 0xD800 && c < 0xE000) continue;
      std::string text = " hello";
      AppendUtf8(c, &text);
      AppendUtf8(c, &text);
      text += "1 's \n";
      EXPECT_EQ(
          tokenizer->Decode(*tokenizer->Encode(text, SpecialText::kAsText), SpecialText::kAsText),
          text);
    }
  }
}

TEST(Tokenizer, DigestCoversTablesAndSettings) {
  const TinyModel base;
  const std::string digest = LoadOk(base)->digest();
  EXPECT_EQ(digest.size(), 64u);
  EXPECT_EQ(LoadOk(base)->digest(), digest);
  std::vector<TinyModel> others(6, base);
  others[0].pre = "smollm";
  others[1].tokens[262] = "<tool2>";
  others[2].types[262] = kControl;
  std::swap(others[3].merges[0], others[3].merges[1]);
  others[4].eos = 5;
  others[5].add_bos = true;
  for (const TinyModel& other : others) EXPECT_NE(LoadOk(other)->digest(), digest);
}

TEST(TokenizerTables, UnknownKindsAreRefusedByName) {
  TinyModel model;
  model.pre = "default";
  absl::Status status = Load(model.Writer()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'default'"));
  model.pre.reset();
  ExpectRefused(model.Writer(), "tokenizer.ggml.pre is missing");
  model.model = "llama";
  status = Load(model.Writer()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'llama'"));
  ExpectRefused(GgufWriter(), "tokenizer.ggml.model is missing");
}

TEST(TokenizerTables, LengthsAreChecked) {
  TinyModel model;
  model.types.pop_back();
  ExpectRefused(model.Writer(), "token_type has 262 entries");
  model = TinyModel();
  model.tokens.clear();
  model.types.clear();
  ExpectRefused(model.Writer(), "tokenizer.ggml.tokens is empty");
  GgufWriter writer = TinyModel().Writer();
  writer.AddFloat32s("tokenizer.ggml.scores", std::vector<float>(3));
  ExpectRefused(writer, "scores has 3 entries");
}

TEST(TokenizerTables, ValueTypesAreChecked) {
  GgufWriter writer = TinyModel().Writer();
  writer.AddInt32s("tokenizer.ggml.scores", std::vector<int32_t>(263));
  ExpectRefused(writer, "tokenizer.ggml.scores");
  GgufWriter strings_as_numbers;
  strings_as_numbers.AddString("tokenizer.ggml.model", "gpt2");
  strings_as_numbers.AddString("tokenizer.ggml.pre", "gpt-2");
  strings_as_numbers.AddInt32s("tokenizer.ggml.tokens", std::vector<int32_t>(3));
  ExpectRefused(strings_as_numbers, "tokenizer.ggml.tokens");
  GgufWriter no_types;
  no_types.AddString("tokenizer.ggml.model", "gpt2");
  no_types.AddString("tokenizer.ggml.pre", "gpt-2");
  no_types.AddStrings("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
  ExpectRefused(no_types, "tokenizer.ggml.merges is missing");
  no_types.AddStrings("tokenizer.ggml.merges", std::vector<std::string>{});
  ExpectRefused(no_types, "tokenizer.ggml.token_type is missing");
}

TEST(TokenizerTables, RangesAreChecked) {
  TinyModel model;
  model.eos = 0xFFFFFFFF;
  ExpectRefused(model.Writer(), "tokenizer.ggml.eos_token_id is 4294967295");
  model = TinyModel();
  model.bos = 263;
  ExpectRefused(model.Writer(), "tokenizer.ggml.bos_token_id is 263");
  for (int32_t type : {0, -1, 7}) {
    model = TinyModel();
    model.types[3] = type;
    ExpectRefused(model.Writer(), "token_type[3]");
  }
}

TEST(TokenizerTables, SmallestVocabularyWorks) {
  TinyModel model;
  model.tokens = {"a"};
  model.types = {kNormal};
  model.merges.clear();
  model.eos.reset();
  model.bos.reset();
  const auto tokenizer = LoadOk(model);
  EXPECT_EQ(tokenizer->eos_id(), -1);
  EXPECT_THAT(*tokenizer->Encode("banana", SpecialText::kAsText), ElementsAre(0, 0, 0));
}

TEST(TokenizerTables, EntriesAreChecked) {
  for (const char* merge : {"", "ab", " b", "a ", "a b c", "he  ll", "he zz", "a b"}) {
    TinyModel model;
    model.merges.push_back(merge);
    ExpectRefused(model.Writer(), "tokenizer.ggml.merges[4]");
  }
  TinyModel model;
  model.tokens[7] = model.tokens[9];
  ExpectRefused(model.Writer(), "tokenizer.ggml.tokens[9] repeats token 7");
  model = TinyModel();
  model.tokens[262] = std::string(2000, 'x');
  ExpectRefused(model.Writer(), "a special token of 2000 bytes");
}

TEST(SpecialSplitter, TakesTheLongestFromLeftToRight) {
  SpecialSplitter splitter;
  splitter.Add("<a", 1);
  splitter.Add("<abc>", 2);
  splitter.Add("b", 3);
  std::vector<std::pair<std::string, TokenId>> parts;
  splitter.Split("x<ab<abc>b<abc",
                 [&](std::string_view part, TokenId id) { parts.emplace_back(part, id); });
  const std::vector<std::pair<std::string, TokenId>> expected = {
      {"x", -1}, {"<a", 1}, {"b", 3}, {"<abc>", 2}, {"b", 3}, {"<a", 1}, {"b", 3}, {"c", -1}};
  EXPECT_EQ(parts, expected);
}

TEST(Utf8Assembler, HoldsUnfinishedCharactersBack) {
  Utf8Assembler assembler;
  EXPECT_EQ(assembler.Push("a\xF0\x9F"), "a");
  EXPECT_EQ(assembler.Push("\x99"), "");
  EXPECT_EQ(assembler.Push("\x82z"), "\xF0\x9F\x99\x82z");
  EXPECT_EQ(assembler.Flush(), "");
}

TEST(Utf8Assembler, ReplacesWhatIsNotUtf8) {
  const std::string bad = "\xEF\xBF\xBD";
  Utf8Assembler assembler;
  EXPECT_EQ(assembler.Push("\xFFx"), bad + "x");
  EXPECT_EQ(assembler.Push("\xE2\x80"), "");
  EXPECT_EQ(assembler.Push("y"), bad + "y");
  EXPECT_EQ(assembler.Push("\xED\xA0\x80"), bad + bad + bad);
  EXPECT_EQ(assembler.Push("\xC3"), "");
  EXPECT_EQ(assembler.Flush(), bad);
  EXPECT_EQ(assembler.Flush(), "");
}

TEST(Utf8Assembler, EverySplitGivesTheSameText) {
  const std::string bytes = "a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x99\x82\xFF\xE2\x82z\xF0\x9F";
  Utf8Assembler whole;
  std::string expected = whole.Push(bytes);
  expected += whole.Flush();
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    Utf8Assembler assembler;
    std::string text = assembler.Push(std::string_view(bytes).substr(0, cut));
    text += assembler.Push(std::string_view(bytes).substr(cut));
    text += assembler.Flush();
    EXPECT_EQ(text, expected) << cut;
  }
}

}  // namespace
}  // namespace vericache
