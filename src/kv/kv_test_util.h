// What the tests of src/kv share: rows with known values, and slow readers of every layout, written
// from the comments of kernels/kv_view.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/float16.h"
#include "base/types.h"
#include "kernels/kernel_test_util.h"
#include "kernels/kernels.h"
#include "kv/full_kv.h"

namespace vericache {

// FullKv lets a class of this name commit rows. These tests do not link the engine's own.
class Prefill {
 public:
  static void Commit(FullKv* kv, int64_t num_rows) { kv->Commit(num_rows); }
};

// One row of one KV head, f16.
struct F16Row {
  std::vector<uint16_t> k, v;
  bool operator==(const F16Row& other) const { return k == other.k && v == other.v; }
};

inline F16Row ReadFullRow(const FullKvView& view, int kv_head, int64_t pos) {
  const int d = view.shape.head_dim;
  const uint16_t* k = view.Head(pos / 64, kv_head);  // [4 groups of 16 keys][head_dim][16]
  const uint16_t* v = k + 64 * d;                    // [padded_head_dim / 16][64][16]
  const int64_t slot = pos % 64;
  F16Row row;
  for (int c = 0; c < d; ++c) {
    row.k.push_back(k[((slot / 16) * d + c) * 16 + slot % 16]);
    row.v.push_back(v[((c / 16) * 64 + slot) * 16 + c % 16]);
  }
  return row;
}

// The fp32 rows of one Append call: [layer][rows][num_kv_heads][head_dim]. Channels differ in
// offset, as those of real keys do.
struct RowBatch {
  int64_t num_rows;
  std::vector<std::vector<float>> k, v;  // per layer

  RowBatch(const KvShape& shape, int64_t rows, TestRandom* random) : num_rows(rows) {
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      const size_t n = rows * shape.num_kv_heads * shape.head_dim;
      k.push_back(random->Floats(n, 3.0f));
      v.push_back(random->Floats(n, 0.5f));
      for (size_t i = 0; i < n; ++i) k[layer][i] += static_cast<float>(i % shape.head_dim % 5) * 4;
    }
  }
  F16Row Row(const KvShape& shape, int layer, int kv_head, int64_t row) const {
    F16Row out;
    const size_t at = (row * shape.num_kv_heads + kv_head) * shape.head_dim;
    for (int c = 0; c < shape.head_dim; ++c) {
      out.k.push_back(F32ToF16Saturated(k[layer][at + c]));
      out.v.push_back(F32ToF16Saturated(v[layer][at + c]));
    }
    return out;
  }
  void AppendTo(KvSource* kv) const {
    for (size_t layer = 0; layer < k.size(); ++layer)
      kv->Append(static_cast<int>(layer), k[layer].data(), v[layer].data(), num_rows);
  }
};

// Reserves, appends and commits `num_rows` random rows.
inline void Grow(FullKv* kv, int64_t num_rows, TestRandom* random) {
  if (num_rows == 0) return;
  ASSERT_TRUE(kv->Reserve(num_rows).ok());
  RowBatch(kv->shape(), num_rows, random).AppendTo(kv);
  Prefill::Commit(kv, num_rows);
}

}  // namespace vericache
