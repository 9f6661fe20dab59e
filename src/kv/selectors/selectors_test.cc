#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kv/kv_test_util.h"
#include "kv/selectors/selector.h"

namespace vericache {
namespace {

constexpr double kFractions[] = {0.01, 0.1, 0.25, 0.29, 0.5, 0.9, 0.99, 1.0};

// A prompt's K/V and its last queries.
struct Prompt {
  KvShape shape;
  int num_heads;
  FullKv full;
  QueryRows queries;
  ThreadPool pool{2};

  Prompt(const KvShape& kv_shape, int heads, int64_t num_tokens, int64_t num_rows, float q_range,
         uint64_t seed)
      : shape(kv_shape), num_heads(heads), full(kv_shape, &Judge()) {
    TestRandom random(seed);
    Grow(&full, num_tokens, &random);
    queries.num_rows = std::min(num_rows, num_tokens);
    queries.first_pos = num_tokens - queries.num_rows;
    queries.num_heads = heads;
    for (int layer = 0; layer < shape.num_layers; ++layer)
      queries.q.push_back(random.Floats(queries.num_rows * heads * shape.head_dim, q_range));
  }
  KeptSet Select(const DraftSpec& spec, const KernelTable* kernels = &Judge()) {
    SelectInput input;
    const LayerViews layers = AllLayers(full);
    input.layers = &layers;
    input.queries = &queries;
    input.kernels = kernels;
    input.pool = &pool;
    return SelectPositions(spec, input);
  }
};

DraftSpec Spec(SelectorKind selector, double fraction) {
  DraftSpec spec;
  spec.selector = selector;
  spec.fraction = fraction;
  return spec;
}

// int(fraction * T), but at least `floor` and at most T.
int64_t Count(double fraction, int64_t num_tokens, int64_t floor) {
  return std::min(num_tokens, std::max(static_cast<int64_t>(fraction * num_tokens), floor));
}

// What every selector promises: strictly increasing, never empty, the last position kept.
void ExpectInvariants(const Prompt& prompt, const KeptSet& kept, int64_t count) {
  ASSERT_EQ(kept.positions.size(),
            static_cast<size_t>(prompt.shape.num_layers * prompt.shape.num_kv_heads));
  for (const std::vector<int32_t>& positions : kept.positions) {
    ASSERT_EQ(static_cast<int64_t>(positions.size()), count);
    ASSERT_GE(positions.front(), 0);
    ASSERT_EQ(positions.back(), prompt.full.num_tokens() - 1);
    for (size_t i = 1; i < positions.size(); ++i) ASSERT_LT(positions[i - 1], positions[i]);
  }
}

// --- SnapKV's recipe in double, dense -----------------------------------------------------------

// Per key: softmax of each of the last queries over the keys it sees, summed over queries and over
// the heads of the group.
std::vector<double> Votes(const Prompt& prompt, int layer, int kv_head) {
  const int64_t num_tokens = prompt.full.num_tokens();
  const int d = prompt.shape.head_dim, per_kv = prompt.num_heads / prompt.shape.num_kv_heads;
  std::vector<double> votes(num_tokens, 0.0);
  for (int64_t row = 0; row < prompt.queries.num_rows; ++row) {
    const int64_t pos = prompt.queries.first_pos + row;
    for (int h = kv_head * per_kv; h < (kv_head + 1) * per_kv; ++h) {
      const float* q = prompt.queries.q[layer].data() + (row * prompt.num_heads + h) * d;
      std::vector<double> score(pos + 1);
      for (int64_t j = 0; j <= pos; ++j) {
        const F16Row key = ReadFullRow(prompt.full.Committed(layer), kv_head, j);
        for (int c = 0; c < d; ++c) score[j] += static_cast<double>(q[c]) * F16ToF32(key.k[c]);
        score[j] /= std::sqrt(static_cast<double>(d));
      }
      const double max = *std::max_element(score.begin(), score.end());
      double sum = 0;
      for (double& s : score) sum += s = std::exp(s - max);
      for (int64_t j = 0; j <= pos; ++j) votes[j] += score[j] / sum;
    }
  }
  return votes;
}

std::vector<double> Pooled(const std::vector<double>& votes, int width) {
  const int64_t n = votes.size();
  std::vector<double> out(n, 0.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = std::max<int64_t>(0, i - width / 2); j <= std::min(n - 1, i + width / 2); ++j)
      out[i] = std::max(out[i], votes[j]);
  return out;
}

// The window, and the best of the rest by (score descending, position ascending).
std::vector<int32_t> BestOf(const std::vector<double>& score, int64_t window, int64_t count) {
  const int64_t n = score.size();
  std::vector<int32_t> order(n - window);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return score[a] > score[b]; });
  order.resize(count - window);
  for (int64_t pos = n - window; pos < n; ++pos) order.push_back(static_cast<int32_t>(pos));
  std::sort(order.begin(), order.end());
  return order;
}

