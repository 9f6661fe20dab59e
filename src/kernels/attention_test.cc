// Attention over full KV: against a slow second reading of docs/exactness.md (bit for bit), against
// dense softmax in fp64 (within a derived bound), and against itself under every way to cut it.
#include <algorithm>
#include <limits>
#include <string>

#include "kernels/kernel_test_util.h"

namespace vericache {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kNumKvHeads = 2;

// A full KV of one layer, filled through positions, with junk wherever nothing was written.
class TestKv {
 public:
  TestKv(int head_dim, int64_t num_tokens, uint64_t seed) {
    shape_ = {.num_layers = 1, .num_kv_heads = kNumKvHeads, .head_dim = head_dim};
    TestRandom random(seed);
    blocks_.resize((num_tokens + 63) / 64);
    for (auto& block : blocks_) {
      block.assign(kOffset + shape_.layer_block_values(), 0x7e00);  // NaN
      pointers_.push_back(block.data());
    }
    for (int64_t pos = 0; pos < num_tokens; ++pos) {
      for (int head = 0; head < kNumKvHeads; ++head) {
        for (int d = 0; d < head_dim; ++d) {
          *K(pos, head, d) = F32ToF16(random.Uniform(2.0f));
          *V(pos, head, d) = F32ToF16(random.Uniform(1.0f));
        }
      }
    }
    view_.blocks = pointers_.data();
    view_.layer_offset = kOffset;
    view_.shape = shape_;
    view_.num_tokens = num_tokens;
  }
  uint16_t* K(int64_t pos, int head, int d) {
    const int64_t j = pos % 64;
    return HeadOf(pos, head) + (j / 16 * shape_.head_dim + d) * 16 + j % 16;
  }
  uint16_t* V(int64_t pos, int head, int d) {
    return HeadOf(pos, head) + shape_.k_block_values() + (d / 16 * 64 + pos % 64) * 16 + d % 16;
  }
  // Overwrites a whole row, padding lanes of V included.
  void Plant(int64_t pos, float value) {
    for (int head = 0; head < kNumKvHeads; ++head) {
      for (int d = 0; d < shape_.head_dim; ++d) *K(pos, head, d) = F32ToF16(value);
      for (int d = 0; d < shape_.padded_head_dim(); ++d) *V(pos, head, d) = F32ToF16(value);
    }
  }
  const FullKvView& view() const { return view_; }
  int head_dim() const { return shape_.head_dim; }
  int64_t padded() const { return shape_.padded_head_dim(); }

