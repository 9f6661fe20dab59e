// A slow draft KV for tests: rows in order, per head, and how many of them are in groups.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "kv/draft_kv.h"
#include "kv/kv_test_util.h"

namespace vericache {

inline DraftCodec Codec(std::string_view name) {
  DraftCodec codec;
  EXPECT_TRUE(ParseDraftCodec(name, &codec)) << name;
  return codec;
}

// Every width, unequal halves, halves in f16, another tail length, rotated.
inline constexpr const char* kCodecs[] = {"f16",   "int2",  "int3", "int4", "int5",  "int6",
                                          "int7",  "int8",  "k8v4", "k2v3", "k16v4", "k4v16",
                                          "kivi2", "kivi4", "rot2", "rot4", "rot7"};

// --- Slow readers, from the layout comments of kernels/kv_view.h -------------------------------

inline int KeyCode(const DraftHeadView& view, int64_t group, int key, int c) {
  return GroupKeyCode(view.k_format,
                      view.k_data + group * view.head_dim * 4 * BitsOf(view.k_format), key, c);
}
inline int ValueCode(const DraftHeadView& view, int64_t group, int key, int c) {
  return GroupValueCode(view.v_format,
                        view.v_data + group * view.head_dim * 4 * BitsOf(view.v_format), key, c);
}
inline uint16_t HalfKey(const DraftHeadView& view, int64_t group, int key, int c) {
  return reinterpret_cast<const uint16_t*>(
      view.k_data)[((group * 2 + key / 16) * view.head_dim + c) * 16 + key % 16];
}
inline uint16_t HalfValue(const DraftHeadView& view, int64_t group, int key, int c, int padded) {
  return reinterpret_cast<const uint16_t*>(
      view.v_data)[((group * (padded / 16) + c / 16) * 32 + key) * 16 + c % 16];
}

// |x - decoded| of one quantised value is half a step, plus what rounding the minimum and the scale
// to f16 costs: half an ulp, relative for normal halves, absolute for denormal ones.
inline double CodeBound(float scale, float min, int max_code) {
  return 0.5 * scale * (1 + 1e-6) + std::fabs(min) * 0x1p-11 + (max_code + 1) * 0x1p-25;
}

// What the codes of 32 channels say, and how far each may be from what was coded.
struct Decoded32 {
  double value[32], bound[32];