// Votes are summed in fp32: positions whose oracle scores nearly equal the cut may change places.
void ExpectSameChoice(const std::vector<int32_t>& got, const std::vector<int32_t>& want,
                      const std::vector<double>& score) {
  std::vector<int32_t> extra, missing;
  std::set_difference(got.begin(), got.end(), want.begin(), want.end(), std::back_inserter(extra));
  std::set_difference(want.begin(), want.end(), got.begin(), got.end(),
                      std::back_inserter(missing));
  ASSERT_EQ(extra.size(), missing.size());
  if (extra.empty()) return;
  double best_extra = 0, worst_missing = 1e300;
  for (int32_t pos : missing) worst_missing = std::min(worst_missing, score[pos]);
  for (int32_t pos : extra) best_extra = std::max(best_extra, score[pos]);
  for (int32_t pos : missing) EXPECT_NEAR(score[pos], best_extra, 1e-5 * best_extra) << pos;
  for (int32_t pos : extra) EXPECT_NEAR(score[pos], worst_missing, 1e-5 * worst_missing) << pos;
}

void CheckSnapKv(Prompt* prompt, int window, int pool_width, double fraction) {
  DraftSpec spec = Spec(SelectorKind::kSnapKv, fraction);
  spec.window = window;
  spec.pool = pool_width;
  const int64_t n = prompt->full.num_tokens(), w = std::min<int64_t>(window, n);
  const int64_t count = Count(fraction, n, w);
  const KeptSet kept = prompt->Select(spec);
  ExpectInvariants(*prompt, kept, count);
  for (const KernelTable* table : AllKernelTables())
    EXPECT_EQ(prompt->Select(spec, table).positions, kept.positions) << table->name;
  for (size_t i = 0; i < kept.positions.size() && !::testing::Test::HasFatalFailure(); ++i) {
    std::vector<double> score = Votes(*prompt, static_cast<int>(i) / prompt->shape.num_kv_heads,
                                      static_cast<int>(i) % prompt->shape.num_kv_heads);
    score.resize(n - w);  // the window takes no part in the pool
    score = Pooled(score, pool_width);
    score.resize(n);
    ExpectSameChoice(kept.positions[i], BestOf(score, w, count), score);
  }
}

TEST(SnapKv, ChoosesWhatTheRecipeSays) {
  uint64_t seed = 1;
  for (int64_t num_tokens : {1, 2, 15, 31, 32, 33, 64, 65, 130}) {
    for (int window : {1, 8, 32}) {
      Prompt prompt({2, 2, 16}, 4, num_tokens, window, 1.0f, seed);
      const int pool_width = std::vector<int>{1, 3, 7, 63}[seed % 4];
      SCOPED_TRACE("tokens " + std::to_string(num_tokens) + " window " + std::to_string(window) +
                   " pool " + std::to_string(pool_width));
      CheckSnapKv(&prompt, window, pool_width, kFractions[seed % 8]);
      CheckSnapKv(&prompt, window, pool_width, 0.5);
      ++seed;
    }
  }
}

TEST(SnapKv, WorksForEveryFractionPoolAndGroup) {
  for (int num_heads : {3, 15}) {  // 1 and 5 heads per KV head
    Prompt prompt({1, 3, 8}, num_heads, 70, 16, 3.0f, num_heads);
    for (double fraction : kFractions) CheckSnapKv(&prompt, 16, 7, fraction);
    for (int pool_width : {1, 3, 5, 9, 63}) CheckSnapKv(&prompt, 16, pool_width, 0.3);
  }
}

TEST(SnapKv, TiesGoToTheLowerPosition) {
  // A zero query spreads its vote evenly: exact ties everywhere before the window.
  Prompt prompt({1, 2, 16}, 2, 100, 8, 0.0f, 3);
  DraftSpec spec = Spec(SelectorKind::kSnapKv, 0.3);
  spec.window = 8;
  std::vector<int32_t> want(22);
  std::iota(want.begin(), want.end(), 0);
  for (int32_t pos = 92; pos < 100; ++pos) want.push_back(pos);
  for (const std::vector<int32_t>& positions : prompt.Select(spec).positions)
    EXPECT_EQ(positions, want);
}