 private:
  static constexpr size_t kOffset = 32;  // as if another layer came first
  uint16_t* HeadOf(int64_t pos, int head) {
    return blocks_[pos / 64].data() + kOffset + shape_.head_block_values() * head;
  }
  KvShape shape_;
  std::vector<std::vector<uint16_t>> blocks_;
  std::vector<const uint16_t*> pointers_;
  FullKvView view_;
};

struct State {
  State(int64_t rows, int64_t padded) : max(rows), sum(rows * 16), acc(rows * padded) {}
  AttnState View() { return {max.data(), sum.data(), acc.data()}; }
  std::vector<float> max, sum, acc;
};

// The whole attention of some rows: segments in order, combined, finished.
std::vector<float> Attend(const KernelTable& table, const TestKv& kv, int kv_head,
                          const AttnRows& rows) {
  State total(rows.num_rows, kv.padded());
  State next(rows.num_rows, kv.padded());
  std::vector<float> scratch(AttnScratchFloats(kv.head_dim()), kNan);
  const int64_t last_pos = rows.first_pos + (rows.num_rows - 1) / rows.heads_per_kv;
  for (int64_t s = 0; s <= last_pos / kSegmentTokens; ++s) {
    State& state = s == 0 ? total : next;
    table.attend_segment(kv.view(), kv_head, rows, s, state.View(), scratch.data());
    if (s > 0) table.attend_combine(rows.num_rows, kv.padded(), next.View(), total.View());
  }
  std::vector<float> out(rows.num_rows * kv.head_dim());
  table.attend_finish(rows.num_rows, kv.head_dim(), total.View(), out.data(), kv.head_dim());
  return out;
}

// docs/exactness.md, "Attention", for one row at `pos`, without looking at the kernels.
std::vector<float> Reference(TestKv& kv, int head, const float* q, int64_t pos) {
  const int dim = kv.head_dim();
  float big_max = -kInf;
  std::vector<float> big_lanes(16), big_acc(dim);
  for (int64_t segment = 0; segment <= pos; segment += 1024) {
    float m = -kInf;
    std::vector<float> lanes(16, 0.0f), acc(dim, 0.0f);
    for (int64_t block = segment; block < segment + 1024 && block <= pos; block += 64) {
      std::vector<float> u;
      for (int64_t key = block; key < block + 64 && key <= pos; ++key) {
        float a = 0;
        for (int d = 0; d < dim; ++d) a = std::fma(q[d], F16ToF32(*kv.K(key, head, d)), a);
        u.push_back(a * 1.44269504f);
      }
      float m_new = m;
      for (float x : u) m_new = std::isnan(m_new) || m_new > x ? m_new : x;
      m_new += 0.0f;
      const float c = ReferenceExp2(m - m_new);
      for (float& lane : lanes) lane *= c;
      for (float& a : acc) a *= c;
      for (size_t j = 0; j < u.size(); ++j) {
        const float p = ReferenceExp2(u[j] - m_new);
        lanes[j % 16] += p;
        for (int d = 0; d < dim; ++d) {
          acc[d] = std::fma(p, F16ToF32(*kv.V(block + j, head, d)), acc[d]);
        }
      }
      m = m_new;
    }
    if (segment == 0) {
      big_max = m, big_lanes = lanes, big_acc = acc;
      continue;
    }
    const float m_new = std::isnan(big_max) || big_max > m ? big_max : m;
    const float a = ReferenceExp2(big_max - m_new);
    const float b = ReferenceExp2(m - m_new);
    for (int l = 0; l < 16; ++l) big_lanes[l] = std::fma(lanes[l], b, big_lanes[l] * a);
    for (int d = 0; d < dim; ++d) big_acc[d] = std::fma(acc[d], b, big_acc[d] * a);
    big_max = m_new;
  }
  for (int s = 8; s > 0; s /= 2) {
    for (int l = 0; l < s; ++l) big_lanes[l] += big_lanes[l + s];
  }
  for (float& x : big_acc) x *= 1.0f / big_lanes[0];
  return big_acc;
}

// m positions that end with the last token, all heads of one group.
AttnRows LastRows(const TestKv& kv, const std::vector<float>& q, int64_t m, int heads_per_kv) {
  return {q.data(), m * heads_per_kv, heads_per_kv, kv.view().num_tokens - m};
}

std::vector<float> RandomQ(int64_t m, int heads_per_kv, int head_dim, uint64_t seed) {
  return TestRandom(seed).Floats(m * heads_per_kv * head_dim,
                                 4.0f / std::sqrt(static_cast<float>(head_dim)));
}

TEST(Attention, EveryTableMatchesTheWrittenContract) {
  for (const int head_dim : {1, 8, 16, 64, 80}) {
    for (const int64_t num_tokens : {1, 5, 16, 63, 64, 65, 200, 1000, 1024, 1025, 2500}) {
      TestKv kv(head_dim, num_tokens, 7 * num_tokens + head_dim);
      const int64_t m = std::min<int64_t>(num_tokens, 3);
      const auto q = RandomQ(m, 3, head_dim, 5);
      const AttnRows rows = LastRows(kv, q, m, 3);
      std::vector<float> expected;
      for (int64_t r = 0; r < rows.num_rows; ++r) {
        const auto row = Reference(kv, 1, q.data() + r * head_dim, rows.first_pos + r / 3);
        expected.insert(expected.end(), row.begin(), row.end());
      }
      for (const KernelTable* table : AllKernelTables()) {
        EXPECT_TRUE(AllSameBits(Attend(*table, kv, 1, rows), expected))
            << table->name << " head_dim " << head_dim << " tokens " << num_tokens;
      }
    }
  }
}

// Every number of rows up to 40 takes every tile and every rest; states too must agree.
TEST(Attention, TablesAgreeOnStatesForEveryNumberOfRows) {
  for (const int head_dim : {16, 40, 128}) {
    TestKv kv(head_dim, 1150, head_dim);
    for (const int heads_per_kv : {1, 3, 6, 7}) {
      for (int64_t num_rows = 1; num_rows <= 40; ++num_rows) {
        const auto q = RandomQ(num_rows, 1, head_dim, num_rows);
        const AttnRows rows{q.data(), num_rows, heads_per_kv, 1149 - (num_rows - 1) / heads_per_kv};
        State expected(num_rows, kv.padded());
        std::vector<float> scratch(AttnScratchFloats(head_dim), kNan);
        Judge().attend_segment(kv.view(), 0, rows, 1, expected.View(), scratch.data());
        for (const KernelTable* table : AllKernelTables()) {
          if (std::string(table->name) == "scalar-baseline" && num_rows > 2) continue;  // slow
          State state(num_rows, kv.padded());
          table->attend_segment(kv.view(), 0, rows, 1, state.View(), scratch.data());
          EXPECT_TRUE(AllSameBits(state.max, expected.max));
          EXPECT_TRUE(AllSameBits(state.sum, expected.sum));
          for (int64_t r = 0; r < num_rows; ++r) {  // padding lanes are nobody's
            for (int d = 0; d < head_dim; ++d) {
              const int64_t i = r * kv.padded() + d;
              ASSERT_TRUE(SameBits(state.acc[i], expected.acc[i]))
                  << table->name << " rows " << num_rows << " heads " << heads_per_kv;
            }
          }
        }
      }
    }
  }
}

// Width invariance: what a verification of m positions computes is what decoding would.
TEST(Attention, PositionsAtOnceEqualOneAtATime) {
  const KernelTable& table = *AllKernelTables()[AllKernelTables().size() > 2 ? 1 : 0];
  for (const int head_dim : {16, 64, 80, 128, 256}) {
    for (const int heads_per_kv : {1, 3, 6, 7}) {
      for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 31, 32, 33}) {
        if (m * heads_per_kv > kMaxAttnRows) continue;
        const int64_t num_tokens = m % 2 == 0 ? 1100 : 1030;  // the rows straddle 1,024 in both
        TestKv kv(head_dim, num_tokens, m);
        const auto q = RandomQ(m, heads_per_kv, head_dim, m + 99);
        const AttnRows rows = LastRows(kv, q, m, heads_per_kv);
        const auto wide = Attend(table, kv, 0, rows);
        std::vector<float> narrow;
        for (int64_t i = 0; i < m; ++i) {
          const AttnRows one{q.data() + i * heads_per_kv * head_dim, heads_per_kv, heads_per_kv,
                             rows.first_pos + i};
          const auto out = Attend(table, kv, 0, one);
          narrow.insert(narrow.end(), out.begin(), out.end());
        }
        EXPECT_TRUE(AllSameBits(wide, narrow))
            << "head_dim " << head_dim << " heads " << heads_per_kv << " m " << m;
      }
    }
  }
}

