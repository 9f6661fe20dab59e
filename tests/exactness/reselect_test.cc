// verify: after every round with a draft the draft KV is the one that a fresh prefill of the same
// tokens would choose, whatever was drafted and rejected on the way.
#include <string>

#include "engine/query_window.h"
#include "engine/verifier.h"
#include "gtest/gtest.h"
#include "kv/selectors/selector.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"

namespace vericache {
namespace {

std::string BytesOf(const DraftKv& draft) {
  std::string bytes;
  draft.AppendTo(&bytes);
  return bytes;
}

// The draft KV of the first n tokens, by one pass over all of them and its last queries.
std::string FreshDraft(Harness* harness, const Sequence& s, int64_t n) {
  const Model& model = harness->model();
  FullKv full(model.config.kv_shape(), model.kernels);
  QueryWindow window(model.config, s.spec.window);
  Sequence copy(std::move(full),
                Sampler({}, model.config.vocab_size, model.config.vocab_size, model.kernels));
  copy.tokens.assign(s.tokens.begin(), s.tokens.begin() + n);
  copy.num_prompt = n;
  copy.max_tokens = 2;
  copy.spec = s.spec;
  copy.ends_generation = [](TokenId) { return false; };
  copy.draft_length = s.draft_length;
  Prefill prefill(&model, &harness->forward(), &harness->pool());
  EXPECT_TRUE(prefill.Run(&copy, {}).ok());
  return copy.draft.has_value() ? BytesOf(*copy.draft) : "none";
}

TEST(Reselect, IsWhatAFreshPrefillWouldChoose) {
  TinyModelOptions options;
  options.type = TensorType::kQ5_0;
  options.head_dim = 32;
  options.vocab_size = 160;
  for (const char* spec : {"verify:0.3+int4", "verify:0.2,window=8", "verify:0.5,pool=1+int8"}) {
    Harness harness(OpenBytes(TinyModelBytes(options)), "", 2);
    RunTask task;
    task.prompt = RandomPrompt(300, options.vocab_size, 3);
    task.max_tokens = 60;
    RunKnobs knobs;
    knobs.draft = spec;
    knobs.draft_len = 9;
    // Some drafts are wrong at once, some later, some right.
    knobs.adversary = [](DraftToken token, int64_t pos) {
      return pos % 7 == 3 ? DraftToken{static_cast<int32_t>(pos % 160)} : token;
    };
    auto sequence = harness.MakeSequence(task, knobs);
    Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
    ASSERT_TRUE(prefill.Run(sequence.get(), {}).ok());
    RoundRunner rounds(&harness.model(), &harness.forward(), &harness.pool());
    int64_t rejected = 0;
    while (!sequence->done()) {
      Sequence* one = sequence.get();
      rounds.Run({&one, 1});
      if (one->done()) break;  // nothing will be drafted again
      rejected += one->rounds.back().drafted - one->rounds.back().accepted;
      ASSERT_TRUE(BytesOf(*one->draft) == FreshDraft(&harness, *one, one->full.num_tokens()))
          << spec << " after " << one->tokens.size() << " tokens";
    }
    EXPECT_GT(rejected, 0);
    EXPECT_GT(sequence->rounds.size(), 3u);
    EXPECT_LT(sequence->draft->num_bytes(), sequence->full.num_bytes());
  }
}

// Choosing anew costs more than a plain step: rounds without a draft only add their rows.
TEST(Reselect, WaitsWhileNothingIsDrafted) {
  TinyModelOptions options;
  options.type = TensorType::kQ5_0;
  options.head_dim = 32;
  options.vocab_size = 160;
  Harness harness(OpenBytes(TinyModelBytes(options)), "", 2);
  RunTask task;
  task.prompt = RandomPrompt(300, options.vocab_size, 3);
  task.max_tokens = 60;
  RunKnobs knobs;
  knobs.draft = "verify:0.3+int4";
  knobs.draft_len = 9;
  auto sequence = harness.MakeSequence(task, knobs);
  Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
  ASSERT_TRUE(prefill.Run(sequence.get(), {}).ok());
  Sequence* one = sequence.get();
  const auto is_fresh = [&] {
    return BytesOf(*one->draft) == FreshDraft(&harness, *one, one->full.num_tokens());
  };
  Verifier verifier(&harness.model(), &harness.forward(), &harness.pool());
  constexpr int kRoundsPerChoice = 32;
  for (int round = 1; round < kRoundsPerChoice; ++round) {
    verifier.Verify({&one, 1});
    ASSERT_FALSE(one->done());
    ASSERT_EQ(one->draft->num_tokens(), one->full.num_tokens());
    ASSERT_FALSE(is_fresh()) << "after " << round << " rounds";
  }
  verifier.Verify({&one, 1});
  EXPECT_TRUE(is_fresh());
  verifier.Verify({&one, 1});
  EXPECT_FALSE(is_fresh());
  RoundRunner rounds(&harness.model(), &harness.forward(), &harness.pool());
  rounds.Run({&one, 1});
  ASSERT_GT(one->rounds.back().drafted, 0);
  ASSERT_FALSE(one->done());
  EXPECT_TRUE(is_fresh());
}

}  // namespace
}  // namespace vericache
