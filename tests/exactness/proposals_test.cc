// Whoever proposes tokens, and whatever they are, the answer is that of plain decoding: look-up and
// a small model, verified at once or checked by the draft KV first, alone and beside others, in RAM
// and spilled, with proposals that are right, wrong, or end the generation.
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "api/request_loop.h"
#include "engine/drafter.h"
#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"

namespace vericache {
namespace {

constexpr int kVocab = 160;
constexpr uint32_t kPlain = ModeBit(DraftMode::kPlain);
constexpr const char* kSpecs[] = {"int4", "verify:0.25+int4", "off", "quest:0.2,whole=1",
                                  "sink:0.2"};

TinyModelOptions ModelOptions(int num_layers, uint64_t seed) {
  TinyModelOptions options;
  options.type = TensorType::kQ5_0;
  options.vocab_size = kVocab;
  options.num_layers = num_layers;
  options.seed = seed;
  return options;
}

enum class Heckling { kNone, kRandom, kTruth, kMixed, kEnds, kNonsense };

// Changes proposals: the coming tokens of `answer`, random ones, or what must not be one at all.
void Heckle(Heckling kind, const std::vector<TokenId>& answer, TokenId eos, uint64_t* state,
            const Sequence& s, int64_t max_tokens, std::vector<TokenId>* proposal) {
  if (kind == Heckling::kNone) return;
  size_t next = s.num_emitted() + s.drafted.size();
  proposal->clear();
  for (int64_t i = 0; i < max_tokens; ++i, ++next) {
    TokenId token = static_cast<TokenId>(NextRandom(state) % kVocab);
    const bool true_one =
        kind == Heckling::kTruth || (kind != Heckling::kRandom && NextRandom(state) % 8 != 0);
    if (true_one && next < answer.size()) token = answer[next];
    if (kind == Heckling::kEnds && NextRandom(state) % 6 == 0) token = eos;
    if (kind == Heckling::kNonsense && NextRandom(state) % 6 == 0)
      token = NextRandom(state) % 2 == 0 ? -1 : kVocab + 5;
    proposal->push_back(token);
  }
  if (kind == Heckling::kNonsense) proposal->resize(proposal->size() + 3, 7);  // too many
}

struct Totals {
  std::map<std::string, RoundStats> of_mode;
  std::map<std::string, int64_t> rounds;
  int64_t stops = 0, cells = 0, preempted = 0, bytes_read = 0, waits = 0;
};

// Drafted, accepted and emitted of each round add up to the answer.
void CheckRounds(const Sequence& s, Totals* totals) {
  int64_t emitted = 0;
  for (const RoundStats& round : s.rounds) {
    emitted += round.emitted;
    ASSERT_LE(round.accepted, round.drafted);
    ASSERT_LE(round.emitted, round.accepted + 1);
    ASSERT_GE(round.emitted, std::max(1, round.accepted));
    ASSERT_TRUE(round.emitted > round.accepted || &round == &s.rounds.back());
    ASSERT_TRUE(std::string(round.mode) != "plain" || round.drafted == 0);
    RoundStats& sum = totals->of_mode[round.mode];
    sum.drafted += round.drafted;
    sum.accepted += round.accepted;
    ++totals->rounds[round.mode];
  }
  ASSERT_EQ(emitted + 1, s.num_emitted());
}

class Proposals : public ::testing::Test {
 protected:
  Proposals() {
    auto kernels = SelectKernels("");
    small_model_ =
        *Model::Load(OpenBytes(TinyModelBytes(ModelOptions(1, 9))), *kernels, &harness_.pool());
    stranger_.emplace(small_model_.get(), kVocab, &harness_.pool());
    twin_.emplace(&harness_.model(), kVocab, &harness_.pool());
  }

  int64_t Pick(int64_t n) { return static_cast<int64_t>(NextRandom(&state_) % n); }