// The same for heads: a group's rows may be cut between any two heads.
TEST(Attention, HeadsTogetherEqualOneByOne) {
  const int head_dim = 64;
  TestKv kv(head_dim, 1090, 3);
  const auto q = RandomQ(1, 7, head_dim, 4);
  for (const KernelTable* table : AllKernelTables()) {
    const auto together = Attend(*table, kv, 1, LastRows(kv, q, 1, 7));
    for (int cut = 1; cut < 7; ++cut) {
      auto parts = Attend(*table, kv, 1, {q.data(), cut, cut, 1089});
      const auto rest = Attend(*table, kv, 1, {q.data() + cut * head_dim, 7 - cut, 7 - cut, 1089});
      parts.insert(parts.end(), rest.begin(), rest.end());
      EXPECT_TRUE(AllSameBits(together, parts)) << table->name << " cut " << cut;
    }
  }
}

// Dense softmax in fp64. Bound: with u = 2^-24, a score errs by at most D u sum|q k| (chain) plus
// 2 u |s| (to log2 units), so p by e = 2 (D + 2) u max sum|q k| relative (the maximum errs too)
// plus 4 u of exp2 a block or segment passed; the chains over n keys add n u to sum and acc each.
TEST(Attention, StaysNearDenseSoftmaxInDoublePrecision) {
  for (const int head_dim : {16, 64, 128}) {
    const int64_t num_tokens = 2300;
    TestKv kv(head_dim, num_tokens, head_dim + 1);
    const auto q = RandomQ(1, 3, head_dim, 8);
    const auto out = Attend(Judge(), kv, 0, LastRows(kv, q, 1, 3));
    for (int r = 0; r < 3; ++r) {
      std::vector<double> score(num_tokens);
      double max = -1e30, max_abs = 0;
      for (int64_t j = 0; j < num_tokens; ++j) {
        double abs = 0;
        for (int d = 0; d < head_dim; ++d) {
          const double term = double{q[r * head_dim + d]} * F16ToF32(*kv.K(j, 0, d));
          score[j] += term;
          abs += std::fabs(term);
        }
        max = std::max(max, score[j]);
        max_abs = std::max(max_abs, abs);
      }
      const double u = 0x1p-24;
      const double blocks = num_tokens / 64 + 4;
      const double bound = 2 * (2 * (head_dim + 2) * u * max_abs + 4 * u * blocks + num_tokens * u);
      EXPECT_LT(bound, 2e-3);
      double sum = 0;
      for (double& s : score) sum += s = std::exp(s - max);
      for (int d = 0; d < head_dim; ++d) {
        double expected = 0;
        for (int64_t j = 0; j < num_tokens; ++j) {
          expected += score[j] / sum * F16ToF32(*kv.V(j, 0, d));
        }
        EXPECT_NEAR(out[r * head_dim + d], expected, bound);  // |v| <= 1
      }
    }
  }
}

