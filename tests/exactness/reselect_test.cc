// verify: after every round with a draft the draft KV is what the votes of that round's rows choose
// among the tokens that were committed before, plus the rows committed by it; wherever K/V lie, and
// whatever was drafted and rejected on the way. The same goes for the last rows of a prompt.
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

// A prompt whose chunks end in one of `last` rows: its draft KV.
std::string DraftOfPrompt(Harness* harness, const char* spec, int64_t last, bool spilled) {
  constexpr int64_t kChunk = 512, n = 8 * kChunk;
  RunTask task;
  task.prompt = RandomPrompt(n + last, 160, 11);
  RunKnobs knobs;
  knobs.draft = spec;
  if (spilled) knobs.tier = harness->MakeTier(4608, 2);
  auto sequence = harness->MakeSequence(task, knobs);
  Prefill prefill(&harness->model(), &harness->forward(), &harness->pool());
  PrefillOptions options;
  options.chunk_rows = kChunk;
  EXPECT_TRUE(prefill.Run(sequence.get(), options).ok());
  EXPECT_EQ(sequence->full.num_cold_blocks() > 0, spilled);
  const Sequence& s = *sequence;
  const std::vector<TokenId> rows(s.tokens.begin() + n, s.tokens.begin() + n + last);
  const auto voters =
      PassReselector::VotersOf(last, static_cast<double>(last), QueryRowsOfRound(s.spec, last));
  FullKv prefix(s.full.shape(), harness->model().kernels);
  const VoteKeeper keeper = VotesAgain(harness, s, n, rows, voters, &prefix);
  EXPECT_TRUE(BytesOf(*s.draft) == ExpectedDraft(harness, s, keeper, prefix, last)) << spec;
  return BytesOf(*s.draft);
}

TEST(Reselect, APromptsLastRowsChooseInTheirOwnPass) {
  for (const char* spec : {"verify:0.3+int4", "verify:0.2,window=8", "verify:0.5,pool=1+int8"}) {
    Harness harness(OpenBytes(TinyModelBytes(SmallModel())), "", 2);
    for (const int64_t last : {16, 40, 64})
      EXPECT_EQ(DraftOfPrompt(&harness, spec, last, false),
                DraftOfPrompt(&harness, spec, last, true))
          << spec << " " << last;
  }
}

// Fewer rows than may vote, more than are appended whole, and short prompts are asked afterwards:
// all of the window's queries, over all keys.
TEST(Reselect, OtherPromptsAreAskedAfterwards) {
  Harness harness(OpenBytes(TinyModelBytes(SmallModel())), "", 2);
  struct Prompt {
    int64_t chunk, num_chunks, last;
  };
  for (const auto& [chunk, num_chunks, last] :
       {Prompt{512, 8, 15}, Prompt{140, 2, 40}, Prompt{140, 2, 65}}) {
    RunTask task;
    task.prompt = RandomPrompt(chunk * num_chunks + last, 160, 11);
    RunKnobs knobs;
    knobs.draft = "verify:0.3+int4";
    auto sequence = harness.MakeSequence(task, knobs);
    Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
    PrefillOptions options;
    options.chunk_rows = chunk;
    ASSERT_TRUE(prefill.Run(sequence.get(), options).ok());
    EXPECT_TRUE(BytesOf(*sequence->draft) ==
                FreshDraft(&harness, *sequence, sequence->full.num_tokens()))
        << last;
  }
}

