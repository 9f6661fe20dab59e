// The exactness matrix: emitted tokens and the hash of their logits equal plain full-KV decoding,
// for every draft length x compressor x adversary x threads x batch mix x ISA, greedy and seeded.
//
// VERICACHE_MATRIX_TOKENS (environment) sets how many emitted tokens to compare; the default keeps
// the quick check short, `make check-all` asks for more.
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"

namespace vericache {
namespace {

constexpr int kDraftLengths[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 64};
// Every selector, every codec, and the exceptions by layer.
constexpr const char* kSpecs[] = {"f16",
                                  "int8",
                                  "int7",
                                  "int6",
                                  "int5",
                                  "int4",
                                  "int3",
                                  "int2",
                                  "k8v4",
                                  "k16v2",
                                  "k4v16",
                                  "kivi2",
                                  "kivi4",
                                  "rot2",
                                  "rot3",
                                  "rot4",
                                  "rot5",
                                  "rot6",
                                  "rot7",
                                  "rot8",
                                  "all,f16=0+int2",
                                  "sink:0.2",
                                  "sink:0.3+int8",
                                  "sink:0.05+int4",
                                  "snapkv:0.1",
                                  "snapkv:0.25+int4",
                                  "snapkv:0.2,keep=1,f16=0+rot3",
                                  "verify:0.25+int4",
                                  "verify:0.1,window=8",
                                  "verify:0.2,floor=0.1,chunk=64+int4",
                                  "verify:0.1,score=vegas+int8",
                                  "kvzip:0.3,window=8,chunk=64+int4",
                                  "kvzip:0.1,window=1",
                                  "expected:0.3,window=8+k4v2",
                                  "h2o:0.3",
                                  "h2o:0.2+kivi4",
                                  "quest:0.2,whole=1",
                                  "quest:0.1,whole=0+int4",
                                  "quest:0.3,whole=0+rot4"};
enum class Adversary { kNone, kAlwaysWrong, kRandomlyWrong, kOutOfVocabulary };
constexpr Adversary kAdversaries[] = {Adversary::kNone, Adversary::kAlwaysWrong,
                                      Adversary::kRandomlyWrong, Adversary::kOutOfVocabulary};

int64_t TokensWanted() {
  const char* text = std::getenv("VERICACHE_MATRIX_TOKENS");
  return text == nullptr ? 30000 : std::atoll(text);
}

std::vector<TinyModelOptions> Models() {
  std::vector<TinyModelOptions> models(4);
  models[0].type = TensorType::kQ4_K;
  models[0].down_type = TensorType::kQ6_K;
  models[0].architecture = "qwen2";
  models[0].head_dim = 64;  // K-quants want 256 columns in attn_output too
  models[1].type = TensorType::kQ5_0;
  models[1].down_type = TensorType::kQ8_0;
  models[1].num_heads = 7;
  models[1].num_kv_heads = 1;
  models[2].type = TensorType::kQ4_1;
  models[2].num_layers = 3;
  models[2].num_heads = 3;
  models[2].num_kv_heads = 3;
  models[3].type = TensorType::kF16;
  models[3].architecture = "qwen2";
  models[3].head_dim = 48;  // not a multiple of 32: integer codecs fall back to f16
  for (TinyModelOptions& model : models) {
    model.vocab_size = 160;
    model.seed = &model - models.data() + 11;
  }
  return models;
}

std::function<DraftToken(DraftToken, int64_t)> MakeAdversary(Adversary kind, int64_t vocab) {
  switch (kind) {
    case Adversary::kNone:
      return nullptr;
    case Adversary::kAlwaysWrong:
      return [vocab](DraftToken t, int64_t) {
        return DraftToken{static_cast<TokenId>((t.id + 1) % vocab)};
      };
    case Adversary::kRandomlyWrong:
      return [vocab](DraftToken t, int64_t pos) {
        uint64_t state = pos * 31 + 7;
        const uint64_t r = NextRandom(&state);
        return r % 4 != 0 ? t : DraftToken{static_cast<TokenId>((r >> 8) % vocab)};
      };
    case Adversary::kOutOfVocabulary:
      return [vocab](DraftToken t, int64_t pos) {
        return pos % 5 == 0 ? DraftToken{static_cast<TokenId>(vocab + pos)} : t;
      };
  }
  return nullptr;
}

// Draws one cell of the matrix after another from one seed.
class Cells {
 public:
  explicit Cells(uint64_t seed) : state_(seed) {}

