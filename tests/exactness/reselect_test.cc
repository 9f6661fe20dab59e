// verify: after every round with a draft the draft KV is what the votes of that round's rows choose
// among the tokens that were committed before, plus the rows committed by it; wherever K/V lie, and
// whatever was drafted and rejected on the way.
#include <algorithm>
#include <string>

#include "engine/query_window.h"
#include "engine/verifier.h"
#include "gtest/gtest.h"
#include "kv/selectors/query_votes.h"
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

// Rows of a pass and what it says of them: votes by the pass, queries to count them again.
class VoteKeeper : public ForwardObserver {
 public:
  VoteKeeper(const ModelConfig& config, PassReselector::Voters voters, int64_t num_keys)
      : config_(config) {
    wish_.row_begin = voters.begin;
    wish_.row_end = voters.end;
    wish_.num_keys = num_keys;
    queries.num_heads = config.num_heads;
    queries.num_rows = voters.end - voters.begin;
    queries.first_pos = num_keys + voters.begin;
    queries.q.resize(config.num_layers);
  }
  void OnLayer(const LayerRows& rows) override {
    const int64_t row = static_cast<int64_t>(config_.num_heads) * config_.head_dim;
    queries.q[rows.layer].assign(rows.q + wish_.row_begin * row, rows.q + wish_.row_end * row);
  }
  const VoteWish* WantsVotes(int) override {
    votes_.assign(config_.num_kv_heads * wish_.votes_ld(), -1.0f);
    wish_.votes = votes_.data();
    return &wish_;
  }
  void OnVotes(int, const LayerKeys& keys) override {
    for (int head = keys.head_begin; head < keys.head_end; ++head) {
      const float* of_head = votes_.data() + head * wish_.votes_ld();
      votes.emplace_back(of_head, of_head + wish_.num_keys);
    }
  }
  QueryRows queries;
  std::vector<std::vector<float>> votes;  // [layer * num_kv_heads + kv_head][num_keys]

 private:
  const ModelConfig& config_;
  VoteWish wish_;
  std::vector<float> votes_;
};

// A verification of `rows` behind the first n tokens, run again.
VoteKeeper VotesAgain(Harness* harness, const Sequence& s, int64_t n,
                      const std::vector<TokenId>& rows, PassReselector::Voters voters,
                      FullKv* prefix) {
  const Model& model = harness->model();
  *prefix = s.full.Fork(n);
  VoteKeeper keeper(model.config, voters, n);
  EXPECT_TRUE(prefix->Reserve(rows.size()).ok());
  RowGroup group;
  group.tokens = rows;
  group.first_pos = n;
  group.kv = prefix;
  group.logits_begin = static_cast<int64_t>(rows.size());
  group.observer = &keeper;
  HiddenRows hidden;
  harness->forward().Run({&group, 1}, &hidden);
  EXPECT_TRUE(prefix->pass_status().ok());
  return keeper;
}

// What the draft KV should be after that round, of which num_emitted rows were committed.
std::string ExpectedDraft(Harness* harness, const Sequence& s, const VoteKeeper& keeper,
                          const FullKv& prefix, int64_t num_emitted) {
  const Model& model = harness->model();
  DraftKv draft = NewDraftKv(model.config.kv_shape(), s.spec, model.kernels);
  SelectInput input;
  input.kernels = model.kernels;
  input.pool = &harness->pool();
  EXPECT_TRUE(ForEachLayers(prefix, [&](const LayerViews& layers) {
                input.layers = &layers;
                input.votes.clear();
                for (int list = input.first_list(); list < input.end_list(); ++list)
                  input.votes.push_back(keeper.votes[list]);
                draft.Rebuild(layers, SelectPositions(s.spec, input), &harness->pool());
              }).ok());
  const int64_t n = prefix.num_tokens();
  EXPECT_TRUE(draft.CommitRows(s.full, n, n + num_emitted, &harness->pool()).ok());
  return BytesOf(draft);
}

double MeanRun(const Sequence& s) {
  const int64_t n = std::min<int64_t>(4, std::ssize(s.rounds));
  double emitted = 0;
  for (int64_t i = 0; i < n; ++i) emitted += s.rounds[s.rounds.size() - 1 - i].emitted;
  return n == 0 ? 1e9 : emitted / static_cast<double>(n);
}