// A rejected draft row, even an overflowing one, changes nothing for the rows before it.
TEST(Attention, KeysBehindARowsPositionChangeNothing) {
  for (const KernelTable* table : AllKernelTables()) {
    for (const int64_t num_tokens : {40, 64, 70, 130, 1030}) {
      const int64_t m = 18;
      TestKv kv(80, num_tokens, 11);
      const auto q = RandomQ(m, 3, 80, 12);
      const AttnRows rows = LastRows(kv, q, m, 3);
      const auto clean = Attend(*table, kv, 0, rows);
      for (int64_t bad = m - 1; bad > 0; bad -= 5) {
        for (const float value : {kNan, kInf, -kInf, 65504.0f}) {
          TestKv planted(80, num_tokens, 11);
          for (int64_t i = bad; i < m; ++i) planted.Plant(rows.first_pos + i, value);
          auto out = Attend(*table, planted, 0, rows);
          for (int64_t i = 0; i < bad * 3 * 80; ++i) {
            ASSERT_TRUE(SameBits(out[i], clean[i])) << table->name << " row " << i / 80;
          }
          if (std::isnan(value)) {
            for (size_t i = bad * 3 * 80; i < out.size(); ++i) ASSERT_TRUE(std::isnan(out[i]));
          }
        }
      }
      if (std::string(table->name) == "scalar-baseline") break;  // slow
    }
  }
}

// Infinite and NaN scores: the tables agree on what becomes NaN and what stays a number.
TEST(Attention, TablesAgreeOnBadRows) {
  for (const float value : {kNan, kInf, -kInf, 65504.0f, -65504.0f, 0.0f, -0.0f, 6e-8f}) {
    for (const int64_t at : {0, 20, 70, 1023, 1024, 1040}) {
      TestKv kv(32, 1050, 21);
      kv.Plant(at, value);
      auto q = RandomQ(10, 2, 32, 22);
      for (int d = 0; d < 32; ++d) {
        q[3 * 32 + d] = 1e36f;   // +inf against 65504
        q[4 * 32 + d] = -1e36f;  // -inf
        q[5 * 32 + d] = d == 0 ? kNan : 0.0f;
        q[6 * 32 + d] = d % 2 == 0 ? 0.0f : -0.0f;
        q[7 * 32 + d] = 1e-42f;
        q[8 * 32 + d] = d % 2 == 0 ? 3e38f : -3e38f;
      }
      const AttnRows rows = LastRows(kv, q, 10, 2);
      const auto expected = Attend(Judge(), kv, 0, rows);
      for (const KernelTable* table : AllKernelTables()) {
        EXPECT_TRUE(AllSameBits(Attend(*table, kv, 0, rows), expected))
            << table->name << " value " << value << " at " << at;
      }
    }
  }
}

