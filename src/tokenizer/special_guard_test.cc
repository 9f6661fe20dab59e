#include "tokenizer/special_guard.h"

#include "gguf/reader.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

class SpecialGuard : public testing::Test {
 protected:
  void SetUp() override {
    auto file = GgufFile::Open("tests/golden/tokenizer/tiny-qwen2.gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = std::move(*file);
    auto tokenizer = Tokenizer::Create(*file_);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = std::move(*tokenizer);
    for (TokenId id = 0; id < tokenizer_->vocab_size() && special_.empty(); ++id)
      if (tokenizer_->IsControl(id) && tokenizer_->TokenBytes(id).size() > 3) {
        special_ = tokenizer_->TokenBytes(id);
        special_id_ = id;
      }
    ASSERT_FALSE(special_.empty());
  }
  std::string Messages(const std::string& content) const {
    return R"([{"role":"user","content":")" + content + R"("}])";
  }

  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::string special_;
  TokenId special_id_ = -1;
};

TEST_F(SpecialGuard, OrdinaryMessagesStayByteForByte) {
  const std::string json = Messages("hello \\u00e9 <| not special");
  const auto guarded = GuardSpecialText(json, *tokenizer_);
  ASSERT_TRUE(guarded.ok()) << guarded.status();
  EXPECT_EQ(guarded->json, json);
  EXPECT_EQ(guarded->guard, "");
}

TEST_F(SpecialGuard, TypedSpecialTextStaysTextAndTheTemplatesOwnBecomesATokenOnce) {
  const auto guarded = GuardSpecialText(Messages("a" + special_ + "b"), *tokenizer_);
  ASSERT_TRUE(guarded.ok()) << guarded.status();
  ASSERT_NE(guarded->guard, "");
  EXPECT_EQ(guarded->json.find(special_), std::string::npos);
  // What a template would make of it: user text between special tokens of its own.
  const std::string user = tokenizer_->BreakSpecialText("a" + special_ + "b", guarded->guard);
  const auto ids = tokenizer_->EncodeTemplated(special_ + user + special_, guarded->guard);
  ASSERT_TRUE(ids.ok()) << ids.status();
  std::vector<TokenId> expected = *tokenizer_->Encode("a" + special_ + "b", SpecialText::kAsText);
  expected.insert(expected.begin(), special_id_);
  expected.push_back(special_id_);
  EXPECT_EQ(*ids, expected);
}

TEST_F(SpecialGuard, AGuardInTheTextItselfIsKept) {
  const std::string unit = "\xEF\xB7\x90";
  const std::string text = unit + unit + special_ + unit;
  const auto guarded = GuardSpecialText(Messages(text), *tokenizer_);
  ASSERT_TRUE(guarded.ok()) << guarded.status();
  const std::string broken = tokenizer_->BreakSpecialText(text, guarded->guard);
  const auto ids = tokenizer_->EncodeTemplated(broken, guarded->guard);
  EXPECT_EQ(*ids, *tokenizer_->Encode(text, SpecialText::kAsText));
}

TEST_F(SpecialGuard, RefusesWhatIsNotJson) {
  EXPECT_FALSE(GuardSpecialText("[{", *tokenizer_).ok());
}

}  // namespace
}  // namespace vericache