// A long prompt's last chunk is cut so that it can choose.
TEST(Reselect, ALongPromptEndsInAChunkThatChooses) {
  Harness harness(OpenBytes(TinyModelBytes(SmallModel())), "", 2);
  for (const char* draft : {"verify:0.3+int4", "verify:0.3,score=vegas+int4", "sink:0.3"}) {
    RunTask task;
    task.prompt = RandomPrompt(4300, 160, 12);
    RunKnobs knobs;
    knobs.draft = draft;
    auto sequence = harness.MakeSequence(task, knobs);
    std::vector<int64_t> ends;
    PrefillOptions options;
    options.chunk_rows = 512;
    options.progress = [&](int64_t done, int64_t) { return ends.push_back(done), true; };
    Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
    ASSERT_TRUE(prefill.Run(sequence.get(), options).ok());
    ASSERT_GE(ends.size(), 2u);
    const bool cut = std::string(draft) == "verify:0.3+int4";
    EXPECT_EQ(ends.back() - ends[ends.size() - 2], cut ? 16 : 4300 - 8 * 512) << draft;
    EXPECT_EQ(sequence->draft->num_tokens(), 4300) << draft;
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

// Choosing anew costs more than a plain step: rounds that do not use the draft KV only add their
// rows, until it is to draft again.
TEST(Reselect, WaitsUntilTheDraftKvDraftsAgain) {
  const TinyModelOptions options = SmallModel();
  Harness harness(OpenBytes(TinyModelBytes(options)), "", 2);
  RunTask task;
  task.prompt = RandomPrompt(300, options.vocab_size, 3);
  task.max_tokens = 700;
  RunKnobs knobs;
  knobs.draft = "verify:0.3+int4";
  knobs.draft_len = 9;
  auto sequence = harness.MakeSequence(task, knobs);
  sequence->ends_generation = [](TokenId) { return false; };
  Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
  ASSERT_TRUE(prefill.Run(sequence.get(), {}).ok());
  Sequence* one = sequence.get();
  const auto is_fresh = [&] {
    return BytesOf(*one->draft) == FreshDraft(&harness, *one, one->full.num_tokens());
  };
  Verifier verifier(&harness.model(), &harness.forward(), &harness.pool());
  // A wrong token that something else proposes, now and then.
  const auto round = [&](int idx) {
    if (idx % 3 == 0) {
      one->drafted.push_back({static_cast<TokenId>(idx % 160)});
      one->proposed = true;
    }
    verifier.Verify({&one, 1});
  };
  constexpr int kStale = 32, kMost = 512;
  for (int i = 1; i < kStale; ++i) {
    round(i);
    ASSERT_FALSE(one->done());
    ASSERT_EQ(one->draft->num_tokens(), one->full.num_tokens());
    ASSERT_FALSE(is_fresh()) << "after " << i << " rounds";
    ASSERT_GE(one->num_unchosen, i);
  }
  if (one->num_unchosen < kStale) {
    verifier.RefreshChoice(one);
    ASSERT_FALSE(is_fresh());  // not yet too old
  }
  while (one->num_unchosen < kStale) round(1);
  ASSERT_FALSE(is_fresh());
  verifier.RefreshChoice(one);
  EXPECT_TRUE(is_fresh());
  EXPECT_EQ(one->num_unchosen, 0);
  // In rounds it is done before the draft.
  while (one->num_unchosen < kStale) round(1);
  RoundRunner rounds(&harness.model(), &harness.forward(), &harness.pool());
  one->proposed = true;  // left from a proposal that was withdrawn
  rounds.Run({&one, 1});
  ASSERT_GT(one->rounds.back().drafted, 0);
  ASSERT_FALSE(one->done());
  EXPECT_EQ(one->num_unchosen, 0);
  // It does not grow without end.
  int64_t most = 0;
  for (int i = 0; i < kMost + 8 && !one->done(); ++i) {
    round(1);
    most = std::max(most, one->num_unchosen);
  }
  EXPECT_EQ(most, kMost - 1);
}

// Under a budget the draft KV may not grow: plain rounds choose anew as soon as enough can vote.
TEST(Reselect, DoesNotWaitUnderABudget) {
  const TinyModelOptions options = SmallModel();
  Harness harness(OpenBytes(TinyModelBytes(options)), "", 2);
  RunTask task;
  task.prompt = RandomPrompt(300, options.vocab_size, 3);
  task.max_tokens = 80;
  RunKnobs knobs;
  knobs.draft = "verify:0.3+int4";
  knobs.tier = harness.MakeTier(512, 2);
  auto sequence = harness.MakeSequence(task, knobs);
  sequence->ends_generation = [](TokenId) { return false; };
  Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
  ASSERT_TRUE(prefill.Run(sequence.get(), {}).ok());
  Sequence* one = sequence.get();
  Verifier verifier(&harness.model(), &harness.forward(), &harness.pool());
  int64_t most = 0;
  for (int i = 0; i < 70; ++i) {
    verifier.Verify({&one, 1});
    most = std::max(most, one->num_unchosen);
  }
  EXPECT_EQ(most, 31);
}

}  // namespace
}  // namespace vericache