TEST(Attention, CombineSkipsRowsWithoutKeysAndTakesTheFirst) {
  const int64_t padded = 16;
  for (const KernelTable* table : AllKernelTables()) {
    State total(3, padded), next(3, padded);
    total.max = {-kInf, 1.5f, 2.0f};
    next.max = {3.0f, -kInf, 2.5f};
    for (int64_t i = 0; i < 3 * 16; ++i) {
      total.sum[i] = i < 16 ? 0.0f : 1.0f + static_cast<float>(i);
      total.acc[i] = i < 16 ? 0.0f : 2.0f + static_cast<float>(i);
      next.sum[i] = i >= 16 && i < 32 ? 0.0f : 3.0f + static_cast<float>(i);
      next.acc[i] = i >= 16 && i < 32 ? 0.0f : i == 0 ? -0.0f : 4.0f + static_cast<float>(i);
    }
    total.acc[20] = -0.0f;  // adding zero times something would make it +0
    const State before = total;
    table->attend_combine(3, padded, next.View(), total.View());
    EXPECT_EQ(total.max, (std::vector<float>{3.0f, 1.5f, 2.5f}));
    const float a = ReferenceExp2(-0.5f);
    for (int64_t i = 0; i < 48; ++i) {
      const float sum = i < 16   ? next.sum[i]
                        : i < 32 ? before.sum[i]
                                 : std::fma(next.sum[i], 1.0f, before.sum[i] * a);
      const float acc = i < 16   ? next.acc[i]
                        : i < 32 ? before.acc[i]
                                 : std::fma(next.acc[i], 1.0f, before.acc[i] * a);
      EXPECT_TRUE(SameBits(total.sum[i], sum)) << table->name << i;
      EXPECT_TRUE(SameBits(total.acc[i], acc)) << table->name << i;
    }
  }
}

// Where probabilities end: exp2 below -125 is zero, and not a denormal.
TEST(Attention, ProbabilitiesEndWhereTheContractSays) {
  TestKv kv(1, 64, 1);
  for (int64_t j = 0; j < 64; ++j) {
    *kv.K(j, 0, 0) = F32ToF16(j == 5 ? 0.0f : -85.0f - 0.0625f * static_cast<float>(j));
  }
  const std::vector<float> q = {1.0f};
  std::vector<float> lanes(16);
  int num_zero = 0;
  for (int64_t j = 0; j < 64; ++j) {
    const float p = ReferenceExp2(F16ToF32(*kv.K(j, 0, 0)) * 1.44269504f);
    lanes[j % 16] += p;
    num_zero += p == 0;
  }
  EXPECT_GT(num_zero, 10);
  EXPECT_LT(num_zero, 50);
  for (const KernelTable* table : AllKernelTables()) {
    State state(1, 16);
    std::vector<float> scratch(AttnScratchFloats(1));
    table->attend_segment(kv.view(), 0, {q.data(), 1, 1, 63}, 0, state.View(), scratch.data());
    EXPECT_TRUE(AllSameBits(state.sum, lanes)) << table->name;
  }
}

// Scores that underflow to -0 give the maximum +0, in whatever order they are compared.
TEST(Attention, ZeroMaximumIsPositive) {
  TestKv kv(1, 64, 1);
  for (int64_t j = 0; j < 64; ++j) *kv.K(j, 0, 0) = 1;  // 2^-24
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> q = {sign * 1e-40f};
    for (const KernelTable* table : AllKernelTables()) {
      State state(1, 16);
      std::vector<float> scratch(AttnScratchFloats(1));
      table->attend_segment(kv.view(), 0, {q.data(), 1, 1, 63}, 0, state.View(), scratch.data());
      EXPECT_TRUE(SameBits(state.max[0], 0.0f)) << table->name;
    }
  }
}

