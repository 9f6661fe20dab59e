// Attention over draft KV: tables bit for bit against each other, the judge against dense softmax
// in fp64 over values that the test stored through its own reading of kv_view.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kernel_test_util.h"

namespace vericache {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A draft KV head with random codes, and what its rows mean.
class TestDraft {
 public:
  TestDraft(DraftFormat k_format, DraftFormat v_format, int head_dim, int64_t groups, int64_t tail,
            uint64_t seed)
      : random_(seed), dim_(head_dim), padded_((head_dim + 15) / 16 * 16) {
    const int64_t keys = groups * 32 + tail;
    k_.assign(keys * dim_, 0.0f);
    v_.assign(keys * dim_, 0.0f);
    view_ = {.k_format = k_format,
             .v_format = v_format,
             .head_dim = head_dim,
             .num_groups = groups,
             .num_tail = tail};
    for (int64_t g = 0; g < groups; ++g) {
      FillKeys(k_format, g);
      FillValues(v_format, g);
    }
    FillTail(groups * 32, tail);
    view_.k_data = k_data_.data();
    view_.k_scale = k_scale_.data();
    view_.k_min = k_min_.data();
    view_.v_data = v_data_.data();
    view_.v_scale = v_scale_.data();
    view_.v_min = v_min_.data();
    view_.tail_k = tail_k_.data();
    view_.tail_v = tail_v_.data();
  }
  const DraftHeadView& view() const { return view_; }
  double K(int64_t j, int d) const { return k_[j * dim_ + d]; }
  double V(int64_t j, int d) const { return v_[j * dim_ + d]; }
  std::vector<uint16_t>& tail_k() { return tail_k_; }
  std::vector<uint16_t>& tail_v() { return tail_v_; }

 private:
  static void PushHalf(std::vector<uint8_t>& bytes, uint16_t half) {
    bytes.push_back(static_cast<uint8_t>(half));
    bytes.push_back(static_cast<uint8_t>(half >> 8));
  }
  uint16_t Half(float range) { return F32ToF16(random_.Uniform(range)); }
  // 32 codes under one scale and minimum; `set(i, code, value)` receives each and what it means.
  template <typename F>
  void PushCodes(DraftFormat format, uint16_t* scale_out, uint16_t* min_out, F set) {
    const int levels = format == DraftFormat::kInt8 ? 256 : 16;
    const uint16_t scale = F32ToF16((1.5f + random_.Uniform(1.0f)) / static_cast<float>(levels));
    const uint16_t min = Half(1.5f);
    *scale_out = scale;
    *min_out = min;
    for (int i = 0; i < 32; ++i) {
      const int code = static_cast<int>(random_.Below(levels));
      set(i, code, F16ToF32(min) + F16ToF32(scale) * static_cast<float>(code));
    }
  }
  // Appends room for one group of codes; returns its first byte.
  size_t Grow(DraftFormat format, std::vector<uint8_t>& data, std::vector<uint16_t>& scales,
              std::vector<uint16_t>& mins) {
    const size_t begin = data.size();
    data.resize(begin + dim_ * (format == DraftFormat::kInt8 ? 32 : 16));
    scales.resize(scales.size() + dim_);
    mins.resize(mins.size() + dim_);
    return begin;
  }
  // A code at [four][lane of 32][at of four]: 32 lanes share a byte's nibbles, or are two halves.
  static void Put(DraftFormat format, uint8_t* data, int four, int lane, int at, int code) {
    if (format == DraftFormat::kInt8) {
      data[four * 128 + lane / 16 * 64 + lane % 16 * 4 + at] = static_cast<uint8_t>(code);
    } else {
      data[four * 64 + lane % 16 * 4 + at] |= static_cast<uint8_t>(lane < 16 ? code : code << 4);
    }
  }
  void FillKeys(DraftFormat format, int64_t g) {
    if (format == DraftFormat::kF16) {
      for (int half = 0; half < 2; ++half) {
        for (int d = 0; d < dim_; ++d) {
          for (int l = 0; l < 16; ++l) {
            const uint16_t value = Half(2.0f);
            PushHalf(k_data_, value);
            k_[(g * 32 + half * 16 + l) * dim_ + d] = F16ToF32(value);
          }
        }
      }
      return;
    }
    const size_t begin = Grow(format, k_data_, k_scale_, k_min_);
    for (int d = 0; d < dim_; ++d) {
      PushCodes(format, &k_scale_[g * dim_ + d], &k_min_[g * dim_ + d],
                [&](int i, int code, float value) {
                  k_[(g * 32 + i) * dim_ + d] = value;
                  Put(format, &k_data_[begin], d / 4, i, d % 4, code);
                });
    }
  }
  void FillValues(DraftFormat format, int64_t g) {
    if (format == DraftFormat::kF16) {
      for (int c = 0; c < padded_; c += 16) {
        for (int i = 0; i < 32; ++i) {
          for (int l = 0; l < 16; ++l) {
            const uint16_t value = Half(2.0f);
            PushHalf(v_data_, value);
            if (c + l < dim_) v_[(g * 32 + i) * dim_ + c + l] = F16ToF32(value);
          }
        }
      }
      return;
    }
    const size_t begin = Grow(format, v_data_, v_scale_, v_min_);
    for (int i = 0; i < 32; ++i) {
      for (int part = 0; part < dim_ / 32; ++part) {
        const int64_t at = g * dim_ + part * 32 + i;
        PushCodes(format, &v_scale_[at], &v_min_[at], [&](int l, int code, float value) {
          v_[(g * 32 + i) * dim_ + part * 32 + l] = value;
          Put(format, &v_data_[begin], part * 8 + i / 4, l, i % 4, code);
        });
      }
    }
  }
  void FillTail(int64_t first, int64_t tail) {
    const int64_t rounded = (tail + 15) / 16 * 16;
    tail_k_.assign(rounded * dim_, 0);
    tail_v_.assign(rounded * padded_, 0);
    for (int64_t t = 0; t < tail; ++t) {
      for (int d = 0; d < dim_; ++d) {
        const uint16_t k = Half(2.0f), v = Half(2.0f);
        tail_k_[(t / 16 * dim_ + d) * 16 + t % 16] = k;
        tail_v_[((t / 16 * (padded_ / 16) + d / 16) * 16 + t % 16) * 16 + d % 16] = v;
        k_[(first + t) * dim_ + d] = F16ToF32(k);
        v_[(first + t) * dim_ + d] = F16ToF32(v);
      }
    }
  }