// The draft KV after each round, for a comparison of tiers.
std::vector<std::string> DraftsOf(Harness* harness, const char* spec, bool spilled) {
  RunTask task;
  task.prompt = RandomPrompt(300, 160, 3);
  task.max_tokens = 60;
  RunKnobs knobs;
  knobs.draft = spec;
  knobs.draft_len = 9;
  if (spilled) knobs.tier = harness->MakeTier(512, 2);
  // Some drafts are wrong at once, some later, some right.
  knobs.adversary = [](DraftToken token, int64_t pos) {
    return pos % 7 == 3 ? DraftToken{static_cast<int32_t>(pos % 160)} : token;
  };
  auto sequence = harness->MakeSequence(task, knobs);
  std::vector<TokenId> rows;
  sequence->on_drafted = [&rows](const Sequence& s) {
    rows.assign(1, s.tokens.back());
    for (const DraftToken token : s.drafted) rows.push_back(token.id);
  };
  Prefill prefill(&harness->model(), &harness->forward(), &harness->pool());
  EXPECT_TRUE(prefill.Run(sequence.get(), {}).ok());
  RoundRunner rounds(&harness->model(), &harness->forward(), &harness->pool());
  std::vector<std::string> drafts;
  int64_t rejected = 0;
  while (!sequence->done()) {
    Sequence* one = sequence.get();
    const int64_t n = one->full.num_tokens();
    const double mean_run = MeanRun(*one);
    rounds.Run({&one, 1});
    if (one->done()) break;  // nothing will be drafted again
    rejected += one->rounds.back().drafted - one->rounds.back().accepted;
    const int64_t num_rows = std::ssize(rows);
    const auto voters =
        PassReselector::VotersOf(num_rows, std::min(mean_run, static_cast<double>(num_rows)),
                                 QueryRowsOfRound(one->spec, num_rows));
    FullKv prefix(one->full.shape(), harness->model().kernels);
    const VoteKeeper keeper = VotesAgain(harness, *one, n, rows, voters, &prefix);
    drafts.push_back(BytesOf(*one->draft));
    EXPECT_TRUE(drafts.back() ==
                ExpectedDraft(harness, *one, keeper, prefix, one->rounds.back().emitted))
        << spec << " after " << one->tokens.size() << " tokens";
  }
  EXPECT_GT(rejected, 0);
  EXPECT_GT(sequence->rounds.size(), 3u);
  EXPECT_EQ(sequence->full.num_cold_blocks() > 0, spilled);
  EXPECT_LT(sequence->draft->num_bytes(), sequence->full.num_bytes());
  return drafts;
}

TinyModelOptions SmallModel() {
  TinyModelOptions options;
  options.type = TensorType::kQ5_0;
  options.head_dim = 32;
  options.vocab_size = 160;
  return options;
}

TEST(Reselect, IsWhatTheRoundsVotesChooseInRamAndSpilled) {
  for (const char* spec : {"verify:0.3+int4", "verify:0.2,window=8", "verify:0.5,pool=1+int8"}) {
    Harness harness(OpenBytes(TinyModelBytes(SmallModel())), "", 2);
    EXPECT_EQ(DraftsOf(&harness, spec, false), DraftsOf(&harness, spec, true)) << spec;
  }
}

// The votes of the attention itself are those that queries count afterwards, but for their f16.
TEST(Reselect, VotesAreThoseThatQueriesCountAfterwards) {
  TinyModelOptions options = SmallModel();
  options.num_heads = 7;
  options.num_kv_heads = 1;
  for (const int threads : {1, 2}) {
    Harness harness(OpenBytes(TinyModelBytes(options)), "", threads);
    RunTask task;
    task.prompt = RandomPrompt(2200, 160, 5);
    auto sequence = harness.MakeSequence(task, {});
    Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
    ASSERT_TRUE(prefill.Run(sequence.get(), {}).ok());
    const int64_t n = sequence->full.num_tokens();
    const std::vector<TokenId> rows = RandomPrompt(40, 160, 6);  // more than one tile
    FullKv prefix(sequence->full.shape(), harness.model().kernels);
    const VoteKeeper keeper =
        VotesAgain(&harness, *sequence, n, rows, PassReselector::Voters{7, 39}, &prefix);
    // The same rows committed: softmaxes see the rows' own keys.
    task.prompt.insert(task.prompt.end(), rows.begin(), rows.end());
    auto longer = harness.MakeSequence(task, {});
    ASSERT_TRUE(prefill.Run(longer.get(), {}).ok());
    const LayerViews layers = AllLayers(longer->full);
    SelectInput input;
    input.layers = &layers;
    input.queries = &keeper.queries;
    input.kernels = harness.model().kernels;
    input.pool = &harness.pool();
    ASSERT_EQ(keeper.votes.size(), 2u);
    for (int layer = 0; layer < 2; ++layer) {
      const std::vector<float> expected = VotesOf(input, layer, 0, 0, 32);
      for (int64_t j = 0; j < n; ++j)
        ASSERT_NEAR(keeper.votes[layer][j], expected[j], 1e-3 * expected[j] + 1e-5) << j;
    }
  }
}

// Choosing anew costs more than a plain step: rounds without a draft only add their rows.
TEST(Reselect, WaitsWhileNothingIsDrafted) {
  const TinyModelOptions options = SmallModel();
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
  EXPECT_EQ(one->plain_rounds, 0);
}

}  // namespace
}  // namespace vericache