  void Set(int c, int code, uint16_t scale, uint16_t min, DraftFormat format) {
    value[c] = F16ToF32(min) + static_cast<double>(F16ToF32(scale)) * code;
    bound[c] = CodeBound(F16ToF32(scale), F16ToF32(min), MaxCodeOf(format));
  }
  // Back to the channels before the rotation. Errors add up; fp32 rounds along the way.
  void RotateBack() {
    Decoded32 from = *this;
    for (int c = 0; c < 32; ++c) {
      value[c] = bound[c] = 0;
      for (int i = 0; i < 32; ++i) {
        value[c] += (__builtin_popcount(c & i) % 2 == 0 ? from.value[i] : -from.value[i]);
        bound[c] += from.bound[i] + 8 * 0x1p-24 * std::fabs(from.value[i]);
      }
      value[c] /= std::sqrt(32.0);
      bound[c] /= std::sqrt(32.0);
    }
  }
};

// Channels [first, first + 32) of one key in a group, where they are coded.
inline void ExpectCodes(const DraftHeadView& view, int64_t group, int key, int first,
                        const F16Row& row) {
  const int d = view.head_dim;
  for (const bool is_key : {true, false}) {
    const DraftFormat format = is_key ? view.k_format : view.v_format;
    if (format == DraftFormat::kF16) continue;
    Decoded32 decoded;
    for (int i = 0; i < 32; ++i) {
      const int64_t at = group * d + first + (is_key ? i : key);
      decoded.Set(
          i, is_key ? KeyCode(view, group, key, first + i) : ValueCode(view, group, key, first + i),
          is_key ? view.k_scale[at] : view.v_scale[at], is_key ? view.k_min[at] : view.v_min[at],
          format);
    }
    if (view.rotated) decoded.RotateBack();
    for (int i = 0; i < 32; ++i) {
      const float want = F16ToF32(is_key ? row.k[first + i] : row.v[first + i]);
      ASSERT_NEAR(decoded.value[i], want, decoded.bound[i])
          << (is_key ? "key " : "value ") << group * 32 + key << " channel " << first + i;
    }
  }
}

inline void ExpectKey(const DraftHeadView& view, int64_t idx, const F16Row& row, int padded) {
  const int d = view.head_dim;
  const int64_t t = idx - view.num_groups * 32;
  for (int c = 0; c < d; ++c) {
    if (t >= 0) {  // the tail is exact
      ASSERT_EQ(view.tail_k[(t / 16 * d + c) * 16 + t % 16], row.k[c]) << "key " << idx;
      ASSERT_EQ(view.tail_v[((t / 16 * (padded / 16) + c / 16) * 16 + t % 16) * 16 + c % 16],
                row.v[c])
          << "key " << idx;
      continue;
    }
    const int64_t group = idx / 32;
    const int key = static_cast<int>(idx % 32);
    if (view.k_format == DraftFormat::kF16) {
      ASSERT_EQ(HalfKey(view, group, key, c), row.k[c]) << "key " << idx;
    }
    if (view.v_format == DraftFormat::kF16) {
      ASSERT_EQ(HalfValue(view, group, key, c, padded), row.v[c]) << "key " << idx;
    }
    if (c % 32 == 0 && d % 32 == 0) ExpectCodes(view, group, key, c, row);
  }
}

// Bounds of f16 groups hold all keys, and are no wider than rounding the range to f16 makes them.
inline void ExpectBounds(const DraftHeadView& view) {
  for (int64_t group = 0; group < view.num_groups; ++group) {
    for (int c = 0; c < view.head_dim; ++c) {
      float low = F16ToF32(HalfKey(view, group, 0, c)), high = low;
      for (int key = 1; key < 32; ++key) {
        low = std::min(low, F16ToF32(HalfKey(view, group, key, c)));
        high = std::max(high, F16ToF32(HalfKey(view, group, key, c)));
      }
      const float range = F16ToF32(view.k_scale[group * view.head_dim + c]);
      ASSERT_EQ(F16ToF32(view.k_min[group * view.head_dim + c]), low);
      ASSERT_GE(range, high - low);
      ASSERT_LE(range, (high - low) * (1 + 0x1p-10f));
    }
  }
}

inline void ExpectUnusedLanesZero(const DraftHeadView& view, int padded) {
  const int d = view.head_dim;
  const int64_t lanes = RoundUp(view.num_tail, 16);
  for (int64_t t = 0; t < lanes; ++t) {
    for (int c = 0; c < padded; ++c) {
      if (t < view.num_tail && c < d) continue;
      if (c < d) {
        ASSERT_EQ(view.tail_k[(t / 16 * d + c) * 16 + t % 16], 0) << "lane " << t;
      }
      ASSERT_EQ(view.tail_v[((t / 16 * (padded / 16) + c / 16) * 16 + t % 16) * 16 + c % 16], 0)
          << "lane " << t << " channel " << c;
    }
  }
}

// --- The oracle: rows in order, per head, and how many of them are in groups --------------------

struct OracleHead {
  std::vector<F16Row> rows;
  int64_t num_groups = 0;
};

class Oracle {
 public:
  // `bounded`: layers are read by query, so keys form groups without codes, too.
  Oracle(const KvShape& shape, const DraftCodec& codec, bool bounded = false)
      : shape_(shape),
        codec_(codec),
        bounded_(bounded),
        heads_(shape.num_layers * shape.num_kv_heads) {}