TEST(Attention, SegmentWithoutKeysIsEmpty) {
  TestKv kv(24, 1030, 2);
  const auto q = RandomQ(10, 2, 24, 3);
  const AttnRows rows = LastRows(kv, q, 10, 2);  // positions 1020 to 1029
  for (const KernelTable* table : AllKernelTables()) {
    State state(20, 32);
    std::vector<float> scratch(AttnScratchFloats(24));
    table->attend_segment(kv.view(), 0, rows, 1, state.View(), scratch.data());
    for (int r = 0; r < 8; ++r) {
      EXPECT_EQ(state.max[r], -kInf);
      for (int l = 0; l < 16; ++l) EXPECT_TRUE(SameBits(state.sum[r * 16 + l], 0.0f));
      for (int d = 0; d < 32; ++d) EXPECT_TRUE(SameBits(state.acc[r * 32 + d], 0.0f));
    }
    for (int r = 8; r < 20; ++r) EXPECT_GT(state.max[r], -kInf);
  }
}

// What the rows [row_begin, row_end) of a whole attention give each of the first num_keys keys, by
// the kernels: [num_keys].
std::vector<float> Votes(const KernelTable& table, const TestKv& kv, AttnRows rows,
                         int64_t row_begin, int64_t row_end, int64_t num_keys) {
  const int64_t num_blocks = (num_keys + 63) / 64, num_rows = row_end - row_begin;
  std::vector<uint16_t> p(num_blocks * num_rows * 64, 0x7e00);
  std::vector<float> block_max(num_blocks * num_rows, kNan);
  State total(rows.num_rows, kv.padded()), next(rows.num_rows, kv.padded());
  std::vector<float> scratch(AttnScratchFloats(kv.head_dim()), kNan);
  const int64_t last_pos = rows.first_pos + (rows.num_rows - 1) / rows.heads_per_kv;
  for (int64_t s = 0; s <= last_pos / kSegmentTokens; ++s) {
    State& state = s == 0 ? total : next;
    rows.probs = {};
    if (const int64_t first = s * 16; first < num_blocks)
      rows.probs = {p.data() + first * num_rows * 64,
                    block_max.data() + first * num_rows,
                    num_rows,
                    row_begin,
                    num_rows,
                    num_blocks - first};
    table.attend_segment(kv.view(), 0, rows, s, state.View(), scratch.data());
    if (s > 0) table.attend_combine(rows.num_rows, kv.padded(), next.View(), total.View());
  }
  std::vector<float> inverse;
  for (int64_t r = row_begin; r < row_end; ++r) {
    float sum = 0;
    for (int l = 0; l < 16; ++l) sum += total.sum[r * 16 + l];
    inverse.push_back(1.0f / sum);
  }
  std::vector<float> votes(num_blocks * 64);
  for (int64_t b = 0; b < num_blocks; ++b)
    table.sum_votes(p.data() + b * num_rows * 64, block_max.data() + b * num_rows, num_rows,
                    total.max.data() + row_begin, inverse.data(), votes.data() + b * 64);
  votes.resize(num_keys);
  return votes;
}