  RunTask Task() {
    RunTask task;
    task.prompt = RandomPrompt(1 + Pick(Pick(4) < longer_ ? 500 : 60), kVocab, NextRandom(&state_));
    task.max_tokens = 1 + Pick(60);
    if (Pick(2) == 0) {
      task.sampling.temperature = 0.3f + 0.2f * static_cast<float>(Pick(4));
      task.sampling.seed = NextRandom(&state_);
      if (Pick(2) == 0) task.sampling.top_k = 20;
    }
    if (Pick(3) == 0) {
      task.sampling.repetition_penalty = 1.2f;
      task.sampling.frequency_penalty = 0.3f;
    }
    return task;
  }

  // One loop of `tasks`; all must be as alone and plain. staging_layers: of the longest; 0: all K/V
  // stay in RAM. promised_layers: what the scheduler believes there are.
  void RunCell(uint32_t modes, int64_t num_requests, int64_t staging_layers,
               int64_t promised_layers, Totals* totals) {
    const bool spilled = staging_layers > 0;
    std::vector<RunTask> tasks;
    std::vector<RunResult> want;
    std::vector<std::unique_ptr<Sequence>> ended(num_requests);
    LoopOptions options;
    options.max_pass_rows = 64 + Pick(200);
    const bool lock_step = Pick(4) == 0 || promised_layers > staging_layers;
    options.stagger = lock_step ? StaggerPolicy::kLockStep : StaggerPolicy::kStaggered;
    LoopParts parts{&harness_.model(), &harness_.forward(), &harness_.pool()};
    ModelProposer* small = Pick(2) == 0 ? &*stranger_ : &*twin_;
    parts.small = small;
    const int64_t token_bytes =
        static_cast<int64_t>(harness_.model().config.kv_shape().bytes_per_token());
    std::shared_ptr<KvTier> tier;
    if (spilled) {
      tier = harness_.MakeTier(1024, static_cast<double>(staging_layers));
      parts.tier = tier.get();
      options.staging_bytes = tier->staging().num_bytes() / staging_layers * promised_layers;
      options.kv_memory = options.staging_bytes + (2000 + 300 * Pick(10)) * token_bytes;
    }
    RequestLoop loop(parts, options);
    for (int64_t i = 0; i < num_requests; ++i) {
      tasks.push_back(Task());
      want.push_back(harness_.Run(tasks[i], {}));
      // Often a token that does come is the one that ends it.
      if (Pick(3) == 0) tasks[i].eos = want[i].tokens[Pick(std::ssize(want[i].tokens))];
      if (tasks[i].eos >= 0) want[i] = harness_.Run(tasks[i], {});
      RunKnobs knobs;
      knobs.draft = kSpecs[Pick(std::size(kSpecs))];
      knobs.draft_len = static_cast<int>(Pick(5) == 0 ? 0 : 1 + Pick(20));
      knobs.tier = tier;
      if (Pick(4) == 0)
        knobs.adversary = [](DraftToken token, int64_t pos) {
          return pos % 5 == 3 ? DraftToken{static_cast<TokenId>(pos % kVocab)} : token;
        };
      std::unique_ptr<Sequence> s = harness_.MakeSequence(tasks[i], knobs);
      s->small_bytes = small->BytesFor(tasks[i].prompt.size() + tasks[i].max_tokens + 64);
      const auto kind = static_cast<Heckling>(Pick(6));
      s->heckler = [kind, answer = want[i].tokens, eos = tasks[i].eos, state = NextRandom(&state_)](
                       const Sequence& sequence, int64_t n, std::vector<TokenId>* tokens) mutable {
        Heckle(kind, answer, eos, &state, sequence, n, tokens);
      };
      LoopHooks hooks;
      hooks.on_end = [&ended, i](std::unique_ptr<Sequence> sequence, const RequestTimes&) {
        ended[i] = std::move(sequence);
      };
      ASSERT_TRUE(loop.Add(std::move(s), {token_bytes, 0, modes}, std::move(hooks)).ok());
    }
    while (loop.Step()) {
    }
    for (int64_t i = 0; i < num_requests; ++i) {
      ASSERT_NE(ended[i], nullptr);
      const Sequence& s = *ended[i];
      const std::vector<TokenId> tokens(s.tokens.begin() + s.num_prompt, s.tokens.end());
      ASSERT_EQ(tokens, want[i].tokens) << s.error;
      ASSERT_EQ(s.chain.Hex(), want[i].hash);
      ASSERT_EQ(s.finish, want[i].finish);
      ASSERT_NO_FATAL_FAILURE(CheckRounds(s, totals));
      totals->stops += s.finish == FinishReason::kStop;
      totals->bytes_read += s.full.stream_totals().bytes;
    }
    ++totals->cells;
    totals->preempted += loop.report().num_preempted;
    totals->waits += loop.report().num_staging_waits;
    ended.clear();
    if (!spilled) return;
    ASSERT_EQ(tier->pool().num_used(), 0) << "a block leaked";
    ASSERT_EQ(tier->staging().num_free(), tier->staging().num_slots());
  }

