// Drafting over a part of the vocabulary: what is emitted stays the full KV's, what is drafted
// stays within the part and does not depend on who else drafts.
#include <algorithm>

#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"

namespace vericache {
namespace {

constexpr int kVocab = 40009;  // more than twice the common part; not a multiple of a tile

TinyModelOptions LargeVocabulary() {
  TinyModelOptions options;
  options.type = TensorType::kQ8_0;
  options.hidden_size = 64;
  options.intermediate_size = 64;
  options.vocab_size = kVocab;
  return options;
}

std::vector<RunTask> Tasks() {
  std::vector<RunTask> tasks(3);
  for (size_t i = 0; i < tasks.size(); ++i) {
    tasks[i].prompt = RandomPrompt(150 + 40 * static_cast<int64_t>(i), kVocab, 11 + i);
    tasks[i].max_tokens = 24;
  }
  tasks[1].sampling.temperature = 0.9f;
  tasks[1].sampling.seed = 5;
  tasks[2].sampling.frequency_penalty = 0.7f;
  return tasks;
}

TEST(DraftVocabulary, AnswersAreThoseOfPlainDecodingAndDraftsIgnoreNeighbours) {
  for (const char* isa : {"scalar", ""}) {
    Harness harness(OpenBytes(TinyModelBytes(LargeVocabulary())), isa, 2);
    RunKnobs drafting;
    drafting.draft = "int8";
    drafting.draft_len = 4;
    const std::vector<RunTask> tasks = Tasks();
    const std::vector<RunResult> together =
        harness.RunBatch(tasks, std::vector<RunKnobs>(tasks.size(), drafting));
    int64_t rejected = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const RunResult plain = harness.Run(tasks[i], {}), alone = harness.Run(tasks[i], drafting);
      EXPECT_TRUE(alone == plain) << i;
      EXPECT_TRUE(together[i] == plain) << i;
      EXPECT_EQ(alone.drafted, together[i].drafted) << i;
      EXPECT_EQ(alone.accepted, together[i].accepted) << i;
      EXPECT_GT(alone.drafted, 0);
      rejected += alone.drafted - alone.accepted;
    }
    // A random model's answer leaves the common part often: those tokens cannot be drafted.
    EXPECT_GT(rejected, 0);
  }
}

TEST(DraftVocabulary, NothingElseIsDrafted) {
  Harness harness(OpenBytes(TinyModelBytes(LargeVocabulary())), "", 2);
  RunKnobs knobs;
  knobs.draft = "int8";
  knobs.draft_len = 6;
  auto sequence = harness.MakeSequence(Tasks()[0], knobs);
  Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
  ASSERT_TRUE(prefill.Run(sequence.get(), {}).ok());
  RoundRunner rounds(&harness.model(), &harness.forward(), &harness.pool());
  int64_t num_drafted = 0;
  sequence->on_drafted = [&](const Sequence& s) {
    ++num_drafted;
    EXPECT_TRUE(s.draft_vocab.Has(s.drafted.back().id)) << s.drafted.back().id;
    // What has been seen can be drafted, and much of the vocabulary cannot.
    for (const TokenId token : s.tokens) EXPECT_TRUE(s.draft_vocab.Has(token));
  };
  Sequence* one = sequence.get();
  while (!one->done()) rounds.Run({&one, 1});
  EXPECT_GT(num_drafted, 10);
  int64_t left_out = 0;
  for (TokenId id = 0; id < kVocab; ++id) left_out += !one->draft_vocab.Has(id);
  EXPECT_GT(left_out, kVocab / 4);
}

}  // namespace
}  // namespace vericache
