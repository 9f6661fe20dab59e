// The scores that kvzip, expected and h2o rank keys by: what their recipes say of the engine's own
// passes, the same bits however those passes are cut, and never a reason for another answer.
#include "engine/scorers.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/float16.h"
#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"
#include "vericache/engine.h"

namespace vericache {
namespace {

using Scores = std::vector<std::vector<double>>;  // [layer * num_kv_heads + kv_head][position]

TinyModelOptions Tiny(const std::string& architecture) {
  TinyModelOptions options;
  options.architecture = architecture;
  options.num_layers = 3;
  options.type = TensorType::kQ5_0;
  options.vocab_size = 160;
  options.seed = 11;
  return options;
}

std::shared_ptr<const GgufFile> TinyFile(const std::string& architecture) {
  return OpenBytes(TinyModelBytes(Tiny(architecture)));
}

// Adjacent pairs, split pairs with biases, and frequency factors.
std::vector<std::shared_ptr<const GgufFile>> Files() {
  return {TinyFile("llama"), TinyFile("qwen2"),
          *GgufFile::Open("tests/golden/model/llama3_untied.gguf")};
}

std::vector<TokenId> PromptOf(const Harness& harness, int64_t n) {
  return RandomPrompt(n, harness.model().config.vocab_size, 7);
}

std::unique_ptr<Sequence> MakeSequence(Harness* harness, const std::vector<TokenId>& prompt,
                                       const std::string& spec) {
  RunTask task;
  task.prompt = prompt;
  task.max_tokens = 4;
  RunKnobs knobs;
  knobs.draft = spec;
  return harness->MakeSequence(task, knobs);
}

// --- The recipes in double, dense ---------------------------------------------------------------

// Every row that passes by, in order of position; keys and values as the cache rounds them.
class Recorder : public ForwardObserver {
 public:
  explicit Recorder(const ModelConfig& config) : config_(config), layers_(config.num_layers) {}
  bool wants_raw_queries() const override { return true; }
  void OnLayer(const LayerRows& rows) override {
    Layer& layer = layers_[rows.layer];
    const auto add = [&](const float* from, int heads, bool f16, std::vector<double>* to) {
      const int64_t n = rows.num_rows * heads * config_.head_dim;
      for (int64_t i = 0; i < n; ++i) to->push_back(f16 ? F16ToF32(F32ToF16(from[i])) : from[i]);
    };
    add(rows.q, config_.num_heads, false, &layer.q);
    add(rows.raw_q, config_.num_heads, false, &layer.raw_q);
    add(rows.k, config_.num_kv_heads, true, &layer.k);
    add(rows.v, config_.num_kv_heads, true, &layer.v);
  }

  const double* Q(int layer, int64_t row, int head) const {
    return layers_[layer].q.data() + (row * config_.num_heads + head) * config_.head_dim;
  }
  const double* RawQ(int layer, int64_t row, int head) const {
    return layers_[layer].raw_q.data() + (row * config_.num_heads + head) * config_.head_dim;
  }
  const double* K(int layer, int64_t row, int kv_head) const {
    return layers_[layer].k.data() + (row * config_.num_kv_heads + kv_head) * config_.head_dim;
  }
  const double* V(int layer, int64_t row, int kv_head) const {
    return layers_[layer].v.data() + (row * config_.num_kv_heads + kv_head) * config_.head_dim;
  }