  void Rebuild(const FullKv& full, const KeptSet& kept) {
    provisional_ = 0;
    for (size_t i = 0; i < heads_.size(); ++i) {
      heads_[i] = OracleHead();
      for (int32_t pos : kept.positions[i]) heads_[i].rows.push_back(RowOf(full, i, pos));
      Fold(&heads_[i]);
    }
  }
  void Commit(const FullKv& full, int64_t begin, int64_t end) {
    Rollback();
    for (size_t i = 0; i < heads_.size(); ++i) {
      for (int64_t pos = begin; pos < end; ++pos) heads_[i].rows.push_back(RowOf(full, i, pos));
      Fold(&heads_[i]);
    }
  }
  void Append(const RowBatch& batch) {
    for (size_t i = 0; i < heads_.size(); ++i)
      for (int64_t row = 0; row < batch.num_rows; ++row)
        heads_[i].rows.push_back(batch.Row(shape_, static_cast<int>(i) / shape_.num_kv_heads,
                                           static_cast<int>(i) % shape_.num_kv_heads, row));
    provisional_ += batch.num_rows;
  }
  void Rollback() {
    for (OracleHead& head : heads_) head.rows.resize(head.rows.size() - provisional_);
    provisional_ = 0;
  }
  void ExpectSame(DraftKv* draft, const std::string& what) const {
    SCOPED_TRACE(what);
    size_t bytes = 0;
    for (size_t i = 0; i < heads_.size(); ++i) {
      const KvView layer = draft->Layer(static_cast<int>(i) / shape_.num_kv_heads);
      ASSERT_EQ(layer.kind, KvView::Kind::kDraft);
      ASSERT_EQ(layer.draft.size(), static_cast<size_t>(shape_.num_kv_heads));
      const DraftHeadView& view = layer.draft[i % shape_.num_kv_heads];
      ASSERT_EQ(view.num_keys(), static_cast<int64_t>(heads_[i].rows.size()));
      ASSERT_EQ(view.num_groups, heads_[i].num_groups);
      for (int64_t key = 0; key < view.num_keys(); ++key) {
        ExpectKey(view, key, heads_[i].rows[key], shape_.padded_head_dim());
        if (::testing::Test::HasFatalFailure()) return;
      }
      if (bounded_ && codec_.k == DraftFormat::kF16) ExpectBounds(view);
      ExpectUnusedLanesZero(view, shape_.padded_head_dim());
      if (::testing::Test::HasFatalFailure()) return;
      bytes += BytesOf(heads_[i]);
    }
    ASSERT_EQ(draft->num_bytes(), bytes);
  }
  // Codes, two halves of scale and minimum per 32 coded values, and f16 rows.
  size_t BytesOf(const OracleHead& head) const {
    const size_t grouped = head.num_groups * 32, tail = head.rows.size() - grouped;
    size_t bytes = tail * shape_.head_dim * 4;
    for (const DraftFormat format : {codec_.k, codec_.v}) {
      const size_t values = grouped * shape_.head_dim;
      bytes += values * BitsOf(format) / 8;
      if (format != DraftFormat::kF16) bytes += values / 32 * 4;
    }
    if (bounded_ && codec_.k == DraftFormat::kF16) bytes += head.num_groups * shape_.head_dim * 4;
    return bytes;
  }

 private:
  F16Row RowOf(const FullKv& full, size_t head, int64_t pos) const {
    return ReadFullRow(full.Committed(static_cast<int>(head) / shape_.num_kv_heads),
                       static_cast<int>(head) % shape_.num_kv_heads, pos);
  }
  // The newest keys stay in f16; the others are folded by 32 as soon as 32 are older.
  void Fold(OracleHead* head) const {
    if (!codec_.has_codes() && !bounded_) return;
    while (static_cast<int64_t>(head->rows.size()) - head->num_groups * 32 >= codec_.tail_keys + 32)
      ++head->num_groups;
  }
  KvShape shape_;
  DraftCodec codec_;
  bool bounded_;
  int64_t provisional_ = 0;
  std::vector<OracleHead> heads_;
};

}  // namespace vericache