  RunTask Task(int64_t vocab) {
    RunTask task;
    task.prompt = RandomPrompt(1 + Pick(140), vocab, NextRandom(&state_));
    task.max_tokens = 1 + Pick(70);
    if (Pick(2) == 0) {
      task.sampling.temperature = Pick(2) == 0 ? 0.7f : 1.3f;
      task.sampling.seed = NextRandom(&state_);
      if (Pick(3) == 0) task.sampling.top_k = 1 + Pick(40);
      if (Pick(3) == 0) task.sampling.top_p = 0.9f;
      if (Pick(3) == 0) task.sampling.min_p = 0.05f;
    }
    if (Pick(4) == 0) {
      task.sampling.repetition_penalty = 1.3f;
      task.sampling.frequency_penalty = 0.4f;
      task.sampling.presence_penalty = -0.3f;
    }
    if (Pick(3) == 0) task.eos = static_cast<TokenId>(Pick(vocab));
    return task;
  }

  RunKnobs Knobs(int64_t vocab) {
    RunKnobs knobs;
    knobs.draft = kSpecs[Pick(std::size(kSpecs))];
    knobs.draft_len = kDraftLengths[Pick(std::size(kDraftLengths))];
    knobs.adversary = MakeAdversary(kAdversaries[Pick(std::size(kAdversaries))], vocab);
    knobs.chunk = 1 + Pick(100);
    return knobs;
  }

  int64_t Pick(int64_t n) { return static_cast<int64_t>(NextRandom(&state_) % n); }

 private:
  uint64_t state_;
};

struct Totals {
  int64_t tokens = 0, cells = 0, drafted = 0, accepted = 0, stops = 0;
  std::set<std::string> specs;  // that drafted
};

// One model under two ISAs and three thread counts. The judge is plain decoding, one thread, one
// token a pass, no draft: by the scalar kernels for one cell in eight (they are slow), else by the
// fast ones, which forward_invariance_test holds to the scalar bits.
void RunModel(const TinyModelOptions& options, int64_t tokens_wanted, uint64_t seed, Totals* t) {
  const auto file = OpenBytes(TinyModelBytes(options));
  const int64_t vocab = options.vocab_size;
  Harness judge(file, "", 1), scalar_judge(file, "scalar", 1);
  std::vector<std::unique_ptr<Harness>> harnesses;
  for (int threads : {1, 2, 3}) harnesses.push_back(std::make_unique<Harness>(file, "", threads));
  harnesses.push_back(std::make_unique<Harness>(file, "scalar", 2));
  Cells cells(seed);
  int64_t tokens = 0;
  while (tokens < tokens_wanted) {
    const int64_t batch = cells.Pick(3) == 0 ? 2 + cells.Pick(4) : 1;
    std::vector<RunTask> tasks;
    std::vector<RunKnobs> knobs;
    for (int64_t i = 0; i < batch; ++i) {
      tasks.push_back(cells.Task(vocab));
      knobs.push_back(cells.Knobs(vocab));
    }
    // The slow ISA takes one cell in sixteen.
    const int64_t which = cells.Pick(16) == 0 ? 3 : cells.Pick(3);
    const std::vector<RunResult> got = harnesses[which]->RunBatch(tasks, knobs);
    for (int64_t i = 0; i < batch; ++i) {
      RunKnobs plain;
      plain.chunk = 1;
      const RunResult expected = (cells.Pick(8) == 0 ? scalar_judge : judge).Run(tasks[i], plain);
      ASSERT_EQ(got[i].tokens, expected.tokens)
          << "draft " << knobs[i].draft << " length " << knobs[i].draft_len << " harness " << which;
      ASSERT_EQ(got[i].hash, expected.hash) << knobs[i].draft;
      ASSERT_EQ(got[i].finish, expected.finish) << knobs[i].draft;
      tokens += static_cast<int64_t>(got[i].tokens.size());
      t->drafted += got[i].drafted;
      if (got[i].drafted > 0) t->specs.insert(knobs[i].draft);
      t->accepted += got[i].accepted;
      t->stops += got[i].finish == FinishReason::kStop;
      ++t->cells;
    }
  }
  t->tokens += tokens;
}

TEST(ExactnessMatrix, NoMismatchAnywhere) {
  const std::vector<TinyModelOptions> models = Models();
  Totals totals;
  for (const TinyModelOptions& model : models)
    RunModel(model, TokensWanted() / static_cast<int64_t>(models.size()), model.seed, &totals);
  std::printf(
      "exactness matrix: %lld tokens in %lld requests, %lld drafted, %lld accepted, %lld "
      "ended by EOS, 0 mismatches\n",
      static_cast<long long>(totals.tokens), static_cast<long long>(totals.cells),
      static_cast<long long>(totals.drafted), static_cast<long long>(totals.accepted),
      static_cast<long long>(totals.stops));
  // The matrix must have met what it is about: accepted and rejected drafts, and early ends.
  EXPECT_GT(totals.accepted, totals.tokens / 20);
  EXPECT_GT(totals.drafted, totals.accepted + totals.tokens / 20);
  EXPECT_GT(totals.stops, 0);
  EXPECT_EQ(totals.specs.size(), std::size(kSpecs));
}

}  // namespace
}  // namespace vericache
