#include "kv/draft_kv.h"

#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kv/draft_kv_oracle.h"

namespace vericache {
namespace {

// Ragged: each head keeps its own share of positions, and the last one.
KeptSet RandomKept(const KvShape& shape, int64_t num_tokens, TestRandom* random) {
  KeptSet kept;
  for (int i = 0; i < shape.num_layers * shape.num_kv_heads; ++i) {
    const int64_t percent = 1 + random->Below(100);
    std::vector<int32_t> positions;
    for (int32_t pos = 0; pos + 1 < num_tokens; ++pos)
      if (random->Below(100) < percent) positions.push_back(pos);
    positions.push_back(static_cast<int32_t>(num_tokens - 1));
    kept.positions.push_back(std::move(positions));
  }
  return kept;
}

KeptSet KeepFirst(const KvShape& shape, int64_t n) {
  std::vector<int32_t> positions(n);
  std::iota(positions.begin(), positions.end(), 0);
  KeptSet kept;
  kept.positions.assign(shape.num_layers * shape.num_kv_heads, positions);
  return kept;
}

// --- Tests ---------------------------------------------------------------------------------------

void RunRandomOperations(const KvShape& shape, const DraftCodec& codec, uint64_t seed,
                         double fraction = 1.0) {
  TestRandom random(seed);
  ThreadPool pool(2);
  FullKv full(shape, &Judge());
  Grow(&full, 1 + random.Below(200), &random);
  auto draft = std::make_unique<DraftKv>(shape, codec, &Judge());
  draft->SetQueryTimeReads(fraction, 0);
  Oracle oracle(shape, draft->codec(0), fraction < 1);
  const KeptSet first = RandomKept(shape, full.num_tokens(), &random);
  draft->Rebuild(full, first, &pool);
  oracle.Rebuild(full, first);
  oracle.ExpectSame(draft.get(), "first");
  for (int step = 0; step < 40 && !::testing::Test::HasFatalFailure(); ++step) {
    const int64_t action = random.Below(12);
    std::string what = "step " + std::to_string(step) + " action " + std::to_string(action);
    if (action < 5) {
      const RowBatch batch(shape, 1 + random.Below(20), &random);
      batch.AppendTo(draft.get());
      oracle.Append(batch);
    } else if (action < 9) {
      const int64_t begin = full.num_tokens();
      Grow(&full, random.Below(50), &random);
      ASSERT_TRUE(draft->CommitRows(full, begin, full.num_tokens(), &pool).ok());
      oracle.Commit(full, begin, full.num_tokens());
    } else if (action == 9) {
      draft->Rollback();
      oracle.Rollback();
    } else if (action == 10) {
      const KeptSet kept = RandomKept(shape, full.num_tokens(), &random);
      draft->Rebuild(full, kept, &pool);
      oracle.Rebuild(full, kept);
    } else {  // the copy lives on, the original is changed
      auto copy = std::make_unique<DraftKv>(draft->Copy());
      RowBatch(shape, 3, &random).AppendTo(draft.get());
      draft->Rollback();
      draft = std::move(copy);
    }
    EXPECT_EQ(draft->num_tokens(), full.num_tokens());
    oracle.ExpectSame(draft.get(), what);
  }
}

TEST(DraftKv, HoldsWhatTheOracleHolds) {
  uint64_t seed = 11;
  for (const char* name : kCodecs) {
    SCOPED_TRACE(name);
    RunRandomOperations({2, 2, 32}, Codec(name), seed++);
    RunRandomOperations({1, 1, 64}, Codec(name), seed++);
    RunRandomOperations({1, 2, 32}, Codec(name), seed++, 0.3);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(DraftKv, FallsBackToF16WhereGroupsDoNotFit) {
  for (int head_dim : {8, 16, 24, 40, 48, 80}) {
    const KvShape shape{1, 2, head_dim};
    const DraftKv draft(shape, Codec("int4"), &Judge());
    EXPECT_TRUE(draft.falls_back());
    EXPECT_EQ(draft.codec(0), DraftCodec());
    EXPECT_FALSE(DraftKv(shape, DraftCodec(), &Judge()).falls_back());
    EXPECT_EQ(DraftKv::LayoutBytes(shape, Codec("int4"), 200), 200u * 2 * 2 * head_dim * 2);
    RunRandomOperations(shape, Codec("int8"), head_dim);
    RunRandomOperations(shape, Codec("int8"), head_dim, 0.5);
  }
  const DraftKv draft({1, 1, 96}, Codec("int4"), &Judge());
  EXPECT_FALSE(draft.falls_back());
  EXPECT_EQ(draft.codec(0), Codec("int4"));
}

TEST(DraftKv, LayoutBytesAreThoseOfAFreshDraft) {
  const KvShape shape{2, 3, 32};
  ThreadPool pool(1);
  TestRandom random(3);
  FullKv full(shape, &Judge());
  Grow(&full, 330, &random);
  for (const char* name : kCodecs) {
    const DraftCodec codec = Codec(name);
    DraftKv draft(shape, codec, &Judge());
    for (int64_t n : {1, 15, 16, 63, 64, 65, 95, 96, 97, 127, 128, 160, 320, 330}) {
      draft.Rebuild(full, KeepFirst(shape, n), &pool);
      EXPECT_EQ(draft.num_bytes(), DraftKv::LayoutBytes(shape, codec, n)) << name << " " << n;
      EXPECT_EQ(draft.read_bytes_per_step(), draft.num_bytes());
      // The buffers themselves, where no tail lane is unused.
      if (n % 16 != 0) continue;
      std::string bytes;
      draft.AppendTo(&bytes);
      EXPECT_EQ(bytes.size(), 8 + 6 * 16 + draft.num_bytes()) << n;
    }
  }
  // 4-bit codes cost 5 bits a value with scale and minimum; the tail costs 16.
  const double full_bytes = static_cast<double>(shape.bytes_per_token()) * 100000;
  EXPECT_NEAR(DraftKv::LayoutBytes(shape, Codec("int4"), 100000) / full_bytes, 5.0 / 16, 1e-3);
  EXPECT_NEAR(DraftKv::LayoutBytes(shape, Codec("int8"), 100000) / full_bytes, 9.0 / 16, 1e-3);
}

TEST(DraftKv, EveryLayerHasItsOwnCodec) {
  const KvShape shape{4, 2, 64};
  ThreadPool pool(2);
  TestRandom random(12);
  FullKv full(shape, &Judge());
  Grow(&full, 300, &random);
  const std::vector<DraftCodec> codecs = {Codec("f16"), Codec("k8v3"), Codec("kivi2"),
                                          Codec("int4")};
  DraftKv draft(shape, codecs, &Judge());
  draft.Rebuild(full, KeepFirst(shape, 300), &pool);
  size_t bytes = 0;
  for (int layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(draft.codec(layer), codecs[layer]);
    const KvShape one{1, 2, 64};
    bytes += DraftKv::LayoutBytes(one, codecs[layer], 300);
    const DraftHeadView view = draft.Layer(layer).draft[1];
    EXPECT_EQ(view.k_format, codecs[layer].k);
    EXPECT_EQ(view.v_format, codecs[layer].v);
    EXPECT_EQ(view.num_tail, layer == 0 ? 300 : layer == 2 ? 140 : 76);
    for (int64_t key = 0; key < 300; ++key)
      ExpectKey(view, key, ReadFullRow(full.Committed(layer), 1, key), 64);
  }
  EXPECT_EQ(draft.num_bytes(), bytes);
  EXPECT_EQ(DraftKv::LayoutBytes(shape, codecs, 300), bytes);
  std::string saved;
  draft.AppendTo(&saved);
  DraftKv read(shape, codecs, &Judge());
  std::string_view in = saved;
  ASSERT_TRUE(read.ReadFrom(&in).ok());
  std::string again;
  read.Copy().AppendTo(&again);
  EXPECT_EQ(again, saved);
}

// What a step reads: all bounds, the selected groups, the tail.
TEST(DraftKv, QueryTimeReadsAreCountedInBytes) {
  const KvShape shape{3, 2, 64};
  ThreadPool pool(1);
  TestRandom random(13);
  FullKv full(shape, &Judge());
  Grow(&full, 64 + 32 * 20 + 7, &random);  // 20 groups, a tail of 71
  for (const char* name : {"f16", "int4", "k16v4", "k2v16"}) {
    const DraftCodec codec = Codec(name);
    DraftKv draft(shape, codec, &Judge());
    draft.SetQueryTimeReads(0.33, 1);
    draft.Rebuild(full, KeepFirst(shape, full.num_tokens()), &pool);
    const size_t scales = 64 * 4, tail = 71 * 64 * 4;
    const size_t v_scales = codec.v == DraftFormat::kF16 ? 0 : scales;
    const size_t group = 64 * 4 * (BitsOf(codec.k) + BitsOf(codec.v)) + v_scales;
    const size_t whole = DraftKv::LayoutBytes({1, 2, 64}, codec, full.num_tokens());
    EXPECT_EQ(draft.num_bytes(), whole + 2 * 2 * (20 * (group + scales) + tail)) << name;
    EXPECT_EQ(draft.read_bytes_per_step(), whole + 2 * 2 * (7 * group + 20 * scales + tail))
        << name;
    EXPECT_EQ(DraftKv::LayoutBytes(shape, codec, full.num_tokens(), {0.33, 1}), draft.num_bytes());
    EXPECT_EQ(draft.Layer(0).draft[0].num_selected, 0);
    EXPECT_EQ(draft.Layer(1).draft[1].num_selected, 7);
    EXPECT_EQ(draft.Copy().read_bytes_per_step(), draft.read_bytes_per_step());
    EXPECT_DEATH(draft.SetQueryTimeReads(0.5, 0), "CHECK failed") << "not empty";
  }
  // Few groups are all read.
  const QueryTimeReads reads{0.1, 0};
  EXPECT_EQ(reads.NumSelected(0), 0);
  EXPECT_EQ(reads.NumSelected(2), 2);
  EXPECT_EQ(reads.NumSelected(5), 3);
  EXPECT_EQ(reads.NumSelected(31), 4);
}

TEST(DraftKv, CommitReplacesProvisionalRows) {
  const KvShape shape{2, 1, 32};
  ThreadPool pool(1);
  TestRandom random(4);
  FullKv full(shape, &Judge());
  Grow(&full, 50, &random);
  DraftKv draft(shape, Codec("int8"), &Judge());
  draft.Rebuild(full, KeepFirst(shape, 50), &pool);
  RowBatch bad(shape, 7, &random);
  for (auto& layer : bad.k) layer.assign(layer.size(), std::nanf(""));
  for (auto& layer : bad.v) layer.assign(layer.size(), 1e30f);
  bad.AppendTo(&draft);
  EXPECT_EQ(draft.Layer(0).draft[0].num_keys(), 57);
  Grow(&full, 2, &random);
  ASSERT_TRUE(draft.CommitRows(full, 50, 52, &pool).ok());
  Oracle oracle(shape, Codec("int8"));
  oracle.Rebuild(full, KeepFirst(shape, 52));
  oracle.ExpectSame(&draft, "the bad rows left nothing");
  EXPECT_DEATH((void)draft.CommitRows(full, 51, 52, &pool), "CHECK failed") << "rows twice";
}

// A pass over several layers may stop anywhere: each layer counts its own provisional rows.
TEST(DraftKv, RollsBackLayersThatGotMoreRowsThanOthers) {
  const KvShape shape{3, 1, 32};
  ThreadPool pool(1);
  TestRandom random(5);
  FullKv full(shape, &Judge());
  Grow(&full, 20, &random);
  DraftKv draft(shape, Codec("int4"), &Judge());
  draft.Rebuild(full, KeepFirst(shape, 20), &pool);
  const RowBatch batch(shape, 4, &random);
  draft.Append(0, batch.k[0].data(), batch.v[0].data(), 4);
  draft.Append(1, batch.k[1].data(), batch.v[1].data(), 2);
  draft.Rollback();
  Oracle oracle(shape, Codec("int4"));
  oracle.Rebuild(full, KeepFirst(shape, 20));
  oracle.ExpectSame(&draft, "rolled back");
}

// A part rolled back leaves what the rows that stay would have made alone: over the borders of tail
// groups, again and again, whatever the rows held.
TEST(DraftKv, RollsBackAPart) {
  const KvShape shape{2, 2, 32};
  ThreadPool pool(1);
  TestRandom random(6);
  for (const char* codec : {"f16", "int4"}) {
    FullKv full(shape, &Judge());
    Grow(&full, 90, &random);
    DraftKv draft(shape, Codec(codec), &Judge());
    draft.Rebuild(full, KeepFirst(shape, 90), &pool);
    DraftKv same = draft.Copy();
    for (const auto& [keep, drop] : {std::pair{1, 4}, {15, 1}, {2, 17}, {0, 5}, {33, 31}, {3, 0}}) {
      const RowBatch good(shape, keep, &random);
      RowBatch bad(shape, drop, &random);
      for (auto& layer : bad.v) layer.assign(layer.size(), std::nanf(""));
      good.AppendTo(&draft);
      bad.AppendTo(&draft);
      draft.Rollback(drop);
      good.AppendTo(&same);
      ASSERT_EQ(draft.num_bytes(), same.num_bytes());
      for (int layer = 0; layer < shape.num_layers; ++layer) {
        for (int h = 0; h < shape.num_kv_heads; ++h) {
          const DraftHeadView a = draft.Layer(layer).draft[h], b = same.Layer(layer).draft[h];
          ASSERT_EQ(a.num_tail, b.num_tail);
          const size_t keys = RoundUp(a.num_tail, kKvLanes);
          EXPECT_EQ(std::memcmp(a.tail_k, b.tail_k, keys * shape.head_dim * 2), 0);
          EXPECT_EQ(std::memcmp(a.tail_v, b.tail_v, keys * shape.padded_head_dim() * 2), 0);
        }
      }
    }
    EXPECT_DEATH(draft.Rollback(55), "CHECK failed") << "there are 54";
    draft.Rollback();
    Oracle oracle(shape, Codec(codec));
    oracle.Rebuild(full, KeepFirst(shape, 90));
    oracle.ExpectSame(&draft, "nothing is left");
  }
}

TEST(DraftKv, CopiesAreIndependent) {
  const KvShape shape{1, 2, 32};
  ThreadPool pool(1);
  TestRandom random(6);
  FullKv full(shape, &Judge());
  Grow(&full, 150, &random);
  DraftKv draft(shape, Codec("int4"), &Judge());
  draft.Rebuild(full, KeepFirst(shape, 150), &pool);
  Oracle before(shape, Codec("int4"));
  before.Rebuild(full, KeepFirst(shape, 150));
  const RowBatch batch(shape, 5, &random);
  batch.AppendTo(&draft);
  DraftKv copy = draft.Copy();
  Grow(&full, 90, &random);
  ASSERT_TRUE(draft.CommitRows(full, 150, 240, &pool).ok());
  copy.Rollback();  // the copy took the provisional rows along
  EXPECT_EQ(copy.num_tokens(), 150);
  before.ExpectSame(&copy, "copy");
  DraftKv moved(std::move(copy));
  before.ExpectSame(&moved, "moved");
}

struct Saved {
  std::string bytes;
  KvShape shape{2, 1, 32};
  DraftCodec codec;
  FullKv full{KvShape{2, 1, 32}, &Judge()};
  Oracle oracle;

  explicit Saved(const DraftCodec& draft_codec) : codec(draft_codec), oracle(shape, draft_codec) {
    TestRandom random(BitsOf(codec.k) + 40);
    ThreadPool pool(1);
    Grow(&full, 150, &random);
    DraftKv draft(shape, codec, &Judge());
    const KeptSet kept = RandomKept(shape, 150, &random);
    draft.Rebuild(full, kept, &pool);
    oracle.Rebuild(full, kept);
    draft.AppendTo(&bytes);
  }
};

TEST(DraftKv, RoundTripsThroughBytes) {
  for (const char* name : kCodecs) {
    const DraftCodec codec = Codec(name);
    Saved saved(codec);
    DraftKv draft(saved.shape, codec, &Judge());
    // Rows of a former life are gone.
    TestRandom random(1);
    RowBatch(saved.shape, 2, &random).AppendTo(&draft);
    const std::string bytes = saved.bytes + "rest";
    std::string_view in = bytes;
    ASSERT_TRUE(draft.ReadFrom(&in).ok());
    EXPECT_EQ(in, "rest");
    EXPECT_EQ(draft.num_tokens(), 150);
    saved.oracle.ExpectSame(&draft, "read back");
    draft.Rollback();
    saved.oracle.ExpectSame(&draft, "nothing of it is provisional");
    std::string again;
    draft.AppendTo(&again);
    EXPECT_EQ(again, saved.bytes);
    // It grows on like the original.
    ThreadPool pool(1);
    Grow(&saved.full, 70, &random);
    ASSERT_TRUE(draft.CommitRows(saved.full, 150, 220, &pool).ok());
    saved.oracle.Commit(saved.full, 150, 220);
    saved.oracle.ExpectSame(&draft, "continued");
  }
}

TEST(DraftKv, EveryTruncationIsDataLoss) {
  for (const char* name : kCodecs) {
    const DraftCodec codec = Codec(name);
    const Saved saved(codec);
    // Every length near a boundary of the format, and a stride over the raw buffers.
    for (size_t size = 0; size < saved.bytes.size(); size += size < 64 ? 1 : 7) {
      DraftKv draft(saved.shape, codec, &Judge());
      std::string_view in = std::string_view(saved.bytes).substr(0, size);
      ASSERT_EQ(draft.ReadFrom(&in).code(), absl::StatusCode::kDataLoss) << size;
    }
  }
}

TEST(DraftKv, HostileCountsAreDataLoss) {
  const int64_t hostile[] = {
      -1, INT64_MIN, INT64_MAX, int64_t{1} << 62, int64_t{1} << 40, (int64_t{1} << 59) + 1};
  for (const char* name : kCodecs) {
    const DraftCodec codec = Codec(name);
    const Saved saved(codec);
    for (size_t at : {size_t{0}, size_t{8}, size_t{16}}) {  // tokens, groups, tail of head 0
      for (int64_t value : hostile) {
        if (at == 0 && value == int64_t{1} << 40) continue;  // the documented limit
        std::string bytes = saved.bytes;
        std::memcpy(bytes.data() + at, &value, sizeof(value));
        DraftKv draft(saved.shape, codec, &Judge());
        std::string_view in = bytes;
        EXPECT_EQ(draft.ReadFrom(&in).code(), absl::StatusCode::kDataLoss) << at << " " << value;
      }
    }
  }
  // f16 drafts have no groups.
  std::string bytes = Saved(DraftCodec()).bytes;
  const int64_t one = 1;
  std::memcpy(bytes.data() + 8, &one, sizeof(one));
  bytes.append(100000, '\0');
  DraftKv draft({2, 1, 32}, Codec("f16"), &Judge());
  std::string_view in = bytes;
  EXPECT_EQ(draft.ReadFrom(&in).code(), absl::StatusCode::kDataLoss);
}

// What the drafter reads is what the layout says: attention over a draft is near the dense one.
TEST(DraftKv, FeedsTheDraftKernelOfEveryTable) {
  const KvShape shape{1, 1, 32};
  ThreadPool pool(1);
  TestRandom random(8);
  FullKv full(shape, &Judge());
  Grow(&full, 170, &random);
  const std::vector<float> q = random.Floats(32, 0.05f);
  std::vector<double> p(170), want(32, 0.0);
  double sum = 0;
  for (int64_t pos = 0; pos < 170; ++pos) {
    const F16Row row = ReadFullRow(full.Committed(0), 0, pos);
    double dot = 0;
    for (int c = 0; c < 32; ++c) dot += static_cast<double>(q[c]) * F16ToF32(row.k[c]);
    sum += p[pos] = std::exp(dot);
    for (int c = 0; c < 32; ++c) want[c] += p[pos] * F16ToF32(row.v[c]);
  }
  for (const char* name : kCodecs) {
    const DraftCodec codec = Codec(name);
    const int bits = std::min(BitsOf(codec.k), BitsOf(codec.v));
    const double tolerance = bits == 16 ? 1e-4 : 0.4 / (1 << bits);
    for (const KernelTable* table : AllKernelTables()) {
      DraftKv draft(shape, codec, table);
      draft.Rebuild(full, KeepFirst(shape, 170), &pool);
      const DraftHeadView view = draft.Layer(0).draft[0];
      std::vector<float> out(32);
      AlignedBuffer<float> scratch(DraftScratchFloats(1, view.num_keys(), 32));
      AlignedBuffer<float> aligned_q(32);
      std::copy(q.begin(), q.end(), aligned_q.data());
      table->attend_draft(view, aligned_q.data(), 1, out.data(), 32, scratch.data());
      for (int c = 0; c < 32; ++c) EXPECT_NEAR(out[c], want[c] / sum, tolerance) << table->name;
    }
  }
}

}  // namespace
}  // namespace vericache
