// Attention over draft KV: tables bit for bit against each other, the judge against dense softmax
// in fp64 over values that the test stored through its own reading of kv_view.h.
#include "kernels/draft_test_util.h"

namespace vericache {
namespace {

// Every width, and halves that differ.
constexpr DraftFormat kF16 = DraftFormat::kF16;
const std::pair<DraftFormat, DraftFormat> kFormats[] = {
    {kF16, kF16},
    {DraftFormat::kInt2, DraftFormat::kInt2},
    {DraftFormat::kInt3, DraftFormat::kInt3},
    {DraftFormat::kInt4, DraftFormat::kInt4},
    {DraftFormat::kInt5, DraftFormat::kInt5},
    {DraftFormat::kInt6, DraftFormat::kInt6},
    {DraftFormat::kInt7, DraftFormat::kInt7},
    {DraftFormat::kInt8, DraftFormat::kInt8},
    {DraftFormat::kInt8, DraftFormat::kInt4},
    {DraftFormat::kInt2, DraftFormat::kInt3},
    {kF16, DraftFormat::kInt4},
    {DraftFormat::kInt7, kF16},
};
std::string NameOf(const DraftHeadView& view) {
  return "k" + std::to_string(BitsOf(view.k_format)) + "v" + std::to_string(BitsOf(view.v_format)) +
         (view.rotated ? " rotated" : "") + " dim " + std::to_string(view.head_dim) + " groups " +
         std::to_string(view.num_groups) + " tail " + std::to_string(view.num_tail);
}

TEST(DraftAttention, TablesAgreeForEveryFormatAndSize) {
  for (const auto& [k_format, v_format] : kFormats) {
    for (const int head_dim : {8, 32, 40, 64, 96, 128}) {
      const bool codes = k_format != kF16 || v_format != kF16;
      if (head_dim % 32 != 0 && codes) continue;
      for (const int num_heads : {1, 2, 3, 5, 6, 7, 8, 12, 13}) {
        for (const auto& [groups, tail] :
             {std::pair<int, int>{0, 1}, {0, 40}, {1, 16}, {2, 17}, {5, 3}}) {
          if (head_dim > 64 && (groups != 2 || num_heads % 2 == 0)) continue;
          const TestDraft draft(k_format, v_format, head_dim, groups, tail, num_heads + tail);
          const auto q = RandomQ(num_heads, head_dim, 9);
          for (const DraftHeadView& view : {draft.view(), draft.Rotated()}) {
            if (view.rotated && (!codes || num_heads % 3 != 1)) continue;
            const auto expected = Attend(Judge(), view, q, num_heads);
            for (const KernelTable* table : AllKernelTables()) {
              if (std::string(table->name) == "scalar-baseline" && num_heads > 1) continue;  // slow
              ASSERT_TRUE(AllSameBits(Attend(*table, view, q, num_heads), expected))
                  << table->name << " " << NameOf(view) << " heads " << num_heads;
            }
          }
        }
      }
    }
  }
}

// H32 x / sqrt(32) for every 32 values, in fp32 and in the kernels' order.
std::vector<float> Rotate(std::vector<float> x) {
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    for (size_t s = 1; s < 32; s *= 2) {
      for (size_t i = begin; i < begin + 32; ++i) {
        if ((i - begin) / s % 2 != 0) continue;
        const float sum = x[i] + x[i + s], difference = x[i] - x[i + s];
        x[i] = sum;
        x[i + s] = difference;
      }
    }
    for (size_t i = begin; i < begin + 32; ++i) x[i] *= 1.0f / std::sqrt(32.0f);
  }
  return x;
}

// Products as int8 with one scale, a second time from scalar/draft_attention.cc's words.
struct Products {
  std::vector<double> codes;
  double scale;
};
Products Quantised(const std::vector<float>& x) {
  float amax = 0;
  for (const float v : x) amax = std::max(amax, std::fabs(v));
  Products p{std::vector<double>(x.size()), amax / 127.0f};
  const float inverse = 127.0f / amax;
  for (size_t i = 0; i < x.size(); ++i) p.codes[i] = std::nearbyint(x[i] * inverse);
  return p;
}

// q: what f16 keys meet; coded_q: what codes meet.
double ExpectedScore(const TestDraft& draft, const float* q, const float* coded_q, int64_t j) {
  const DraftHeadView& view = draft.view();
  double score = 0;
  if (view.k_format == DraftFormat::kF16 || j >= view.num_groups * 32) {
    for (int d = 0; d < view.head_dim; ++d) score += q[d] * draft.K(j, d);
    return score;
  }
  const int64_t first = j / 32 * view.head_dim;
  std::vector<float> x(view.head_dim);
  for (int d = 0; d < view.head_dim; ++d) x[d] = coded_q[d] * F16ToF32(view.k_scale[first + d]);
  const Products products = Quantised(x);
  for (int d = 0; d < view.head_dim; ++d) {
    const double scale = F16ToF32(view.k_scale[first + d]), min = F16ToF32(view.k_min[first + d]);
    const double code = std::nearbyint((draft.K(j, d) - min) / scale);
    score += coded_q[d] * min + products.scale * products.codes[d] * code;
  }
  return score;
}

// sum over keys of p[j] V(j, c); p: probabilities. Of coded groups and of what is in f16, apart.
void ExpectedValue(const TestDraft& draft, const std::vector<double>& p, int c, double* coded_sum,
                   double* sum) {
  const DraftHeadView& view = draft.view();
  const int64_t coded = view.v_format == kF16 ? 0 : view.num_groups * 32;
  *coded_sum = *sum = 0;
  for (int64_t first = 0; first < coded; first += 32) {
    const int64_t scales = first / 32 * view.head_dim + c / 32 * 32;
    std::vector<float> x(32);
    for (int j = 0; j < 32; ++j)
      x[j] = static_cast<float>(p[first + j]) * F16ToF32(view.v_scale[scales + j]);
    const Products products = Quantised(x);
    for (int j = 0; j < 32; ++j) {
      const double scale = F16ToF32(view.v_scale[scales + j]);
      const double min = F16ToF32(view.v_min[scales + j]);
      const double code = std::nearbyint((draft.V(first + j, c) - min) / scale);
      *coded_sum += p[first + j] * min + products.scale * products.codes[j] * code;
    }
  }
  for (int64_t j = coded; j < view.num_keys(); ++j) *sum += p[j] * draft.V(j, c);
}

// What key j (K) or its value (V) is, rotated back if it was rotated.
std::vector<double> Meaning(const TestDraft& draft, const DraftHeadView& view, int64_t j, bool k) {
  std::vector<double> x(view.head_dim);
  for (int d = 0; d < view.head_dim; ++d) x[d] = k ? draft.K(j, d) : draft.V(j, d);
  const bool coded = j < view.num_groups * 32 && (k ? view.k_format : view.v_format) != kF16;
  return view.rotated && coded ? RotateExactly(x) : x;
}

// Softmax attention of one head in fp64 over what the codes mean.
std::vector<double> Dense(const TestDraft& draft, const DraftHeadView& view, const float* q) {
  std::vector<double> p(view.num_keys()), out(view.head_dim, 0.0);
  double sum = 0;
  for (int64_t j = 0; j < view.num_keys(); ++j) {
    const std::vector<double> key = Meaning(draft, view, j, true);
    double score = 0;
    for (int d = 0; d < view.head_dim; ++d) score += q[d] * key[d];
    sum += p[j] = std::exp(score);
  }
  for (int64_t j = 0; j < view.num_keys(); ++j) {
    const std::vector<double> value = Meaning(draft, view, j, false);
    for (int d = 0; d < view.head_dim; ++d) out[d] += p[j] / sum * value[d];
  }
  return out;
}

// The same with the int8 products that the kernels' order prescribes, and how far fp32 may be from
// it: as in attention_test.cc, with u = 2^-24 and |v| <= 4, and for coded values two products that
// round to the neighbouring code because p differs in its last bits. Such an error of one channel
// spreads over 32 when it is rotated back.
std::vector<double> WithProducts(const TestDraft& draft, const DraftHeadView& view, const float* q,
                                 double* bound) {
  const int n = view.head_dim;
  const int64_t keys = view.num_keys();
  std::vector<float> coded_q(q, q + n);
  if (view.rotated) coded_q = Rotate(coded_q);
  std::vector<double> p(keys), coded(n), rest(n);
  double max_abs = 0, sum = 0, p_max = 0;
  for (int64_t j = 0; j < keys; ++j) {
    double abs = 0;
    p[j] = std::exp(ExpectedScore(draft, q, coded_q.data(), j));
    sum += p[j];
    for (int d = 0; d < n; ++d) abs += std::fabs(coded_q[d] * draft.K(j, d));
    max_abs = std::max(max_abs, abs);
  }
  for (double& x : p) p_max = std::max(p_max, x /= sum);
  for (int c = 0; c < n; ++c) ExpectedValue(draft, p, c, &coded[c], &rest[c]);
  if (view.rotated && view.v_format != kF16) coded = RotateExactly(coded);
  for (int c = 0; c < n; ++c) coded[c] += rest[c];
  const double u = 0x1p-24;
  *bound = 4 * 2 * (2 * (n + 3) * u * max_abs + 4 * u + static_cast<double>(keys) * u) +
           (view.v_format == kF16 ? 0 : 2 * p_max * 2.5 / 127);
  if (view.rotated) *bound *= std::sqrt(32.0);
  return coded;
}

TEST(DraftAttention, IsDenseSoftmaxOverWhatTheCodesMean) {
  for (const auto& [k_format, v_format] : kFormats) {
    for (const int n : {32, 64, 96, 128}) {
      for (const int tail : {1, 15, 16, 37}) {
        const TestDraft draft(k_format, v_format, n, 7, tail, 4 + tail);
        const auto q = RandomQ(3, n, 5);
        for (const DraftHeadView& view : {draft.view(), draft.Rotated()}) {
          SCOPED_TRACE(NameOf(view));
          const auto out = Attend(Judge(), view, q, 3);
          double error = 0;
          for (int h = 0; h < 3; ++h) {
            double bound = 0;
            const auto expected = WithProducts(draft, view, &q[h * n], &bound);
            const auto dense = Dense(draft, view, &q[h * n]);
            for (int d = 0; d < n; ++d) {
              ASSERT_NEAR(out[h * n + d], expected[d], bound);
              error += (out[h * n + d] - dense[d]) * (out[h * n + d] - dense[d]);
            }
          }
          // What the int8 products cost beside exact ones; the values have a deviation of about 1.
          ASSERT_LT(std::sqrt(error / (3 * n)), 0.015);
        }
      }
    }
  }
}

// A query head's row does not depend on its neighbours.
TEST(DraftAttention, HeadsTogetherEqualOneByOne) {
  const TestDraft draft(DraftFormat::kInt4, DraftFormat::kInt8, 64, 3, 21, 8);
  const auto q = RandomQ(7, 64, 6);
  for (const KernelTable* table : AllKernelTables()) {
    const auto together = Attend(*table, draft.view(), q, 7);
    for (int h = 0; h < 7; ++h) {
      const std::vector<float> one(q.begin() + h * 64, q.begin() + (h + 1) * 64);
      const std::vector<float> expected(together.begin() + h * 64, together.begin() + (h + 1) * 64);
      EXPECT_TRUE(AllSameBits(Attend(*table, draft.view(), one, 1), expected)) << table->name;
    }
  }
}

TEST(DraftAttention, UnusedTailLanesAreNeverMultiplied) {
  for (const KernelTable* table : AllKernelTables()) {
    TestDraft draft(DraftFormat::kInt4, DraftFormat::kInt4, 64, 1, 5, 8);
    const auto q = RandomQ(7, 64, 6);
    const auto clean = Attend(*table, draft.view(), q, 7);
    for (int d = 0; d < 64; ++d) {
      for (int t = 5; t < 16; ++t) {
        draft.tail_k()[d * 16 + t] = 0x7e00;
        draft.tail_v()[(d / 16 * 16 + t) * 16 + d % 16] = 0x7c00;
      }
    }
    EXPECT_TRUE(AllSameBits(Attend(*table, draft.view(), q, 7), clean)) << table->name;
  }
}

TEST(DraftAttention, TablesAgreeOnBadRows) {
  for (const uint16_t planted : {0x7e00, 0x7c00, 0xfc00, 0x7bff, 0x8000, 0x0001}) {
    TestDraft draft(DraftFormat::kInt8, DraftFormat::kInt8, 32, 1, 20, 8);
    auto q = RandomQ(4, 32, 7);
    for (int d = 0; d < 32; ++d) {
      draft.tail_k()[d * 16 + 3] = draft.tail_v()[(d / 16 * 16 + 3) * 16 + d % 16] = planted;
      q[32 + d] = 1e36f;
      q[64 + d] = -1e36f;
      q[96 + d] = d == 5 ? kNan : 0.0f;
    }
    const auto expected = Attend(Judge(), draft.view(), q, 4);
    for (const KernelTable* table : AllKernelTables()) {
      EXPECT_TRUE(AllSameBits(Attend(*table, draft.view(), q, 4), expected)) << table->name;
    }
  }
}

}  // namespace
}  // namespace vericache
