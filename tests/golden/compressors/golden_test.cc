// Kept sets are what the papers' recipes say: against a float64 oracle that agrees with NVIDIA's
// kvpress (README.md beside this file).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kv/kv_test_util.h"
#include "kv/selectors/attention_sums.h"
#include "kv/selectors/query_moments.h"
#include "kv/selectors/repeat_scores.h"
#include "kv/selectors/selector.h"

namespace vericache {
namespace {

using Lists = std::vector<std::vector<int32_t>>;

// --- The tensors of make_golden.py --------------------------------------------------------------

enum Which { kK, kV, kQ, kRawQ };
struct Form {
  float scale, offset;
};
constexpr Form kForms[] = {{1.7f, 0.25f}, {0.5f, 0.0f}, {3.0f, 0.25f}, {6.0f, 2.0f}};

std::vector<float> Tensor(uint64_t seed, Which which, int layer, int repeat, int64_t rows,
                          int num_heads, int head_dim) {
  TestRandom random(seed * 65536 + repeat * 256 + layer * 4 + which);
  std::vector<float> values = random.Floats(rows * num_heads * head_dim, kForms[which].scale);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] += kForms[which].offset * static_cast<float>(static_cast<int>(i % head_dim % 5) - 2);
  return values;
}

// All rows that one series of passes computes: of the prompt, or of one repetition.
struct Rows {
  int64_t first_pos, num_rows;
  std::vector<std::vector<float>> of[4];  // [Which][layer]
};

struct Case {
  explicit Case(const nlohmann::json& json)
      : spec(*ParseDraftSpec(json["spec"].get<std::string>())),
        shape{json["num_layers"], json["num_kv_heads"], json["head_dim"]},
        num_heads(json["num_heads"]),
        num_tokens(json["num_tokens"]),
        seed(json["seed"]),
        query_rows(json.value("rows", int64_t{spec.window})),
        instruction(json.value("instruction", 0)),
        adjacent(json.value("adjacent", false)),
        rotary_dim(json.value("rotary_dim", 0)),
        rope_theta(json.value("rope_theta", 0.0)) {
    for (const std::string text : json["kept"]) {
      LayerSet ranges = ParseDraftSpec("sink,keep=" + text)->keep_layers;  // the same grammar
      std::vector<int32_t>& positions = kept.emplace_back();
      for (auto [first, last] : ranges.ranges)
        for (int pos = first; pos <= last; ++pos) positions.push_back(pos);
    }
  }
  Rows MakeRows(int repeat, int64_t first_pos, int64_t num_rows) const {
    Rows rows{first_pos, num_rows, {}};
    for (const Which which : {kK, kV, kQ, kRawQ})
      for (int layer = 0; layer < shape.num_layers; ++layer)
        rows.of[which].push_back(Tensor(seed, which, layer, repeat, num_rows,
                                        which < kQ ? shape.num_kv_heads : num_heads,
                                        shape.head_dim));
    return rows;
  }

