// Token ids must equal those of Hugging Face tokenizers: tests/golden/tokenizer/make_golden.py.
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "gtest/gtest.h"
#include "tokenizer/nfc.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace vericache {
namespace {

using Json = nlohmann::json;

constexpr char kGoldenDir[] = "tests/golden/tokenizer/";

std::string HashOfIds(const std::vector<TokenId>& ids) {
  return HexOf(Sha256Of(ids.data(), ids.size() * sizeof(TokenId)));
}

std::string RepeatedText(const Json& test_case) {
  std::string text = test_case["start"];
  const std::string unit = test_case["text"];
  for (int64_t i = 0; i < test_case["count"].get<int64_t>(); ++i) text += unit;
  return text + test_case["end"].get<std::string>();
}

std::vector<TokenId> EncodeOk(const Tokenizer& tokenizer, const std::string& text,
                              SpecialText special) {
  const absl::StatusOr<std::vector<TokenId>> ids = tokenizer.Encode(text, special);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(std::vector<TokenId>());
}

void CheckGolden(const std::string& name, const std::string& vocab_path) {
  const absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(vocab_path);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::ifstream golden_file(kGoldenDir + name + ".json");
  ASSERT_TRUE(golden_file.good()) << name;
  const Json golden = Json::parse(golden_file);
  ASSERT_GT(golden["cases"].size(), 300u);
  for (const Json& test_case : golden["cases"]) {
    SCOPED_TRACE(test_case.dump(-1, ' ', /*ensure_ascii=*/true).substr(0, 200));
    if (test_case.contains("count")) {
      const auto ids = EncodeOk(**tokenizer, RepeatedText(test_case), SpecialText::kAsToken);
      EXPECT_EQ(ids.size(), test_case["num_ids"].get<size_t>());
      EXPECT_EQ(HashOfIds(ids), test_case["ids_sha256"].get<std::string>());
      continue;
    }
    const std::string text = test_case["text"];
    const auto ids = test_case["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(EncodeOk(**tokenizer, text, SpecialText::kAsToken), ids);
    const auto ids_as_text = test_case.contains("ids_as_text")
                                 ? test_case["ids_as_text"].get<std::vector<TokenId>>()
                                 : ids;
    EXPECT_EQ(EncodeOk(**tokenizer, text, SpecialText::kAsText), ids_as_text);
  }
}

Json ReadSweep() {
  std::ifstream file(std::string(kGoldenDir) + "sweep.json");
  EXPECT_TRUE(file.good());
  return Json::parse(file);
}

// `text_template` once for every character of the sweep, which stands where '@' is.
std::string SweepText(const Json& sweep, const std::string& text_template) {
  std::string text;
  for (const Json& range : sweep["ranges"])
    for (char32_t c = range[0].get<uint32_t>(); c < range[1].get<uint32_t>(); ++c)
      for (const char byte : text_template) {
        if (byte == '@') {
          AppendUtf8(c, &text);
        } else {
          text.push_back(byte);
        }
      }
  return text;
}

TEST(KindsSweep, PiecesAroundEveryCharacterEqualTheReference) {
  const Json sweep = ReadSweep();
  const std::string text = SweepText(sweep, sweep["cut_template"]);
  for (const auto& [kind, expected] : sweep["pieces_sha256"].items()) {
    const auto pre_tokenizer = PreTokenizer::Create(kind);
    ASSERT_TRUE(pre_tokenizer.ok());
    std::vector<int32_t> lengths;
    ASSERT_TRUE((*pre_tokenizer)
                    ->ForEachPiece(text,
                                   [&](std::string_view piece) {
                                     lengths.push_back(static_cast<int32_t>(piece.size()));
                                   })
                    .ok());
    EXPECT_EQ(HashOfIds(lengths), expected.get<std::string>()) << kind;
  }
}

TEST(KindsSweep, NfcOfEveryCharacterEqualsTheReference) {
  const Json sweep = ReadSweep();
  const std::string text = SweepText(sweep, sweep["nfc_template"]);
  const std::string nfc = ToNfc(text).value_or("already");
  EXPECT_EQ(HexOf(Sha256Of(nfc.data(), nfc.size())), sweep["nfc_sha256"].get<std::string>());
  EXPECT_FALSE(ToNfc(nfc).has_value());
}

class TinyVocab : public testing::TestWithParam<const char*> {};

TEST_P(TinyVocab, IdsEqualTheReference) {
  const std::string name = std::string("tiny-") + GetParam();
  CheckGolden(name, kGoldenDir + name + ".gguf");
}

INSTANTIATE_TEST_SUITE_P(Kinds, TinyVocab,
                         testing::Values("gpt-2", "smollm", "qwen2", "llama-bpe"));

class RealVocab : public testing::TestWithParam<const char*> {};

TEST_P(RealVocab, IdsEqualTheReference) {
  const std::string dir = VERICACHE_MODEL_DIR;
  const std::string path = dir + "/" + GetParam() + ".gguf";
  if (dir.empty() || !std::ifstream(path).good())
    GTEST_SKIP() << "NOT CHECKED: no " << GetParam() << ".gguf in VERICACHE_MODEL_DIR \"" << dir
                 << "\" (scripts/fetch_model.sh gets the models)";
  CheckGolden(GetParam(), path);
}

std::string TestName(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (c == '-' || c == '.') c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, RealVocab,
                         testing::Values("smollm2-135m", "qwen2.5-coder-0.5b", "ggml-vocab-gpt-2",
                                         "ggml-vocab-llama-bpe"),
                         TestName);

}  // namespace
}  // namespace vericache