  Harness harness_{OpenBytes(TinyModelBytes(ModelOptions(2, 1))), "", 2};
  std::unique_ptr<Model> small_model_;
  std::optional<ModelProposer> stranger_, twin_;
  uint64_t state_ = 11;
  int64_t longer_ = 1;  // of four prompts
};

TEST_F(Proposals, NoMismatchInAnyMode) {
  constexpr uint32_t kMasks[] = {ModeBit(DraftMode::kNgram),
                                 ModeBit(DraftMode::kDraftModel),
                                 ModeBit(DraftMode::kNgramDraftKv),
                                 ModeBit(DraftMode::kModelDraftKv),
                                 kNgramModes | ModeBit(DraftMode::kDraftKv),
                                 kNgramModes | kModelModes | kDraftKvModes};
  Totals totals;
  for (int cell = 0; cell < 120; ++cell) {
    SCOPED_TRACE("cell " + std::to_string(cell));
    const int64_t num_requests = cell % 3 == 0 ? 2 + Pick(4) : 1;
    const int64_t layers = cell % 4 == 1 ? 2 * num_requests : 0;
    ASSERT_NO_FATAL_FAILURE(
        RunCell(kPlain | kMasks[cell % std::size(kMasks)], num_requests, layers, layers, &totals));
  }
  // The matrix must have met what it is about.
  for (const char* mode : {"ngram", "draft-model", "ngram+draft-kv", "draft-model+draft-kv"}) {
    const RoundStats& sum = totals.of_mode[mode];
    std::printf("%s: %lld rounds, %d drafted, %d accepted\n", mode,
                static_cast<long long>(totals.rounds[mode]), sum.drafted, sum.accepted);
    EXPECT_GT(sum.accepted, 100) << mode;
    EXPECT_GT(sum.drafted - sum.accepted, 100) << mode;
  }
  std::printf("%lld stops, %lld preempted, %lld bytes read\n", static_cast<long long>(totals.stops),
              static_cast<long long>(totals.preempted), static_cast<long long>(totals.bytes_read));
  EXPECT_GT(totals.stops, 10);
  EXPECT_GT(totals.bytes_read, 0);
}

// The scheduler believes in staging for six, and there is some for one: passes leave out who finds
// none, and nobody fails.
TEST_F(Proposals, WhoFindsNoStagingIsPlannedAgain) {
  Totals totals;
  longer_ = 4;
  for (int cell = 0; cell < 24; ++cell) {
    SCOPED_TRACE("cell " + std::to_string(cell));
    ASSERT_NO_FATAL_FAILURE(
        RunCell(kPlain | kNgramModes | kModelModes | kDraftKvModes, 2 + Pick(5), 1, 6, &totals));
  }
  EXPECT_GT(totals.bytes_read, 0);
  EXPECT_GT(totals.waits, 0);
}

// A twin of the model proposes what the model will say, and all of it is accepted: its K/V follow
// what was verified.
TEST_F(Proposals, AModelAlwaysAgreesWithItself) {
  for (const float temperature : {0.0f, 0.7f}) {
    RunTask task;
    task.prompt = RandomPrompt(90, kVocab, 3);
    task.max_tokens = 101;
    task.sampling.temperature = temperature;
    const RunResult want = harness_.Run(task, {});
    RunKnobs knobs;
    knobs.draft_len = 9;
    std::unique_ptr<Sequence> s = harness_.MakeSequence(task, knobs), ended;
    s->small_bytes = 1;
    LoopParts parts{&harness_.model(), &harness_.forward(), &harness_.pool()};
    parts.small = &*twin_;
    RequestLoop loop(parts, {});
    LoopHooks hooks;
    hooks.on_end = [&](std::unique_ptr<Sequence> sequence, const RequestTimes&) {
      ended = std::move(sequence);
    };
    ASSERT_TRUE(loop.Add(std::move(s), {0, 0, kPlain | kModelModes}, std::move(hooks)).ok());
    while (loop.Step()) {
    }
    EXPECT_EQ(ended->chain.Hex(), want.hash);
    EXPECT_EQ(ended->rounds.size(), 10);
    for (const RoundStats& round : ended->rounds) {
      EXPECT_EQ(round.drafted, 9);
      EXPECT_EQ(round.accepted, 9);
    }
  }
}

// The provisional rows of a draft KV, all heads.
std::vector<uint16_t> TailOf(DraftKv* draft, const ModelConfig& config) {
  std::vector<uint16_t> all;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const KvView view = draft->Layer(layer);
    for (int h = 0; h < config.num_kv_heads; ++h) {
      const DraftHeadView& head = view.draft[h];
      const size_t keys = (head.num_tail + kKvLanes - 1) / kKvLanes * kKvLanes;
      all.push_back(static_cast<uint16_t>(head.num_tail));
      all.insert(all.end(), head.tail_k, head.tail_k + keys * config.head_dim);
      all.insert(all.end(), head.tail_v, head.tail_v + keys * config.kv_shape().padded_head_dim());
    }
  }
  return all;
}

// Many rows a step draft the tokens that one row a step does, and leave the same draft KV.
TEST_F(Proposals, RowsOfProposalsDraftTheSameTokens) {
  const ModelConfig& config = harness_.model().config;
  int64_t kept = 0, dropped = 0;
  for (int cell = 0; cell < 40; ++cell) {
    RunTask task = Task();
    task.max_tokens = 200;
    RunKnobs knobs;
    knobs.draft = cell % 2 == 0 ? "verify:0.25+int4" : "quest:0.2,whole=1";
    std::unique_ptr<Sequence> one = harness_.MakeSequence(task, knobs);
    std::unique_ptr<Sequence> many = harness_.MakeSequence(task, knobs);
    Prefill prefill(&harness_.model(), &harness_.forward(), &harness_.pool());
    ASSERT_TRUE(prefill.Run(one.get(), {}).ok());
    ASSERT_TRUE(prefill.Run(many.get(), {}).ok());
    Drafter drafter(&harness_.model(), &harness_.forward());
    std::vector<Sequence*> single = {one.get()};
    for (int i = 0; i < 40; ++i) drafter.Step(single);
    while (many->drafted.size() < 34) {
      std::vector<TokenId> proposal;
      for (int64_t i = Pick(6); i > 0; --i) {
        const size_t at = many->drafted.size() + proposal.size();
        proposal.push_back(Pick(4) == 0 ? static_cast<TokenId>(Pick(kVocab)) : one->drafted[at].id);
      }
      DraftRows rows{many.get(), proposal};
      std::vector<RowGroup> batch;
      HiddenRows hidden;
      ASSERT_EQ(drafter.Plan({&rows, 1}, &batch), std::ssize(proposal) + 1);
      harness_.forward().Run(batch, &hidden);
      drafter.Settle(hidden, 0, true);
      ASSERT_GE(rows.num_drafted, 1);
      ASSERT_EQ(rows.confidence.size(), rows.num_drafted);
      kept += rows.num_drafted - 1;
      dropped += std::ssize(proposal) + 1 - rows.num_drafted;
    }
    while (many->drafted.size() < 40) {
      std::vector<Sequence*> list = {many.get()};
      drafter.Step(list);
    }
    for (size_t i = 0; i < 40; ++i) ASSERT_EQ(many->drafted[i].id, one->drafted[i].id) << i;
    ASSERT_EQ(TailOf(&*many->draft, config), TailOf(&*one->draft, config));
  }
  EXPECT_GT(kept, 100);
  EXPECT_GT(dropped, 100);
}

}  // namespace
}  // namespace vericache
