#include "kv/codecs/row_codec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/float16.h"
#include "gtest/gtest.h"
#include "kernels/kernel_test_util.h"

namespace vericache {
namespace {

// Head sizes of whole groups, of a part of one, and with a part behind whole ones.
constexpr KvShape kShapes[] = {{2, 3, 24}, {2, 2, 32}, {1, 2, 64}, {3, 1, 80}, {1, 1, 5}};

using Rows = std::vector<uint16_t>;  // [rows][layers * KV heads][K, V][head_dim] f16

std::string BytesOf(const Rows& rows) {
  return {reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(uint16_t)};
}
Rows RowsOf(const std::string& bytes) {
  Rows rows(bytes.size() / sizeof(uint16_t));
  std::memcpy(rows.data(), bytes.data(), bytes.size());
  return rows;
}
// Keys have a large offset in some channels, as real ones do.
Rows SomeRows(const KvShape& shape, int64_t num_rows, TestRandom* random) {
  const int64_t count = num_rows * static_cast<int64_t>(shape.bytes_per_token()) / 2;
  const std::vector<float> noise = random->Floats(count, 2.0f);
  Rows rows(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t channel = i % shape.head_dim;
    const bool key = i / shape.head_dim % 2 == 0;
    rows[i] = F32ToF16(noise[i] + (key && channel % 7 == 3 ? 150.0f : 0.0f));
  }
  return rows;
}

// --- The slow, obvious codec: from the comment of row_codec.h, one vector at a time
// ---------------

struct SlowGroup {
  int scale = 0, zero = 0;
  std::vector<int> codes;
};

SlowGroup SlowEncode(const std::vector<float>& x, int bits) {
  const float low = std::min(0.0f, *std::min_element(x.begin(), x.end()));
  const float high = std::max(0.0f, *std::max_element(x.begin(), x.end()));
  const float last = static_cast<float>((1 << bits) - 1);
  SlowGroup group;
  // The least scale of three bits behind the leading one that is not below the f16 step.
  const uint16_t step = F32ToF16((high - low) / last);
  while (group.scale * 128 < step) ++group.scale;
  const float scale = F16ToF32(static_cast<uint16_t>(group.scale * 128));
  if (scale > 0) group.zero = static_cast<int>(std::min(std::rint(-low / scale), last));
  for (const float value : x) {
    float code = static_cast<float>(group.zero);
    if (scale > 0) code += std::rint(value / scale);
    group.codes.push_back(static_cast<int>(std::min(std::max(code, 0.0f), last)));
  }
  return group;
}

void SlowWrite(const SlowGroup& group, int bits, std::string* out) {
  out->push_back(static_cast<char>(group.scale));
  out->push_back(static_cast<char>(group.zero));
  std::vector<int> stream;
  for (const int code : group.codes)
    for (int b = 0; b < bits; ++b) stream.push_back(code >> b & 1);
  while (stream.size() % 8 != 0) stream.push_back(0);
  for (size_t at = 0; at < stream.size(); at += 8) {
    int byte = 0;
    for (int b = 0; b < 8; ++b) byte |= stream[at + b] << b;
    out->push_back(static_cast<char>(byte));
  }
}

// Appends the vector's bytes to *out and gives what they say.
std::vector<float> SlowVector(const std::vector<float>& x, int bits, std::string* out) {
  std::vector<float> said;
  for (size_t at = 0; at < x.size(); at += 32) {
    const SlowGroup group =
        SlowEncode({x.begin() + at, x.begin() + std::min(at + 32, x.size())}, bits);
    SlowWrite(group, bits, out);
    const float scale = F16ToF32(static_cast<uint16_t>(group.scale * 128));
    for (const int code : group.codes) said.push_back(scale * (code - group.zero));
  }
  return said;
}

struct SlowLot {
  std::string packed;
  Rows said;
};

SlowLot SlowPackLot(const KvShape& shape, const Rows& rows) {
  const int lists = shape.num_layers * shape.num_kv_heads, dim = shape.head_dim;
  const int64_t num_rows = std::ssize(rows) / (int64_t{lists} * 2 * dim);
  const auto at = [&](int64_t row, int list, int kv, int c) {
    const float x = F16ToF32(rows[((row * lists + list) * 2 + kv) * dim + c]);
    return std::isfinite(x) ? x : 0.0f;
  };
  SlowLot lot;
  std::vector<std::vector<float>> base;
  for (int list = 0; list < lists && num_rows > 0; ++list) {
    std::vector<float> middle;
    for (int c = 0; c < dim; ++c) {
      std::vector<float> column;
      for (int64_t row = 0; row < num_rows; ++row) column.push_back(at(row, list, 0, c));
      const auto [low, high] = std::minmax_element(column.begin(), column.end());
      middle.push_back((*low + *high) / 2);
    }
    base.push_back(SlowVector(middle, 8, &lot.packed));
  }
  for (int64_t row = 0; row < num_rows; ++row)
    for (int list = 0; list < lists; ++list)
      for (int kv = 0; kv < 2; ++kv) {
        std::vector<float> x;
        for (int c = 0; c < dim; ++c) x.push_back(at(row, list, kv, c) - (kv == 0) * base[list][c]);
        const std::vector<float> said = SlowVector(x, 4, &lot.packed);
        for (int c = 0; c < dim; ++c)
          lot.said.push_back(F32ToF16Saturated(said[c] + (kv == 0 ? base[list][c] : 0.0f)));
      }
  return lot;
}

SlowLot SlowPack(const KvShape& shape, const Rows& rows) {
  SlowLot all;
  const size_t lot_values = 64 * shape.bytes_per_token() / 2;
  for (size_t at = 0; at < rows.size(); at += lot_values) {
    const auto end = rows.begin() + std::min(at + lot_values, rows.size());
    const SlowLot lot = SlowPackLot(shape, {rows.begin() + at, end});
    all.packed += lot.packed;
    all.said.insert(all.said.end(), lot.said.begin(), lot.said.end());
  }
  return all;
}

// ---------------------------------------------------------------------------------------------

TEST(RowCodec, IsTheSlowOneBitForBit) {
  TestRandom random(3);
  for (const KvShape& shape : kShapes)
    for (const int64_t num_rows : {0, 1, 2, 7, 63, 64, 65, 150}) {
      Rows rows = SomeRows(shape, num_rows, &random);
      // Bits as they come: NaNs, infinities, denormals.
      if (num_rows == 7)
        for (size_t i = 0; i < rows.size(); i += 5) rows[i] = static_cast<uint16_t>(random.Next());
      const SlowLot slow = SlowPack(shape, rows);
      const std::string packed = PackRows(shape, BytesOf(rows));
      EXPECT_EQ(std::ssize(packed), PackedRowsBytes(shape, num_rows));
      ASSERT_TRUE(packed == slow.packed) << shape.head_dim << " channels, " << num_rows << " rows";
      const absl::StatusOr<std::string> unpacked = UnpackRows(shape, num_rows, packed);
      ASSERT_TRUE(unpacked.ok()) << unpacked.status();
      EXPECT_TRUE(RowsOf(*unpacked) == slow.said) << shape.head_dim << ", " << num_rows;
    }
}

// What is large in every row of a channel costs the channels beside it nothing.
TEST(RowCodec, ErrorsAreAShareOfWhatRowsDifferBy) {
  TestRandom random(5);
  const KvShape shape = {2, 2, 64};
  const Rows rows = SomeRows(shape, 20, &random);
  const Rows back = RowsOf(*UnpackRows(shape, 20, PackRows(shape, BytesOf(rows))));
  ASSERT_EQ(back.size(), rows.size());
  double squares = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double error = F16ToF32(back[i]) - F16ToF32(rows[i]);
    // Noise within 2 of 0, beyond a base that is off by half a step of 170 / 255 at most: a step of
    // the codes is below 0.4, rounded up by an eighth at most.
    EXPECT_LE(std::fabs(error), 0.4) << i;
    squares += error * error;
  }
  EXPECT_LT(std::sqrt(squares / static_cast<double>(rows.size())), 0.15);
  EXPECT_LT(PackedRowsBytes(shape, 20), 0.3 * static_cast<double>(rows.size() * 2));
}

TEST(RowCodec, LotsStandForThemselves) {
  TestRandom random(9);
  const KvShape shape = {1, 2, 32};
  const Rows rows = SomeRows(shape, 100, &random);
  const std::string bytes = BytesOf(rows), packed = PackRows(shape, bytes);
  const size_t cut = 64 * shape.bytes_per_token();
  EXPECT_EQ(packed, PackRows(shape, bytes.substr(0, cut)) + PackRows(shape, bytes.substr(cut)));
}

TEST(RowCodec, NumbersAtTheEdges) {
  const KvShape shape = {1, 1, 32};
  for (const float x : {0.0f, 65504.0f, -65504.0f, 1.0f, 6e-8f}) {
    for (const int64_t num_rows : {1, 3}) {
      const Rows rows(num_rows * 64, F32ToF16(x));
      const Rows back = RowsOf(*UnpackRows(shape, 9, PackRows(shape, BytesOf(rows))));
      for (const uint16_t bits : back)
        EXPECT_NEAR(F16ToF32(bits), x, std::fabs(x) * 0.05 + 1e-6) << x;
    }
  }
  Rows wide(128);
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = F32ToF16(i % 3 == 0 ? 65504.0f : -65504.0f);
  wide[5] = 0x7e00;  // NaN
  wide[6] = 0xfc00;  // -inf
  for (const uint16_t bits : RowsOf(*UnpackRows(shape, 2, PackRows(shape, BytesOf(wide)))))
    EXPECT_TRUE(std::isfinite(F16ToF32(bits)));
}

TEST(RowCodec, EveryScaleIsChecked) {
  TestRandom random(13);
  const KvShape shape = {2, 1, 32};  // one group a vector: 34 bytes of a base, 18 of a row
  const std::string good = PackRows(shape, BytesOf(SomeRows(shape, 3, &random)));
  ASSERT_EQ(good.size(), 2 * 34 + 3 * 2 * 2 * 18u);
  for (size_t at = 0; at < good.size(); at += at < 68 ? 34 : 18) {
    for (const char scale : {'\xf8', '\xff'}) {
      std::string bad = good;
      bad[at] = scale;
      EXPECT_TRUE(absl::IsDataLoss(UnpackRows(shape, 3, bad).status())) << at;
    }
  }
}

TEST(RowCodec, WhatIsNoLotIsRefusedOrGivesNumbers) {
  TestRandom random(11);
  for (const KvShape& shape : kShapes) {
    const std::string good = PackRows(shape, BytesOf(SomeRows(shape, 4, &random)));
    EXPECT_TRUE(UnpackRows(shape, 4, good).ok());
    EXPECT_TRUE(absl::IsDataLoss(UnpackRows(shape, 3, good).status()));
    for (size_t size = 1; size <= good.size() + 3; ++size) {
      const std::string cut =
          size < good.size() ? good.substr(0, size) : good + std::string(size - good.size(), 'x');
      int64_t whole = 1;
      while (PackedRowsBytes(shape, whole) < static_cast<int64_t>(size)) ++whole;
      const bool fits = PackedRowsBytes(shape, whole) == static_cast<int64_t>(size);
      EXPECT_EQ(UnpackRows(shape, 4, cut).ok(), fits) << size;
    }
    for (int i = 0; i < 200; ++i) {
      std::string bad = good;
      for (int n = 0; n < 5; ++n)
        bad[random.Next() % bad.size()] = static_cast<char>(random.Next());
      const absl::StatusOr<std::string> rows = UnpackRows(shape, 4, bad);
      if (!rows.ok()) continue;
      for (const uint16_t bits : RowsOf(*rows)) ASSERT_TRUE(std::isfinite(F16ToF32(bits)));
    }
  }
}

}  // namespace
}  // namespace vericache
