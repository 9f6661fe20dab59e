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
  // 32 codes under one scale and minimum, as bytes; `set(i, value)` receives what they mean.
  template <typename F>
  void PushCodes(DraftFormat format, std::vector<uint8_t>& data, std::vector<uint16_t>& scales,
                 std::vector<uint16_t>& mins, F set) {
    const int levels = format == DraftFormat::kInt8 ? 256 : 16;
    const uint16_t scale = F32ToF16((1.5f + random_.Uniform(1.0f)) / static_cast<float>(levels));
    const uint16_t min = Half(1.5f);
    scales.push_back(scale);
    mins.push_back(min);
    int codes[32];
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<int>(random_.Below(levels));
      set(i, F16ToF32(min) + F16ToF32(scale) * static_cast<float>(codes[i]));
    }
    for (int i = 0; i < (levels == 16 ? 16 : 32); ++i) {
      data.push_back(static_cast<uint8_t>(levels == 16 ? codes[i] | codes[i + 16] << 4 : codes[i]));
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
    for (int d = 0; d < dim_; ++d) {
      PushCodes(format, k_data_, k_scale_, k_min_,
                [&](int i, float value) { k_[(g * 32 + i) * dim_ + d] = value; });
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
    for (int i = 0; i < 32; ++i) {
      for (int c = 0; c < dim_; c += 32) {
        PushCodes(format, v_data_, v_scale_, v_min_,
                  [&](int l, float value) { v_[(g * 32 + i) * dim_ + c + l] = value; });
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
      for (const int head_dim : {8, 40, 64, 128}) {
        if (head_dim % 32 != 0 && v_format != DraftFormat::kF16) continue;
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

// Bound: as in attention_test.cc, with u = 2^-24 and |v| <= 4; dequantising adds one rounding to
// each key and value.
TEST(DraftAttention, StaysNearDenseSoftmaxOverTheDequantisedValues) {
  for (const DraftFormat k_format : kFormats) {
    for (const DraftFormat v_format : kFormats) {
      const int head_dim = 64;
      const TestDraft draft(k_format, v_format, head_dim, 20, 37, 4);
      const int64_t keys = draft.view().num_keys();
      const auto q = RandomQ(3, head_dim, 5);
      const auto out = Attend(Judge(), draft.view(), q, 3);
      for (int h = 0; h < 3; ++h) {
        std::vector<double> p(keys, 0.0);
        double max = -1e30, max_abs = 0, sum = 0;
        for (int64_t j = 0; j < keys; ++j) {
          double abs = 0;
          for (int d = 0; d < head_dim; ++d) {
            p[j] += q[h * head_dim + d] * draft.K(j, d);
            abs += std::fabs(q[h * head_dim + d] * draft.K(j, d));
          }
          max = std::max(max, p[j]);
          max_abs = std::max(max_abs, abs);
        }
        for (double& x : p) sum += x = std::exp(x - max);
        const double u = 0x1p-24;
        const double bound =
            4 * 2 * (2 * (head_dim + 3) * u * max_abs + 4 * u + static_cast<double>(keys) * u);
        for (int d = 0; d < head_dim; ++d) {
          double expected = 0;
          for (int64_t j = 0; j < keys; ++j) expected += p[j] / sum * draft.V(j, d);
          EXPECT_NEAR(out[h * head_dim + d], expected, bound);
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