  TestRandom random_;
  int dim_, padded_;
  std::vector<float> k_, v_;
  // Never empty, so that data() can be passed for formats without scales.
  std::vector<uint8_t> k_data_, v_data_;
  std::vector<uint16_t> k_scale_, k_min_, v_scale_, v_min_, tail_k_, tail_v_;
  DraftHeadView view_;
};

std::vector<float> Attend(const KernelTable& table, const DraftHeadView& view,
                          const std::vector<float>& q, int num_heads) {
  std::vector<float> out(num_heads * view.head_dim);
  std::vector<float> scratch(DraftScratchFloats(num_heads, view.num_keys(), view.head_dim), kNan);
  table.attend_draft(view, q.data(), num_heads, out.data(), view.head_dim, scratch.data());
  return out;
}

std::vector<float> RandomQ(int num_heads, int head_dim, uint64_t seed) {
  return TestRandom(seed).Floats(num_heads * head_dim,
                                 3.0f / std::sqrt(static_cast<float>(head_dim)));
}

constexpr DraftFormat kFormats[] = {DraftFormat::kF16, DraftFormat::kInt8, DraftFormat::kInt4};

TEST(DraftAttention, TablesAgreeForEveryFormatAndSize) {
  for (const DraftFormat k_format : kFormats) {
    for (const DraftFormat v_format : kFormats) {
      for (const int head_dim : {8, 40, 64, 96, 128}) {
        const bool codes = k_format != DraftFormat::kF16 || v_format != DraftFormat::kF16;
        if (head_dim % 32 != 0 && codes) continue;
        for (const int num_heads : {1, 2, 3, 4, 5, 6, 7, 8, 12, 13}) {
          for (const auto& [groups, tail] :
               {std::pair<int, int>{0, 1}, {0, 40}, {1, 16}, {2, 17}, {5, 3}}) {
            const TestDraft draft(k_format, v_format, head_dim, groups, tail, num_heads + tail);
            const auto q = RandomQ(num_heads, head_dim, 9);
            const auto expected = Attend(Judge(), draft.view(), q, num_heads);
            for (const KernelTable* table : AllKernelTables()) {
              if (std::string(table->name) == "scalar-baseline" && num_heads > 1) continue;  // slow
              EXPECT_TRUE(AllSameBits(Attend(*table, draft.view(), q, num_heads), expected))
                  << table->name << " dim " << head_dim << " heads " << num_heads << " groups "
                  << groups << " tail " << tail;
            }
          }
        }
      }
    }
  }
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

double ExpectedScore(const TestDraft& draft, const float* q, int64_t j) {
  const DraftHeadView& view = draft.view();
  double score = 0;
  if (view.k_format == DraftFormat::kF16 || j >= view.num_groups * 32) {
    for (int d = 0; d < view.head_dim; ++d) score += q[d] * draft.K(j, d);
    return score;
  }
  const int64_t first = j / 32 * view.head_dim;
  std::vector<float> x(view.head_dim);
  for (int d = 0; d < view.head_dim; ++d) x[d] = q[d] * F16ToF32(view.k_scale[first + d]);
  const Products products = Quantised(x);
  for (int d = 0; d < view.head_dim; ++d) {
    const double scale = F16ToF32(view.k_scale[first + d]), min = F16ToF32(view.k_min[first + d]);
    const double code = std::nearbyint((draft.K(j, d) - min) / scale);
    score += q[d] * min + products.scale * products.codes[d] * code;
  }
  return score;
}

// sum over keys of p[j] V(j, c); p: probabilities.
double ExpectedValue(const TestDraft& draft, const std::vector<double>& p, int c) {
  const DraftHeadView& view = draft.view();
  const int64_t coded = view.v_format == DraftFormat::kF16 ? 0 : view.num_groups * 32;
  double value = 0;
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
      value += p[first + j] * min + products.scale * products.codes[j] * code;
    }
  }
  for (int64_t j = coded; j < view.num_keys(); ++j) value += p[j] * draft.V(j, c);
  return value;
}

