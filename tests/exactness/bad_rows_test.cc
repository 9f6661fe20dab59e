// A NaN, an infinity or an overflow in one row stays in that row (case 46).
#include <cmath>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"

namespace vericache {
namespace {

// Embedding rows of these tokens are poisoned; prompts of the tests avoid them.
constexpr TokenId kNanToken = 300, kInfToken = 301, kHugeToken = 302;

std::shared_ptr<const GgufFile> PoisonedModel() {
  TinyModelOptions o;
  std::string bytes = TinyModelBytes(o);
  const auto file = OpenBytes(bytes);
  const GgufTensor* embedding = file->FindTensor("token_embd.weight");
  const auto poison = [&](TokenId token, float value) {
    const size_t at = embedding->offset + (static_cast<size_t>(token) * o.hidden_size + 5) * 4;
    std::memcpy(bytes.data() + at, &value, 4);
  };
  poison(kNanToken, std::numeric_limits<float>::quiet_NaN());
  poison(kInfToken, std::numeric_limits<float>::infinity());
  poison(kHugeToken, 3e38f);
  return OpenBytes(std::move(bytes));
}

TEST(BadRows, RejectedBadDraftsChangeNothing) {
  const auto file = PoisonedModel();
  RunTask task;
  task.prompt = RandomPrompt(90, 290, 9);
  task.max_tokens = 40;
  const RunResult plain = Harness(file, "scalar", 1).Run(task, {});
  ASSERT_EQ(plain.finish, FinishReason::kLength);
  for (const char* isa : {"scalar", ""}) {
    for (TokenId bad : {kNanToken, kInfToken, kHugeToken}) {
      for (int at : {0, 1, 3}) {
        Harness harness(file, isa, 2);
        int count = 0;
        RunKnobs knobs;
        knobs.draft = "int8";
        knobs.draft_len = 5;
        knobs.adversary = [&](DraftToken token, int64_t) {
          return count++ % 5 == at ? DraftToken{bad} : token;
        };
        const RunResult drafted = harness.Run(task, knobs);
        EXPECT_EQ(drafted, plain) << isa << " token " << bad << " at " << at;
        EXPECT_GT(drafted.drafted, drafted.accepted);
      }
    }
  }
}

TEST(BadRows, OtherSequencesOfTheBatchGoOn) {
  const auto file = PoisonedModel();
  Harness harness(file, "", 2);
  RunTask good, bad;
  good.prompt = RandomPrompt(70, 290, 11);
  good.max_tokens = 24;
  bad.prompt = {1, 2, kNanToken, 3};
  bad.max_tokens = 24;
  const RunResult alone = harness.Run(good, {});
  const std::vector<RunResult> both = harness.RunBatch({bad, good}, {RunKnobs{}, RunKnobs{}});
  EXPECT_EQ(both[0].finish, FinishReason::kError);
  EXPECT_TRUE(both[0].tokens.empty());
  EXPECT_EQ(both[1], alone);
}

TEST(BadRows, AnEmittedBadRowFailsTheRequestWithItsPosition) {
  const auto file = PoisonedModel();
  Harness harness(file, "", 1);
  RunTask task;
  task.prompt = {5, 6, kInfToken};
  const auto s = harness.MakeSequence(task, {});
  Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
  ASSERT_TRUE(prefill.Run(s.get(), {}).ok());
  ASSERT_EQ(s->finish, FinishReason::kError);
  EXPECT_NE(s->error.message().find("non-finite logits at position 3"), absl::string_view::npos)
      << s->error;
}

}  // namespace
}  // namespace vericache