  DraftSpec spec;
  KvShape shape;
  int num_heads;
  int64_t num_tokens;
  uint64_t seed;
  int64_t query_rows;
  int64_t instruction;
  bool adjacent;
  int rotary_dim;
  double rope_theta;
  Lists kept;
};

// Appends and commits `rows`, and shows them to `observer`, as forward passes of `pass_rows` would.
void RunPasses(const Case& c, const Rows& rows, int64_t pass_rows, FullKv* full,
               ForwardObserver* observer) {
  const auto part = [&](Which which, int layer, int64_t row) {
    const int heads = which < kQ ? c.shape.num_kv_heads : c.num_heads;
    return rows.of[which][layer].data() + row * heads * c.shape.head_dim;
  };
  for (int64_t begin = 0; begin < rows.num_rows; begin += pass_rows) {
    const int64_t n = std::min(pass_rows, rows.num_rows - begin);
    ASSERT_TRUE(full->Reserve(n).ok());
    for (int layer = 0; layer < c.shape.num_layers; ++layer) {
      full->Append(layer, part(kK, layer, begin), part(kV, layer, begin), n);
      if (observer == nullptr) continue;
      const bool raw = observer->wants_raw_queries();
      const ForwardObserver::LayerRows seen = {layer,
                                               rows.first_pos + begin,
                                               n,
                                               nullptr,
                                               part(kQ, layer, begin),
                                               part(kK, layer, begin),
                                               part(kV, layer, begin),
                                               raw ? part(kRawQ, layer, begin) : nullptr};
      observer->OnLayer(seen);
      observer->OnKeys(seen, {full->Layer(layer), 0, c.shape.num_kv_heads});
    }
    Prefill::Commit(full, n);
  }
}

MeanRotation RotationAhead(const Case& c) {
  MeanRotation mean;
  mean.adjacent = c.adjacent;
  for (int i = 0; i < c.rotary_dim / 2; ++i) {
    double cos = 0, sin = 0;
    for (int ahead = 0; ahead < c.spec.future; ++ahead) {
      const double angle = static_cast<double>(c.num_tokens + ahead) *
                           std::pow(c.rope_theta, -2.0 * i / c.rotary_dim);
      cos += std::cos(angle) / c.spec.future;
      sin += std::sin(angle) / c.spec.future;
    }
    mean.cos.push_back(cos);
    mean.sin.push_back(sin);
  }
  return mean;
}

KeyScores RepeatedScores(const Case& c, const FullKv& full, int64_t pass_rows,
                         const KernelTable* kernels, ThreadPool* pool) {
  RepeatScores scores(c.shape, c.num_heads, c.num_tokens, kernels, pool);
  for (int64_t begin = 0, number = 1; begin < c.num_tokens; begin += c.spec.chunk, ++number) {
    const int64_t end = std::min<int64_t>(c.num_tokens, begin + c.spec.chunk);
    FullKv repeated = full.Fork();
    scores.StartChunk(begin, end);
    RunPasses(c, c.MakeRows(static_cast<int>(number), c.num_tokens, c.instruction + end - begin),
              pass_rows, &repeated, &scores);
  }
  return scores.Take();
}

QueryRows NewestQueries(const Case& c, const Rows& prompt) {
  QueryRows queries;
  queries.num_rows = std::min(c.query_rows, c.num_tokens);
  queries.first_pos = c.num_tokens - queries.num_rows;
  queries.num_heads = c.num_heads;
  for (const std::vector<float>& q : prompt.of[kQ])
    queries.q.emplace_back(q.end() - queries.num_rows * c.num_heads * c.shape.head_dim, q.end());
  return queries;
}

Lists Kept(const Case& c, int64_t pass_rows, const KernelTable* kernels, int num_threads) {
  ThreadPool pool(num_threads);
  const Rows prompt = c.MakeRows(0, 0, c.num_tokens);
  FullKv full(c.shape, kernels);
  AttentionSums sums(c.shape, c.num_heads, c.num_tokens, kernels, &pool);
  QueryMoments moments(c.shape, c.num_heads, c.spec.sinks, &pool);
  const ScoreKind kind = c.spec.score_kind();
  RunPasses(c, prompt, pass_rows, &full,
            kind == ScoreKind::kH2o        ? static_cast<ForwardObserver*>(&sums)
            : kind == ScoreKind::kExpected ? &moments
                                           : nullptr);
  KeyScores scores;
  if (kind == ScoreKind::kH2o) scores = sums.Take();
  if (kind == ScoreKind::kExpected) scores = *moments.Scores(full, RotationAhead(c), *kernels);
  if (kind == ScoreKind::kKvzip) scores = RepeatedScores(c, full, pass_rows, kernels, &pool);
  KeptSet floor;
  if (c.spec.floor > 0) floor = KvzipFloor(c.spec, scores);
  const QueryRows queries = NewestQueries(c, prompt);
  SelectInput input;
  const LayerViews layers = AllLayers(full);
  input.layers = &layers;
  input.queries = &queries;
  input.scores = kind == ScoreKind::kNone ? nullptr : &scores;
  input.floor = c.spec.floor > 0 ? &floor : nullptr;
  input.kernels = kernels;
  input.pool = &pool;
  return SelectPositions(c.spec, input).positions;
}

// Names the first list that differs, and how: whole lists would fill pages.
testing::AssertionResult SameLists(const Lists& got, const Lists& want) {
  if (got.size() != want.size()) return testing::AssertionFailure() << got.size() << " lists";
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;
    std::vector<int32_t> extra, missing;
    std::set_difference(got[i].begin(), got[i].end(), want[i].begin(), want[i].end(),
                        std::back_inserter(extra));
    std::set_difference(want[i].begin(), want[i].end(), got[i].begin(), got[i].end(),
                        std::back_inserter(missing));
    return testing::AssertionFailure()
           << "list " << i << ", of " << want[i].size() << " positions: wrongly kept "
           << testing::PrintToString(extra) << ", wrongly dropped "
           << testing::PrintToString(missing);
  }
  return testing::AssertionSuccess();
}

TEST(Compressors, KeepWhatTheRecipesSay) {
  std::ifstream in("tests/golden/compressors/kept.golden.json");
  ASSERT_TRUE(in) << "run from the repository's root";
  const nlohmann::json golden = nlohmann::json::parse(in);
  int num_lists = 0;
  for (const nlohmann::json& json : golden["cases"]) {
    const Case c(json);
    SCOPED_TRACE(json["spec"].get<std::string>() + " seed " + std::to_string(c.seed));
    ASSERT_EQ(c.kept.size(), static_cast<size_t>(c.shape.num_layers * c.shape.num_kv_heads));
    num_lists += static_cast<int>(c.kept.size());
    for (const KernelTable* kernels : AllKernelTables()) {
      EXPECT_TRUE(SameLists(Kept(c, 2048, kernels, 1), c.kept)) << kernels->name;
      EXPECT_TRUE(SameLists(Kept(c, 41, kernels, 3), c.kept))
          << kernels->name << ", 41 rows a pass";
    }
  }
  EXPECT_GT(num_lists, 100);
}

}  // namespace
}  // namespace vericache
