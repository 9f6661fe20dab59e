// What the tests of draft attention share: a draft KV head with random contents, and what it means.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_test_util.h"

namespace vericache {

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
  DraftHeadView Rotated() const {
    DraftHeadView view = view_;
    view.rotated = true;
    return view;
  }
  double K(int64_t j, int d) const { return k_[j * dim_ + d]; }
  double V(int64_t j, int d) const { return v_[j * dim_ + d]; }
  // Only the groups named, in that order, stored anew.
  TestDraft Only(const std::vector<int32_t>& groups) const {
    TestDraft copy = *this;
    copy.view_.num_groups = static_cast<int64_t>(groups.size());
    Pick(groups, k_data_, &copy.k_data_, &copy.view_.k_data);
    Pick(groups, k_scale_, &copy.k_scale_, &copy.view_.k_scale);
    Pick(groups, k_min_, &copy.k_min_, &copy.view_.k_min);
    Pick(groups, v_data_, &copy.v_data_, &copy.view_.v_data);
    Pick(groups, v_scale_, &copy.v_scale_, &copy.view_.v_scale);
    Pick(groups, v_min_, &copy.v_min_, &copy.view_.v_min);
    return copy;
  }
  std::vector<uint16_t>& tail_k() { return tail_k_; }
  std::vector<uint16_t>& tail_v() { return tail_v_; }

 private:
  template <typename T>
  void Pick(const std::vector<int32_t>& groups, const std::vector<T>& from, std::vector<T>* to,
            const T** data) const {
    const size_t size = view_.num_groups == 0 ? 0 : from.size() / view_.num_groups;
    to->clear();
    for (const int32_t g : groups)
      to->insert(to->end(), from.begin() + g * size, from.begin() + (g + 1) * size);
    *data = to->data();
  }
  static void PushHalf(std::vector<uint8_t>& bytes, uint16_t half) {
    bytes.push_back(static_cast<uint8_t>(half));
    bytes.push_back(static_cast<uint8_t>(half >> 8));
  }
  uint16_t Half(float range) { return F32ToF16(random_.Uniform(range)); }
  // 32 codes under one scale and minimum; `set(i, code, value)` receives each and what it means.
  template <typename F>
  void PushCodes(DraftFormat format, uint16_t* scale_out, uint16_t* min_out, F set) {
    const int levels = MaxCodeOf(format) + 1;
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
    data.resize(begin + dim_ * 4 * BitsOf(format));
    scales.resize(scales.size() + dim_);
    mins.resize(mins.size() + dim_);
    return begin;
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
      for (int d = 0; d < dim_; ++d) BoundHalfKeys(g, d);
      return;
    }
    const size_t begin = Grow(format, k_data_, k_scale_, k_min_);
    for (int d = 0; d < dim_; ++d) {
      PushCodes(format, &k_scale_[g * dim_ + d], &k_min_[g * dim_ + d],
                [&](int i, int code, float value) {
                  k_[(g * 32 + i) * dim_ + d] = value;
                  uint8_t* block = &k_data_[begin + d / 32 * 128 * BitsOf(format)];
                  PutBlockCode(format, block, d % 32, i, code);
                });
    }
  }
  // Least key and how far the largest lies above it, one step of f16 more than that.
  void BoundHalfKeys(int64_t g, int d) {
    float low = k_[g * 32 * dim_ + d], high = low;
    for (int i = 1; i < 32; ++i) {
      low = std::min(low, k_[(g * 32 + i) * dim_ + d]);
      high = std::max(high, k_[(g * 32 + i) * dim_ + d]);
    }
    k_min_.push_back(F32ToF16(low));
    k_scale_.push_back(static_cast<uint16_t>(F32ToF16(high - low) + 1));
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
          PutBlockCode(format, &v_data_[begin + part * 128 * BitsOf(format)], i, l, code);
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
  std::vector<uint8_t> k_data_, v_data_;
  std::vector<uint16_t> k_scale_, k_min_, v_scale_, v_min_, tail_k_, tail_v_;
  DraftHeadView view_;
};

inline std::vector<float> Attend(const KernelTable& table, const DraftHeadView& view,
                                 const std::vector<float>& q, int num_heads) {
  std::vector<float> out(num_heads * view.head_dim);
  std::vector<float> scratch(DraftScratchFloats(num_heads, view.num_keys_read(), view.head_dim),
                             kNan);
  table.attend_draft(view, q.data(), num_heads, out.data(), view.head_dim, scratch.data());
  return out;
}

inline std::vector<float> RandomQ(int num_heads, int head_dim, uint64_t seed) {
  return TestRandom(seed).Floats(num_heads * head_dim,
                                 3.0f / std::sqrt(static_cast<float>(head_dim)));
}

}  // namespace vericache
