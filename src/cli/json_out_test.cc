#include "cli/json_out.h"

#include <gtest/gtest.h>

#include <limits>

namespace vericache::cli {
namespace {

Receipt MakeReceipt() {
  Receipt r;
  r.contract = "contract";
  r.model_name = "a \"model\".gguf";
  r.model_path = "/models/a.gguf";
  r.model_sha256 = std::string(64, 'a');
  r.prompt_hash = std::string(64, 'b');
  r.logits_hash = std::string(64, 'c');
  r.prompt_token_ids = {0, 5, std::numeric_limits<int32_t>::max()};
  r.token_ids = {7};
  return r;
}

TEST(Receipt, ComesBackBitForBit) {
  Receipt r = MakeReceipt();
  r.sampling.seed = std::numeric_limits<uint64_t>::max();
  r.sampling.top_k = std::numeric_limits<int64_t>::max();
  r.sampling.choice = std::numeric_limits<uint32_t>::max();
  r.sampling.logit_bias = {{3, -0.1F}, {9, 1e-30F}};
  for (float value : {0.0F, 0.7F, 0.1F, 1.0F / 3, 16777217.0F, 1e-45F, 3.4028235e38F}) {
    r.sampling.temperature = value;
    r.sampling.presence_penalty = -value;
    const absl::StatusOr<Receipt> back = ParseReceipt(ReceiptJson(r));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->sampling.temperature, value);
    EXPECT_EQ(back->sampling.presence_penalty, -value);
    EXPECT_EQ(back->sampling.seed, r.sampling.seed);
    EXPECT_EQ(back->sampling.top_k, r.sampling.top_k);
    EXPECT_EQ(back->sampling.choice, r.sampling.choice);
    EXPECT_EQ(back->sampling.logit_bias, r.sampling.logit_bias);
    EXPECT_EQ(back->prompt_token_ids, r.prompt_token_ids);
    EXPECT_EQ(back->token_ids, r.token_ids);
    EXPECT_EQ(back->model_name, r.model_name);
  }
  r.sampling.temperature = 0.7F;
  EXPECT_NE(ReceiptJson(r).find("\"temperature\":0.7,"), std::string::npos);
}

TEST(Receipt, HoldsRopeSettingsOtherThanTheFilesOwn) {
  Receipt r = MakeReceipt();
  EXPECT_EQ(ReceiptJson(r).find("rope"), std::string::npos);
  EXPECT_EQ(ParseReceipt(ReceiptJson(r))->rope, RopeOptions());
  r.rope = {"yarn", 2.7, 32768};
  const std::string text = ReceiptJson(r);
  const absl::StatusOr<Receipt> back = ParseReceipt(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->rope, r.rope);
  const std::string whole = R"("rope":{"scaling":"yarn","scale":2.7,"orig_context":32768})";
  const size_t at = text.find(whole);
  ASSERT_NE(at, std::string::npos) << text;
  for (const char* bad : {R"("rope":3)", R"("rope":{"scaling":"yarn","scale":2.7})",
                          R"("rope":{"scaling":"x","scale":2.7,"orig_context":1})",
                          R"("rope":{"scaling":"yarn","scale":"2","orig_context":1})",
                          R"("rope":{"scaling":"yarn","scale":2,"orig_context":-1})"}) {
    std::string changed = text;
    EXPECT_FALSE(ParseReceipt(changed.replace(at, whole.size(), bad)).ok()) << bad;
  }
}

TEST(Receipt, CutAnywhereIsRefused) {
  const std::string text = ReceiptJson(MakeReceipt());
  for (size_t size = 0; size + 2 < text.size(); ++size)
    EXPECT_FALSE(ParseReceipt(text.substr(0, size)).ok()) << size;
}

TEST(Receipt, AnyByteChangedNeverThrows) {
  const std::string text = ReceiptJson(MakeReceipt());
  for (size_t i = 0; i < text.size(); ++i) {
    for (char c : {'\0', '"', '{', '9', '-', '\xff'}) {
      std::string changed = text;
      changed[i] = c;
      (void)ParseReceipt(changed);
    }
  }
}

TEST(CompletionJson, SurvivesTextThatIsNoUtf8) {
  Completion completion;
  completion.text = "\xff";
  EXPECT_NE(CompletionJson(completion).find("\"text\":\"\xef\xbf\xbd\""), std::string::npos);
  EXPECT_EQ(CompletionJson(completion).find('\n'), std::string::npos);
}

TEST(CompletionJson, TellsTimesAndTheChoiceOfDraft) {
  Completion completion;
  EXPECT_NE(CompletionJson(completion).find("\"choice\":null"), std::string::npos);
  completion.stats.choice.mode = "draft-kv";
  completion.stats.choice.reason = "fastest";
  completion.stats.choice.draft_len = 7;
  completion.stats.times.first_token_s = 0.5;
  const std::string json = CompletionJson(completion);
  EXPECT_NE(json.find(R"("choice":{"mode":"draft-kv","reason":"fastest","draft_len":7,)"),
            std::string::npos);
  EXPECT_NE(json.find(R"("times":{"start_s":0.0,"prefill_s":0.0,"first_token_s":0.5,)"),
            std::string::npos);
}

TEST(BatchLineJson, HasTheFieldsOfRunBehindItsOwn) {
  Completion completion;
  completion.text = "Hi";
  EXPECT_EQ(BatchLineJson("a", "", "d", &completion),
            R"({"custom_id":"a","error":null,"request_digest":"d",)" +
                CompletionJson(completion).substr(1));
  EXPECT_EQ(BatchLineJson("", "line 3: no", "", nullptr),
            R"({"custom_id":null,"error":"line 3: no","request_digest":null})");
}

}  // namespace
}  // namespace vericache::cli
