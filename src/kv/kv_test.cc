#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kv/full_kv.h"
#include "kv/kv_test_util.h"

namespace vericache {
namespace {

// Every row of every layer and head, in the order of the oracle's pointers.
using Rows = std::vector<std::vector<F16Row>>;  // [pos][layer * num_kv_heads + kv_head]

void PushRows(const KvShape& shape, const RowBatch& batch, int64_t count, Rows* rows) {
  for (int64_t i = 0; i < count; ++i) {
    std::vector<F16Row>& row = rows->emplace_back();
    for (int layer = 0; layer < shape.num_layers; ++layer)
      for (int h = 0; h < shape.num_kv_heads; ++h) row.push_back(batch.Row(shape, layer, h, i));
  }
}

void ExpectRows(const FullKv& kv, const Rows& rows, const char* what) {
  ASSERT_EQ(kv.num_tokens(), static_cast<int64_t>(rows.size())) << what;
  const KvShape& shape = kv.shape();
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    const FullKvView view = kv.Committed(layer);
    ASSERT_EQ(view.num_tokens, kv.num_tokens());
    for (int h = 0; h < shape.num_kv_heads; ++h)
      for (int64_t pos = 0; pos < kv.num_tokens(); ++pos)
        ASSERT_EQ(ReadFullRow(view, h, pos), rows[pos][layer * shape.num_kv_heads + h])
            << what << ": layer " << layer << " head " << h << " pos " << pos;
  }
}

TEST(FullKv, LaysRowsOutAsTheViewSays) {
  // 24 channels: V is padded to 32.
  for (int head_dim : {16, 24, 32}) {
    const KvShape shape{2, 3, head_dim};
    FullKv kv(shape, &Judge());
    TestRandom random(head_dim);
    Rows rows;
    for (int64_t n : {1, 15, 17, 31, 64, 3, 65}) {
      ASSERT_TRUE(kv.Reserve(n).ok());
      const RowBatch batch(shape, n, &random);
      batch.AppendTo(&kv);
      Prefill::Commit(&kv, n);
      PushRows(shape, batch, n, &rows);
    }
    ExpectRows(kv, rows, "after all");
    EXPECT_EQ(kv.num_blocks(), CeilDiv(kv.num_tokens(), 64));
    EXPECT_EQ(kv.num_bytes(), rows.size() * 2 * 3 * 2 * head_dim * 2);
    EXPECT_EQ(kv.block_bytes(), 2 * 3 * 64u * (head_dim + RoundUp(head_dim, 16)) * 2);
    for (int h = 0; h < 3; ++h)  // padding channels hold zeros
      for (int c = head_dim; c < RoundUp(head_dim, 16); ++c)
        for (int64_t slot = 0; slot < 64; ++slot)
          ASSERT_EQ(kv.Committed(1).Head(0, h)[64 * head_dim + (c / 16 * 64 + slot) * 16 + c % 16],
                    0);
  }
}

TEST(FullKv, SaturatesAndKeepsNan) {
  const KvShape shape{1, 1, 16};
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> values = {1e30f, -1e30f, inf,   -inf,  65504, 65519, 65520, -70000,
                               nan,   0,      -0.0f, 1e-8f, 1,     2049,  2051,  3e-8f};
  for (const KernelTable* table : AllKernelTables()) {
    FullKv kv(shape, table);
    ASSERT_TRUE(kv.Reserve(1).ok());
    kv.Append(0, values.data(), values.data(), 1);
    Prefill::Commit(&kv, 1);
    const F16Row row = ReadFullRow(kv.Committed(0), 0, 0);
    for (int c = 0; c < 16; ++c) {
      const float k = F16ToF32(row.k[c]);
      EXPECT_EQ(row.k[c], row.v[c]);
      if (std::isnan(values[c])) {
        EXPECT_TRUE(std::isnan(k));
      } else {
        EXPECT_EQ(row.k[c], F32ToF16Saturated(values[c])) << values[c];
        EXPECT_LE(std::fabs(k), 65504) << "no infinity is ever stored";
      }
    }
    EXPECT_EQ(F16ToF32(row.k[0]), 65504);
    EXPECT_EQ(F16ToF32(row.k[3]), -65504);
    EXPECT_EQ(F16ToF32(row.k[13]), 2048) << "half to even";
    EXPECT_EQ(F16ToF32(row.k[14]), 2052) << "half to even";
  }
}

TEST(FullKv, ProvisionalRowsShowInThePassOnly) {
  const KvShape shape{2, 1, 16};
  FullKv kv(shape, &Judge());
  TestRandom random(5);
  Grow(&kv, 60, &random);
  ASSERT_TRUE(kv.Reserve(10).ok());
  const RowBatch first(shape, 10, &random);
  first.AppendTo(&kv);
  EXPECT_EQ(kv.num_tokens(), 60);
  EXPECT_EQ(kv.Committed(0).num_tokens, 60);
  const KvView view = kv.Layer(1);
  EXPECT_EQ(view.kind, KvView::Kind::kFull);
  EXPECT_EQ(view.full.num_tokens, 70);
  for (int64_t i = 0; i < 10; ++i)
    EXPECT_EQ(ReadFullRow(view.full, 0, 60 + i), first.Row(shape, 1, 0, i));
  const FullKv fork = kv.Fork();
  EXPECT_EQ(fork.num_tokens(), 60) << "a fork has committed rows only";
  Prefill::Commit(&kv, 3);
  EXPECT_EQ(kv.num_tokens(), 63);
  EXPECT_EQ(kv.Layer(0).full.num_tokens, 63);
  // The rest is forgotten and overwritten.
  ASSERT_TRUE(kv.Reserve(2).ok());
  const RowBatch second(shape, 2, &random);
  second.AppendTo(&kv);
  Prefill::Commit(&kv, 2);
  EXPECT_EQ(ReadFullRow(kv.Committed(0), 0, 62), first.Row(shape, 0, 0, 2));
  EXPECT_EQ(ReadFullRow(kv.Committed(0), 0, 63), second.Row(shape, 0, 0, 0));
  EXPECT_EQ(ReadFullRow(kv.Committed(0), 0, 64), second.Row(shape, 0, 0, 1));
  EXPECT_DEATH(Prefill::Commit(&kv, 1), "CHECK failed") << "nothing was appended";
  EXPECT_DEATH((void)kv.Fork(66), "CHECK failed");
}

TEST(FullKv, ForkSharesWholeBlocksAndCopiesTheOpenOne) {
  const KvShape shape{1, 2, 16};
  FullKv kv(shape, &Judge());
  TestRandom random(6);
  Grow(&kv, 200, &random);
  FullKv fork = kv.Fork(140);
  EXPECT_EQ(fork.num_tokens(), 140);
  EXPECT_EQ(fork.num_blocks(), 3);
  for (int block = 0; block < 3; ++block) EXPECT_EQ(fork.block(block), kv.block(block));
  const uint16_t* shared = kv.block(2);
  ASSERT_TRUE(fork.Reserve(1).ok());
  EXPECT_EQ(fork.block(1), kv.block(1)) << "whole blocks stay shared";
  EXPECT_NE(fork.block(2), kv.block(2)) << "the open one is copied before it is written";
  EXPECT_EQ(kv.block(2), shared) << "the other side keeps its own";
  EXPECT_EQ(fork.Committed(0).blocks[2], fork.block(2)) << "views follow";
  ASSERT_TRUE(fork.Reserve(30).ok());
  const uint16_t* own = fork.block(2);
  ASSERT_TRUE(fork.Reserve(40).ok());
  EXPECT_EQ(fork.block(2), own) << "copied once";
  FullKv at_boundary = kv.Fork(128);
  EXPECT_EQ(at_boundary.num_blocks(), 2);
  ASSERT_TRUE(at_boundary.Reserve(1).ok());
  EXPECT_EQ(at_boundary.block(1), kv.block(1)) << "nothing is open: nothing is copied";
  EXPECT_EQ(kv.Fork(0).num_blocks(), 0);
}

// Any interleaving of appends, partial commits and forks leaves each sequence with its own rows.
TEST(FullKv, SequencesNeverSeeEachOthersRows) {
  const KvShape shape{2, 1, 8};
  TestRandom random(7);
  struct Pair {
    std::unique_ptr<FullKv> kv;
    Rows rows;
  };
  std::vector<Pair> all;
  all.push_back({std::make_unique<FullKv>(shape, &Judge()), {}});
  for (int step = 0; step < 150; ++step) {
    const size_t at = random.Below(all.size());
    Pair& pair = all[at];
    const int64_t action = random.Below(5);
    if (action <= 2) {
      const int64_t n = 1 + random.Below(40), keep = random.Below(n + 1);
      ASSERT_TRUE(pair.kv->Reserve(n).ok());
      const RowBatch batch(shape, n, &random);
      batch.AppendTo(pair.kv.get());
      Prefill::Commit(pair.kv.get(), keep);
      PushRows(shape, batch, keep, &pair.rows);
    } else if (action == 3 && all.size() < 6) {
      const int64_t n = random.Below(pair.kv->num_tokens() + 1);
      Pair fork{std::make_unique<FullKv>(pair.kv->Fork(n)), {}};
      fork.rows.assign(pair.rows.begin(), pair.rows.begin() + n);
      all.push_back(std::move(fork));
    } else if (all.size() > 1) {
      all.erase(all.begin() + at);
    }
    for (const Pair& p : all) ExpectRows(*p.kv, p.rows, "random");
  }
}

TEST(FullKv, LoadsSavedBlocks) {
  const KvShape shape{2, 2, 16};
  FullKv kv(shape, &Judge());
  TestRandom random(8);
  Grow(&kv, 100, &random);
  FullKv loaded(shape, &Judge());
  ASSERT_TRUE(loaded.ResizeForLoad(100).ok());
  ASSERT_EQ(loaded.num_blocks(), 2);
  for (int64_t block = 0; block < 2; ++block)
    std::memcpy(loaded.mutable_block(block), kv.block(block), kv.block_bytes());
  EXPECT_EQ(loaded.num_tokens(), 100);
  for (int layer = 0; layer < 2; ++layer)
    for (int64_t pos = 0; pos < 100; ++pos)
      ASSERT_EQ(ReadFullRow(loaded.Committed(layer), 1, pos),
                ReadFullRow(kv.Committed(layer), 1, pos));
  Grow(&loaded, 30, &random);
  EXPECT_EQ(loaded.num_tokens(), 130);
}

TEST(FullKv, MovesWithItsBlocks) {
  const KvShape shape{1, 1, 16};
  FullKv kv(shape, &Judge());
  TestRandom random(9);
  Grow(&kv, 70, &random);
  const F16Row last = ReadFullRow(kv.Committed(0), 0, 69);
  FullKv moved(std::move(kv));
  EXPECT_EQ(moved.num_tokens(), 70);
  EXPECT_EQ(ReadFullRow(moved.Committed(0), 0, 69), last);
  Grow(&moved, 1, &random);
  EXPECT_EQ(ReadFullRow(moved.Committed(0), 0, 69), last);
}

}  // namespace
}  // namespace vericache