TEST(Votes, AreTheSoftmaxOfTheRowsThatAreAskedAndTheSameInEveryTable) {
  for (const int64_t first_pos : {1, 63, 64, 130, 1024, 1100, 2500}) {
    for (const auto& [m, heads] : {std::pair<int64_t, int>{1, 7}, {5, 3}, {17, 7}, {33, 1}}) {
      TestKv kv(32, first_pos + m, first_pos + m);
      const auto q = RandomQ(m, heads, 32, 9);
      const AttnRows rows = LastRows(kv, q, m, heads);
      const int64_t row_begin = m / 3 * heads, row_end = (m - m / 4) * heads;
      std::vector<double> expected(first_pos, 0.0);
      for (int64_t r = row_begin; r < row_end; ++r) {
        std::vector<double> e;
        double sum = 0;
        for (int64_t j = 0; j <= first_pos + r / heads; ++j) {
          double dot = 0;
          for (int d = 0; d < 32; ++d) dot += q[r * 32 + d] * F16ToF32(*kv.K(j, 0, d));
          e.push_back(std::exp(dot));
          sum += e.back();
        }
        for (int64_t j = 0; j < first_pos; ++j) expected[j] += e[j] / sum;
      }
      const std::vector<float> judge = Votes(Judge(), kv, rows, row_begin, row_end, first_pos);
      for (int64_t j = 0; j < first_pos; ++j)  // f16 keeps 11 bits of each share
        ASSERT_NEAR(judge[j], expected[j], 1e-3 * expected[j] + 1e-6) << first_pos << " " << j;
      for (const KernelTable* table : AllKernelTables()) {
        if (std::string(table->name) == "scalar-baseline" && first_pos > 200) continue;  // slow
        EXPECT_TRUE(AllSameBits(Votes(*table, kv, rows, row_begin, row_end, first_pos), judge))
            << table->name << " first " << first_pos << " rows " << m;
      }
    }
  }
}

TEST(Votes, ARowThatIsNotFiniteHasNone) {
  TestKv kv(16, 100, 3);
  auto q = RandomQ(3, 1, 16, 4);
  const AttnRows rows = LastRows(kv, q, 3, 1);
  const std::vector<float> first = Votes(Judge(), kv, rows, 0, 1, 97);
  q[2 * 16 + 3] = kNan;
  q[1 * 16 + 5] = kInf;
  for (const KernelTable* table : AllKernelTables())
    EXPECT_TRUE(AllSameBits(Votes(*table, kv, rows, 0, 3, 97), first)) << table->name;
}

// Asking changes nothing for the answer.
TEST(Votes, AskingLeavesStatesAlone) {
  TestKv kv(64, 300, 5);
  const auto q = RandomQ(9, 3, 64, 6);
  AttnRows rows = LastRows(kv, q, 9, 3);
  for (const KernelTable* table : AllKernelTables()) {
    State asked(27, 64), expected(27, 64);
    std::vector<float> scratch(AttnScratchFloats(64), kNan), max(5 * 27);
    std::vector<uint16_t> p(5 * 27 * 64);
    rows.probs = {};
    table->attend_segment(kv.view(), 1, rows, 0, expected.View(), scratch.data());
    rows.probs = {p.data(), max.data(), 27, 0, 27, 4};
    table->attend_segment(kv.view(), 1, rows, 0, asked.View(), scratch.data());
    EXPECT_TRUE(AllSameBits(asked.max, expected.max));
    EXPECT_TRUE(AllSameBits(asked.sum, expected.sum));
    EXPECT_TRUE(AllSameBits(asked.acc, expected.acc));
    EXPECT_EQ(p[4 * 27 * 64], 0) << "behind the last block that is asked for";
  }
}

TEST(KeyScores, AreTheChainsOfTheContractAndEndWhereTold) {
  for (const int head_dim : {5, 64, 600}) {
    TestKv kv(head_dim, 150, 31);
    for (const int64_t num_rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 14}) {
      const auto q = RandomQ(num_rows, 1, head_dim, 32);
      const AttnRows rows{q.data(), num_rows, 1, 149};
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 150}, {16, 64}, {48, 149}}) {
        for (const KernelTable* table : AllKernelTables()) {
          std::vector<float> scores(num_rows * 160, 77.0f);
          table->key_scores(kv.view(), 1, rows, begin, end, scores.data(), 160);
          for (int64_t r = 0; r < num_rows; ++r) {
            for (int64_t j = 0; j < 160; ++j) {
              float a = 77.0f;
              if (j >= begin && j < end) {
                a = 0;
                for (int d = 0; d < head_dim; ++d) {
                  a = std::fma(q[r * head_dim + d], F16ToF32(*kv.K(j, 1, d)), a);
                }
              }
              ASSERT_TRUE(SameBits(scores[r * 160 + j], a)) << table->name << r << " " << j;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace vericache
