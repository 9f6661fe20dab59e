// What a row sees of a draft KV: never the rows behind it, and under query-time reading the groups
// of keys that a slow oracle picks.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "gtest/gtest.h"
#include "model/attention.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"

namespace vericache {
namespace {

constexpr int kVocab = 160;

DraftCodec Codec(std::string_view name) {
  DraftCodec codec;
  EXPECT_TRUE(ParseDraftCodec(name, &codec)) << name;
  return codec;
}

// A model of 4 query heads on 2 KV heads behind a prompt of 900 tokens.
struct Prepared {
  Harness harness;
  std::unique_ptr<Sequence> sequence;

  Prepared(int num_threads, int head_dim = 32)
      : harness(OpenBytes(TinyModelBytes(Options(head_dim))), "", num_threads) {
    RunTask task;
    task.prompt = RandomPrompt(900, kVocab, 5);
    sequence = harness.MakeSequence(task, {});
    Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
    EXPECT_TRUE(prefill.Run(sequence.get(), {}).ok());
  }
  static TinyModelOptions Options(int head_dim) {
    TinyModelOptions options;
    options.type = TensorType::kQ8_0;
    options.head_dim = head_dim;
    options.vocab_size = kVocab;
    return options;
  }
  const ModelConfig& config() const { return harness.model().config; }
  // A draft KV that keeps two of three positions.
  DraftKv Draft(std::string_view codec, double fraction, int whole_layers) {
    DraftKv draft(config().kv_shape(), Codec(codec), harness.model().kernels);
    draft.SetQueryTimeReads(fraction, whole_layers);
    KeptSet kept;
    for (int i = 0; i < config().num_layers * config().num_kv_heads; ++i) {
      std::vector<int32_t>& positions = kept.positions.emplace_back();
      for (int32_t pos = 0; pos < sequence->full.num_tokens(); ++pos)
        if (pos % 3 != i % 3 || pos + 1 == sequence->full.num_tokens()) positions.push_back(pos);
    }
    draft.Rebuild(sequence->full, kept, &harness.pool());
    return draft;
  }
};

TEST(DraftRows, ManyAtOnceEqualOneByOne) {
  for (const int num_threads : {1, 2}) {
    Prepared prepared(num_threads);
    Forward& forward = prepared.harness.forward();
    const int64_t first = prepared.sequence->full.num_tokens();
    for (const char* codec : {"f16", "int4", "int3", "rot2", "k16v4", "kivi2"}) {
      for (const double fraction : {1.0, 0.2}) {
        for (const int n : {2, 3, 16, 37}) {
          const std::vector<TokenId> tokens = RandomPrompt(n, kVocab, n);
          DraftKv together = prepared.Draft(codec, fraction, 1), alone = together.Copy();
          HiddenRows many, one;
          RowGroup group{tokens, first, &together, 0, nullptr};
          forward.Run({&group, 1}, &many);
          ASSERT_EQ(many.num_rows, n);
          const size_t hidden = prepared.config().hidden_size;
          for (int row = 0; row < n; ++row) {
            group = {{&tokens[row], 1}, first + row, &alone, 0, nullptr};
            forward.Run({&group, 1}, &one);
            ASSERT_EQ(
                std::memcmp(one.x.data(), many.x.data() + row * hidden, hidden * sizeof(float)), 0)
                << codec << " fraction " << fraction << " row " << row << " of " << n;
          }
          EXPECT_EQ(together.num_bytes(), alone.num_bytes());
        }
      }
    }
  }
}

// Attention of one row over layer `layer` of a draft KV: [num_heads * head_dim].
std::vector<float> Attend(Prepared* prepared, DraftKv* draft, int layer,
                          const std::vector<float>& q) {
  Attention attention(prepared->config(), prepared->harness.model().kernels,
                      &prepared->harness.pool());
  std::vector<float> out(q.size());
  const AttentionJob job{draft->Layer(layer),
                         q.data(),
                         out.data(),
                         1,
                         prepared->sequence->full.num_tokens() - 1,
                         0,
                         prepared->config().num_kv_heads};
  attention.Run({&job, 1});
  return out;
}

// The same with groups picked by sorting all of them.
std::vector<float> AttendSlowly(Prepared* prepared, DraftKv* draft, int layer, int64_t num_selected,
                                const std::vector<float>& q) {
  const ModelConfig& config = prepared->config();
  const KernelTable& kernels = *prepared->harness.model().kernels;
  const int heads = config.heads_per_kv_head();
  const KvView kv = draft->Layer(layer);
  std::vector<float> out(q.size());
  for (int kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
    DraftHeadView view = kv.draft[kv_head];
    const size_t at = static_cast<size_t>(kv_head) * heads * config.head_dim;
    std::vector<float> scaled(heads * config.head_dim), rank(view.num_groups);
    kernels.scale(q.data() + at, 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
                  heads * config.head_dim, scaled.data());
    std::vector<float> scratch(DraftScratchFloats(heads, view.num_keys(), config.head_dim));
    AllKernelTables()[0]->group_bounds(view, scaled.data(), heads, rank.data(), scratch.data());
    std::vector<int32_t> groups(view.num_groups);
    std::iota(groups.begin(), groups.end(), 0);
    std::stable_sort(groups.begin(), groups.end(),
                     [&](int32_t a, int32_t b) { return rank[a] > rank[b]; });
    groups.resize(num_selected);
    std::sort(groups.begin(), groups.end());
    view.groups = groups.data();
    view.num_selected = num_selected;
    kernels.attend_draft(view, scaled.data(), heads, out.data() + at, config.head_dim,
                         scratch.data());
  }
  return out;
}

std::vector<float> RandomQueries(const ModelConfig& config, uint64_t seed) {
  std::vector<float> q(static_cast<size_t>(config.num_heads) * config.head_dim);
  for (float& x : q) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    x = static_cast<float>(static_cast<int64_t>(seed >> 33) % 1000 - 500) / 100.0f;
  }
  return q;
}

TEST(DraftRows, QueryTimeReadsPickWhatTheOraclePicks) {
  for (const int head_dim : {16, 32}) {
    Prepared prepared(2, head_dim);
    for (const char* codec : {"f16", "int4", "int2", "rot3", "k16v4", "k5v16"}) {
      for (const double fraction : {0.01, 0.25, 0.5}) {
        DraftKv draft = prepared.Draft(codec, fraction, 1);
        DraftKv whole = prepared.Draft(codec, 1.0, 0);
        const int64_t num_groups = draft.Layer(1).draft[0].num_groups;
        ASSERT_EQ(num_groups, (600 - draft.codec(1).tail_keys) / 32);
        const int64_t selected =
            std::max<int64_t>(3, std::ceil(fraction * static_cast<double>(num_groups)));
        for (uint64_t seed = 0; seed < 5; ++seed) {
          SCOPED_TRACE(std::string(codec) + " " + std::to_string(fraction));
          const std::vector<float> q = RandomQueries(prepared.config(), seed);
          const auto got = Attend(&prepared, &draft, 1, q);
          EXPECT_EQ(got, AttendSlowly(&prepared, &draft, 1, selected, q));
          EXPECT_NE(got, Attend(&prepared, &whole, 1, q));
          // The first layer is read whole.
          EXPECT_EQ(draft.Layer(0).draft[0].num_selected, 0);
          EXPECT_EQ(Attend(&prepared, &draft, 0, q), Attend(&prepared, &whole, 0, q));
        }
      }
    }
  }
}

// Groups whose bounds are equal: the lower ones are read.
TEST(DraftRows, QueryTimeReadsPreferLowerGroups) {
  Prepared prepared(1);
  DraftKv draft = prepared.Draft("int4", 0.3, 0);
  const std::vector<float> zero(RandomQueries(prepared.config(), 1).size(), 0.0f);
  EXPECT_EQ(Attend(&prepared, &draft, 0, zero), AttendSlowly(&prepared, &draft, 0, 5, zero));
}

TEST(DraftRows, ReadingAllGroupsIsThePlainPath) {
  Prepared prepared(1);
  const std::vector<float> q = RandomQueries(prepared.config(), 3);
  for (const char* codec : {"int4", "rot5", "k16v4"}) {
    DraftKv plain(prepared.config().kv_shape(), Codec(codec), prepared.harness.model().kernels);
    DraftKv all = plain.Copy(), nearly_all = plain.Copy();
    all.SetQueryTimeReads(1.0, 0);
    nearly_all.SetQueryTimeReads(0.999, 0);
    KeptSet kept;
    kept.positions.assign(prepared.config().num_layers * prepared.config().num_kv_heads,
                          std::vector<int32_t>(600));
    for (auto& positions : kept.positions) std::iota(positions.begin(), positions.end(), 300);
    for (DraftKv* draft : {&plain, &all, &nearly_all})
      draft->Rebuild(prepared.sequence->full, kept, &prepared.harness.pool());
    const auto expected = Attend(&prepared, &plain, 1, q);
    EXPECT_EQ(Attend(&prepared, &all, 1, q), expected) << codec;
    EXPECT_EQ(Attend(&prepared, &nearly_all, 1, q), expected) << codec;
    EXPECT_EQ(nearly_all.Layer(1).draft[0].num_selected, 0);
    EXPECT_EQ(all.num_bytes(), plain.num_bytes());
    EXPECT_EQ(nearly_all.read_bytes_per_step(), nearly_all.num_bytes());
  }
}

}  // namespace
}  // namespace vericache