TEST(SnapKv, KeepsTheNeedleAndItsNeighbours) {
  const KvShape shape{1, 1, 16};
  Prompt prompt(shape, 1, 200, 32, 0.0f, 4);
  // All queries point at the key of position 77, less what all keys have in common.
  const F16Row needle = ReadFullRow(prompt.full.Committed(0), 0, 77);
  for (int64_t row = 0; row < 32; ++row)
    for (int c = 0; c < 16; ++c)
      prompt.queries.q[0][row * 16 + c] = 9 * (F16ToF32(needle.k[c]) - c % 5 * 4.0f);
  DraftSpec spec = Spec(SelectorKind::kSnapKv, 0.2);
  const std::vector<int32_t> kept = prompt.Select(spec).positions[0];
  for (int32_t pos = 74; pos <= 80; ++pos)
    EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), pos)) << pos << " (max-pool of 7)";
}

TEST(SnapKv, TakesFewerQueriesThanTheWindowWants) {
  for (int64_t rows : {1, 3, 31}) {  // a short turn of a session
    Prompt prompt({1, 2, 16}, 4, 80, rows, 2.0f, rows);
    CheckSnapKv(&prompt, 32, 7, 0.6);
  }
}

TEST(SnapKv, SurvivesNonFiniteQueries) {
  Prompt prompt({1, 1, 16}, 2, 80, 8, 1.0f, 5);
  prompt.queries.q[0][3] = std::nanf("");
  prompt.queries.q[0][40] = INFINITY;
  DraftSpec spec = Spec(SelectorKind::kSnapKv, 0.4);
  spec.window = 8;
  ExpectInvariants(prompt, prompt.Select(spec), 32);
}

TEST(Sink, KeepsSinksAndTheRecentWindow) {
  for (int64_t num_tokens : {1, 2, 4, 5, 6, 99, 100, 257}) {
    Prompt prompt({2, 2, 8}, 2, num_tokens, 0, 1.0f, num_tokens);
    for (int sinks : {0, 1, 4, 8, 4096}) {
      for (double fraction : kFractions) {
        DraftSpec spec = Spec(SelectorKind::kSink, fraction);
        spec.sinks = sinks;
        const int64_t count = Count(fraction, num_tokens, sinks + 1);
        const KeptSet kept = prompt.Select(spec);
        ExpectInvariants(prompt, kept, count);
        const int64_t first = std::min<int64_t>(sinks, count - 1);
        for (int64_t i = 0; i < count; ++i)
          ASSERT_EQ(kept.positions[3][i], i < first ? i : num_tokens - count + i);
      }
    }
  }
}

TEST(SelectAll, KeepsEverything) {
  Prompt prompt({2, 3, 8}, 3, 70, 0, 1.0f, 6);
  const KeptSet kept = prompt.Select(Spec(SelectorKind::kAll, 1.0));
  ExpectInvariants(prompt, kept, 70);
}

TEST(KeptCount, TruncatesAndClamps) {
  EXPECT_EQ(KeptCount(Spec(SelectorKind::kSink, 0.29), 100, 1), 28) << "int(0.29 * 100) is 28";
  EXPECT_EQ(KeptCount(Spec(SelectorKind::kSink, 0.01), 100, 5), 5);
  EXPECT_EQ(KeptCount(Spec(SelectorKind::kSink, 0.01), 3, 5), 3);
  EXPECT_EQ(KeptCount(Spec(SelectorKind::kSink, 1.0), 12345, 5), 12345);
}

TEST(QueryRowsWanted, IsTheWindowOfThoseThatVote) {
  DraftSpec spec = Spec(SelectorKind::kSnapKv, 0.5);
  EXPECT_EQ(QueryRowsWanted(spec), 32);
  spec.window = 5;
  EXPECT_EQ(QueryRowsWanted(spec), 5);
  spec.enabled = false;
  EXPECT_EQ(QueryRowsWanted(spec), 0);
  EXPECT_EQ(QueryRowsWanted(Spec(SelectorKind::kSink, 0.5)), 0);
  EXPECT_EQ(QueryRowsWanted(Spec(SelectorKind::kAll, 1.0)), 0);
}

}  // namespace
}  // namespace vericache