// Bound: as in attention_test.cc, with u = 2^-24 and |v| <= 4, and for coded values two products
// that round to the neighbouring code because p differs in its last bits.
TEST(DraftAttention, IsDenseSoftmaxOverWhatTheCodesMean) {
  for (const DraftFormat k_format : kFormats) {
    for (const DraftFormat v_format : kFormats) {
      const int head_dim = 64;
      const TestDraft draft(k_format, v_format, head_dim, 20, 37, 4);
      const int64_t keys = draft.view().num_keys();
      const auto q = RandomQ(3, head_dim, 5);
      const auto out = Attend(Judge(), draft.view(), q, 3);
      double dense_error = 0;
      for (int h = 0; h < 3; ++h) {
        std::vector<double> p(keys, 0.0), dense(keys, 0.0);
        double max_abs = 0, sum = 0, dense_sum = 0, p_max = 0;
        for (int64_t j = 0; j < keys; ++j) {
          double abs = 0;
          p[j] = ExpectedScore(draft, &q[h * head_dim], j);
          for (int d = 0; d < head_dim; ++d) {
            dense[j] += q[h * head_dim + d] * draft.K(j, d);
            abs += std::fabs(q[h * head_dim + d] * draft.K(j, d));
          }
          max_abs = std::max(max_abs, abs);
        }
        for (double& x : p) sum += x = std::exp(x);
        for (double& x : dense) dense_sum += x = std::exp(x);
        for (double& x : p) p_max = std::max(p_max, x /= sum);
        const double u = 0x1p-24;
        const double bound =
            4 * 2 * (2 * (head_dim + 3) * u * max_abs + 4 * u + static_cast<double>(keys) * u) +
            (v_format == DraftFormat::kF16 ? 0 : 2 * p_max * 2.5 / 127);
        for (int d = 0; d < head_dim; ++d) {
          EXPECT_NEAR(out[h * head_dim + d], ExpectedValue(draft, p, d), bound);
          double exact = 0;
          for (int64_t j = 0; j < keys; ++j) exact += dense[j] / dense_sum * draft.V(j, d);
          dense_error += (out[h * head_dim + d] - exact) * (out[h * head_dim + d] - exact);
        }
      }
      // What the int8 products cost beside exact ones; the values have a deviation of about 1.
      EXPECT_LT(std::sqrt(dense_error / (3 * head_dim)), 0.008);
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