 private:
  struct Layer {
    std::vector<double> q, raw_q, k, v;
  };
  const ModelConfig& config_;
  std::vector<Layer> layers_;
};

double Dot(const double* a, const double* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void Softmax(std::vector<double>* x) {
  const double max = *std::max_element(x->begin(), x->end());
  double sum = 0;
  for (double& value : *x) sum += value = std::exp(value - max);
  for (double& value : *x) value /= sum;
}

template <typename OnHead>
void ForEachHead(const ModelConfig& c, OnHead on_head) {
  for (int layer = 0; layer < c.num_layers; ++layer)
    for (int head = 0; head < c.num_heads; ++head)
      on_head(layer, head, head / c.heads_per_kv_head());
}

Scores Zeros(const ModelConfig& c, int64_t n) {
  return Scores(c.num_layers * c.num_kv_heads, std::vector<double>(n, 0.0));
}

Scores H2oOracle(const ModelConfig& c, const Recorder& prompt, int64_t n) {
  Scores scores = Zeros(c, n);
  ForEachHead(c, [&](int layer, int head, int kv_head) {
    for (int64_t row = 0; row < n; ++row) {
      std::vector<double> weights;
      for (int64_t j = 0; j <= row; ++j)
        weights.push_back(Dot(prompt.Q(layer, row, head), prompt.K(layer, j, kv_head), c.head_dim) /
                          std::sqrt(c.head_dim));
      Softmax(&weights);
      for (int64_t j = 0; j <= row; ++j) scores[layer * c.num_kv_heads + kv_head][j] += weights[j];
    }
  });
  return scores;
}

// The mean rotation of the positions ahead as a dense matrix.
std::vector<double> MeanRotationOf(const Model& model, const DraftSpec& spec, int64_t n) {
  const ModelConfig& c = model.config;
  const int d = c.head_dim, half = c.rotary_dim / 2;
  std::vector<double> r(d * d, 0.0);
  for (int i = c.rotary_dim; i < d; ++i) r[i * d + i] = 1;
  for (int i = 0; i < half; ++i) {
    const bool adjacent = c.rope_pairs == RopePairs::kAdjacent;
    const int a = adjacent ? 2 * i : i, b = adjacent ? 2 * i + 1 : i + half;
    double frequency = std::pow(c.rope_theta, -2.0 * i / c.rotary_dim) / c.rope_scale;
    if (!model.weights.rope_factors.empty()) frequency /= model.weights.rope_factors[i];
    for (int ahead = 0; ahead < spec.future; ++ahead) {
      const double angle = static_cast<double>(n + ahead) * frequency;
      r[a * d + a] += std::cos(angle) / spec.future;
      r[b * d + b] += std::cos(angle) / spec.future;
      r[a * d + b] -= std::sin(angle) / spec.future;
      r[b * d + a] += std::sin(angle) / spec.future;
    }
  }
  return r;
}

// Mean and covariance of one head's queries behind the sinks, turned by `r`.
void ExpectedQueries(const ModelConfig& c, const Recorder& prompt, int layer, int head,
                     int64_t sinks, int64_t n, const std::vector<double>& r,
                     std::vector<double>* mean, std::vector<double>* covariance) {
  const int d = c.head_dim;
  std::vector<double> m(d, 0.0), cov(d * d, 0.0), half(d * d, 0.0);
  const double count = std::max<double>(1, static_cast<double>(n - sinks));
  for (int64_t row = sinks; row < n; ++row)
    for (int i = 0; i < d; ++i) m[i] += prompt.RawQ(layer, row, head)[i] / count;
  for (int64_t row = sinks; row < n; ++row) {
    const double* q = prompt.RawQ(layer, row, head);
    for (int i = 0; i < d; ++i)
      for (int j = 0; j < d; ++j) cov[i * d + j] += (q[i] - m[i]) * (q[j] - m[j]) / count;
  }
  mean->assign(d, 0.0);
  covariance->assign(d * d, 0.0);
  for (int i = 0; i < d; ++i) {
    (*mean)[i] = Dot(r.data() + i * d, m.data(), d);
    for (int j = 0; j < d; ++j)
      for (int k = 0; k < d; ++k) half[i * d + j] += r[i * d + k] * cov[k * d + j];
  }
  for (int i = 0; i < d; ++i)
    for (int j = 0; j < d; ++j)
      (*covariance)[i * d + j] = Dot(half.data() + i * d, r.data() + j * d, d);
}

// Of the keys behind the sinks; the sinks themselves have 0 here.
Scores ExpectedOracle(const Model& model, const DraftSpec& spec, const Recorder& prompt,
                      int64_t n) {
  const ModelConfig& c = model.config;
  const int d = c.head_dim;
  const std::vector<double> r = MeanRotationOf(model, spec, n);
  Scores scores = Zeros(c, n);
  ForEachHead(c, [&](int layer, int head, int kv_head) {
    std::vector<double> mean, covariance, weights;
    ExpectedQueries(c, prompt, layer, head, spec.sinks, n, r, &mean, &covariance);
    for (int64_t j = spec.sinks; j < n; ++j) {
      const double* key = prompt.K(layer, j, kv_head);
      double square = 0;
      for (int i = 0; i < d; ++i) square += key[i] * Dot(covariance.data() + i * d, key, d);
      weights.push_back(Dot(key, mean.data(), d) / std::sqrt(d) + square / (2 * d));
    }
    Softmax(&weights);
    for (int64_t j = spec.sinks; j < n; ++j) {
      const double* value = prompt.V(layer, j, kv_head);
      scores[layer * c.num_kv_heads + kv_head][j] +=
          weights[j - spec.sinks] / c.heads_per_kv_head() * std::sqrt(Dot(value, value, d));
    }
  });
  return scores;
}

// The repetition of positions [begin, end): rows of `repeat` from position n on.
void KvzipChunk(const ModelConfig& c, const Recorder& prompt, const Recorder& repeat, int64_t n,
                int64_t num_rows, int64_t begin, int64_t end, Scores* scores) {
  const int64_t sinks = std::min<int64_t>(4, begin);
  ForEachHead(c, [&](int layer, int head, int kv_head) {
    for (int64_t row = 0; row < num_rows; ++row) {
      const double* q = repeat.Q(layer, row, head);
      std::vector<double> weights;
      const auto see = [&](const Recorder& keys, int64_t from, int64_t to) {
        for (int64_t j = from; j < to; ++j)
          weights.push_back(Dot(q, keys.K(layer, j, kv_head), c.head_dim) / std::sqrt(c.head_dim));
      };
      see(prompt, 0, sinks);
      see(prompt, begin, end);
      see(repeat, 0, row + 1);
      Softmax(&weights);
      for (int64_t j = begin; j < end; ++j) {
        double& score = (*scores)[layer * c.num_kv_heads + kv_head][j];
        score = std::max(score, weights[sinks + j - begin]);
      }
    }
  });
}

Scores KvzipOracle(Harness* harness, const Sequence& s, const Recorder& prompt) {
  const ModelConfig& c = harness->model().config;
  const int64_t n = s.num_prompt;
  Scores scores = Zeros(c, n);
  Prefill prefill(&harness->model(), &harness->forward(), &harness->pool());
  for (int64_t begin = 0; begin < n; begin += s.spec.chunk) {
    const int64_t end = std::min<int64_t>(n, begin + s.spec.chunk);
    // The prompt; the instruction, with the last 8 tokens before the chunk; the answer's head; the
    // chunk.
    std::vector<TokenId> tokens(s.tokens.begin(), s.tokens.begin() + n);
    for (TokenId id : begin == 0 ? std::vector<TokenId>{1, 2} : std::vector<TokenId>{1, 3})
      tokens.push_back(id);
    for (int64_t j = begin - 8; begin > 0 && j < begin; ++j) tokens.push_back(s.tokens[j]);
    tokens.push_back(4);
    tokens.insert(tokens.end(), s.tokens.begin() + begin, s.tokens.begin() + end);
    Sequence repeat(s.full.Fork(n), s.sampler);
    repeat.tokens = tokens;
    Recorder recorder(c);
    EXPECT_TRUE(prefill.Observe(&repeat, {}, &recorder).ok());
    KvzipChunk(c, prompt, recorder, n, static_cast<int64_t>(tokens.size()) - n, begin, end,
               &scores);
  }
  return scores;
}

void ExpectNear(const KeyScores& got, const Scores& want, int64_t sinks) {
  ASSERT_EQ(got.of_head.size(), want.size());
  for (size_t list = 0; list < want.size(); ++list) {
    ASSERT_EQ(got.of_head[list].size(), want[list].size());
    for (size_t j = sinks; j < want[list].size(); ++j)
      ASSERT_NEAR(got.of_head[list][j], want[list][j], 2e-6 + 2e-4 * std::fabs(want[list][j]))
          << "list " << list << " position " << j;
    for (int64_t j = 0; j < sinks; ++j)
      ASSERT_EQ(got.of_head[list][j],
                *std::max_element(got.of_head[list].begin(), got.of_head[list].end()));
  }
}

// Scores as prefill makes them, and the recording of an equal pass.
void CheckOracle(Harness* harness, const std::string& spec, int64_t n) {
  SCOPED_TRACE(spec + ", " + std::to_string(n) + " tokens");
  const Model& model = harness->model();
  const auto s = MakeSequence(harness, PromptOf(*harness, n), spec);
  Prefill prefill(&model, &harness->forward(), &harness->pool());
  ASSERT_TRUE(prefill.Run(s.get(), {}).ok());
  ASSERT_NE(s->scores, nullptr);
  ASSERT_EQ(s->scores->num_scored, n);
  const auto again = MakeSequence(harness, PromptOf(*harness, n), spec);
  Recorder recorder(model.config);
  ASSERT_TRUE(prefill.Observe(again.get(), {}, &recorder).ok());
  switch (s->spec.score_kind()) {
    case ScoreKind::kH2o:
      return ExpectNear(*s->scores, H2oOracle(model.config, recorder, n), 0);
    case ScoreKind::kExpected: {
      const int64_t sinks = std::min<int64_t>(s->spec.sinks, n - 1);
      return ExpectNear(*s->scores, ExpectedOracle(model, s->spec, recorder, n), sinks);
    }
    case ScoreKind::kKvzip:
      return ExpectNear(*s->scores, KvzipOracle(harness, *s, recorder), 0);
    case ScoreKind::kNone:
      FAIL();
  }
}

TEST(Scores, AreWhatTheRecipesSay) {
  for (const auto& file : Files()) {
    Harness harness(file, "", 2);
    for (const char* spec : {"h2o:0.3", "expected:0.3", "expected:0.3,sinks=0,future=9",
                             "kvzip:0.3,chunk=64", "verify:0.3,floor=0.1,chunk=96"}) {
      CheckOracle(&harness, spec, 150);
      CheckOracle(&harness, spec, 17);
    }
    CheckOracle(&harness, "kvzip:0.3", 130);  // one chunk
  }
}

// --- Bits
// -----------------------------------------------------------------------------------------

// The scores and the draft KV of one prefill, as bytes.
std::string PrefillBytes(Harness* harness, const std::vector<TokenId>& prompt,
                         const std::string& spec, int64_t chunk, int64_t num_cached) {
  const auto s = MakeSequence(harness, prompt, spec);
  Prefill prefill(&harness->model(), &harness->forward(), &harness->pool());
  PrefillOptions options;
  options.chunk_rows = chunk;
  if (num_cached > 0) {  // as from a session that went on differently
    std::vector<TokenId> other(prompt.begin(), prompt.begin() + num_cached);
    other.insert(other.end(), 5, 9);
    const auto session = MakeSequence(harness, other, "off");
    EXPECT_TRUE(prefill.Compute(session.get(), {}).ok());
    s->full = session->full.Fork(num_cached);
  }
  EXPECT_TRUE(prefill.Run(s.get(), options).ok());
  std::string bytes;
  for (const std::vector<float>& scores : s->scores->of_head)
    bytes.append(reinterpret_cast<const char*>(scores.data()), scores.size() * sizeof(float));
  EXPECT_EQ(s->scores->num_scored, static_cast<int64_t>(prompt.size()));
  s->draft->AppendTo(&bytes);
  return bytes;
}

constexpr const char* kScored[] = {"h2o:0.3",
                                   "expected:0.3+int4",
                                   "expected:0.2,sinks=70,window=1",
                                   "kvzip:0.3,chunk=64",
                                   "kvzip:0.3,chunk=112+k4v2",
                                   "verify:0.3,floor=0.15,chunk=80"};

TEST(Scores, DoNotDependOnHowThePromptIsComputed) {
  for (const char* architecture : {"llama", "qwen2"}) {
    Harness reference(TinyFile(architecture), "", 1);
    const std::vector<TokenId> prompt = PromptOf(reference, 301);
    for (const char* spec : kScored) {
      SCOPED_TRACE(std::string(architecture) + " " + spec);
      const std::string want = PrefillBytes(&reference, prompt, spec, 2048, 0);
      Harness two(TinyFile(architecture), "", 2), three(TinyFile(architecture), "", 3);
      EXPECT_TRUE(PrefillBytes(&two, prompt, spec, 2048, 0) == want) << "2 threads";
      EXPECT_TRUE(PrefillBytes(&three, prompt, spec, 2048, 0) == want) << "3 threads";
      for (int64_t chunk : {1, 7, 64, 100, 300})
        EXPECT_TRUE(PrefillBytes(&two, prompt, spec, chunk, 0) == want) << "chunk " << chunk;
      for (int64_t cached : {1, 64, 150, 269}) {
        EXPECT_TRUE(PrefillBytes(&two, prompt, spec, 2048, cached) == want) << "cached " << cached;
        EXPECT_TRUE(PrefillBytes(&two, prompt, spec, 33, cached) == want) << "cached " << cached;
      }
    }
  }
}

TEST(Scores, DoNotDependOnTheInstructionSet) {
  for (const char* architecture : {"llama", "qwen2"}) {
    Harness reference(TinyFile(architecture), "", 2);
    const std::vector<TokenId> prompt = PromptOf(reference, 131);
    std::vector<std::string> want;
    for (const char* spec : kScored) want.push_back(PrefillBytes(&reference, prompt, spec, 512, 0));
    for (const KernelTable* table : AllKernelTables()) {
      if (!SelectKernels(table->name).ok()) continue;
      Harness harness(TinyFile(architecture), table->name, 2);
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(PrefillBytes(&harness, prompt, kScored[i], 512, 0) == want[i])
            << kScored[i] << " " << table->name;
    }
  }
}

// Also where a model has 1, 2 or 5 query heads to a KV head: pieces of queries differ in size.
TEST(Scores, DoNotDependOnChunksForAnyGroup) {
  for (const auto& [heads, kv_heads] : {std::pair(2, 2), std::pair(4, 1), std::pair(5, 1)}) {
    TinyModelOptions options = Tiny("llama");
    options.num_layers = 2;
    options.num_heads = heads;
    options.num_kv_heads = kv_heads;
    options.head_dim = 64;
    options.type = TensorType::kF32;
    Harness harness(OpenBytes(TinyModelBytes(options)), "", 2);
    const std::vector<TokenId> prompt = PromptOf(harness, 290);
    for (const char* spec : {"h2o:0.3", "expected:0.3", "kvzip:0.3,chunk=128"}) {
      const std::string want = PrefillBytes(&harness, prompt, spec, 2048, 0);
      for (int64_t chunk : {50, 128, 255})
        EXPECT_TRUE(PrefillBytes(&harness, prompt, spec, chunk, 0) == want)
            << spec << " chunk " << chunk << ", " << heads << " heads";
    }
  }
}

}  // namespace
}  // namespace vericache
