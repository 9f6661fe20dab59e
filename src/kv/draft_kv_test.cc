#include "kv/draft_kv.h"

#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kv/kv_test_util.h"

namespace vericache {
namespace {

constexpr DraftFormat kFormats[] = {DraftFormat::kF16, DraftFormat::kInt8, DraftFormat::kInt4};

// --- Slow readers, from the layout comments of kernels/kv_view.h -------------------------------

// [group][four][32 lanes][4], lanes in two halves of bytes or in the two nibbles of one.
int CodeAt(DraftFormat format, const uint8_t* data, int64_t four, int lane, int at) {
  if (format == DraftFormat::kInt8) return data[four * 128 + lane / 16 * 64 + lane % 16 * 4 + at];
  const int byte = data[four * 64 + lane % 16 * 4 + at];
  return lane < 16 ? byte & 15 : byte >> 4;
}
int KeyCode(const DraftHeadView& view, int64_t group, int key, int c) {
  return CodeAt(view.k_format, view.k_data, group * (view.head_dim / 4) + c / 4, key, c % 4);
}
int ValueCode(const DraftHeadView& view, int64_t group, int key, int c) {
  return CodeAt(view.v_format, view.v_data, group * (view.head_dim / 4) + c / 32 * 8 + key / 4,
                c % 32, key % 4);
}

// |x - decoded| of one quantised value is half a step, plus what rounding the minimum and the scale
// to f16 costs: half an ulp, relative for normal halves, absolute for denormal ones.
void ExpectDecodes(float x, int code, float scale, float min, int max_code) {
  const double decoded = static_cast<double>(min) + static_cast<double>(scale) * code;
  const double bound =
      0.5 * scale * (1 + 1e-6) + std::fabs(min) * 0x1p-11 + (max_code + 1) * 0x1p-25;
  ASSERT_NEAR(decoded, x, bound) << "scale " << scale << " min " << min << " code " << code;
}

void ExpectKey(const DraftHeadView& view, int64_t idx, const F16Row& row, int padded) {
  const int d = view.head_dim;
  const int max_code = view.k_format == DraftFormat::kInt8 ? 255 : 15;
  const int64_t t = idx - view.num_groups * 32;
  for (int c = 0; c < d; ++c) {
    if (t >= 0) {  // the tail is exact
      ASSERT_EQ(view.tail_k[(t / 16 * d + c) * 16 + t % 16], row.k[c]) << "key " << idx;
      ASSERT_EQ(view.tail_v[((t / 16 * (padded / 16) + c / 16) * 16 + t % 16) * 16 + c % 16],
                row.v[c])
          << "key " << idx;
      continue;
    }
    const int64_t group = idx / 32, key = idx % 32;
    ExpectDecodes(F16ToF32(row.k[c]), KeyCode(view, group, key, c),
                  F16ToF32(view.k_scale[group * d + c]), F16ToF32(view.k_min[group * d + c]),
                  max_code);
    const int64_t v_scale = group * d + c / 32 * 32 + key;
    ExpectDecodes(F16ToF32(row.v[c]), ValueCode(view, group, key, c),
                  F16ToF32(view.v_scale[v_scale]), F16ToF32(view.v_min[v_scale]), max_code);
  }
}

void ExpectUnusedLanesZero(const DraftHeadView& view, int padded) {
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
  Oracle(const KvShape& shape, DraftFormat codec)
      : shape_(shape), codec_(codec), heads_(shape.num_layers * shape.num_kv_heads) {}

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
      ExpectUnusedLanesZero(view, shape_.padded_head_dim());
      if (::testing::Test::HasFatalFailure()) return;
      bytes += BytesOf(heads_[i]);
    }
    ASSERT_EQ(draft->num_bytes(), bytes);
  }
  // Codes, two halves of scale and minimum per 32 values, and f16 rows.
  size_t BytesOf(const OracleHead& head) const {
    const size_t values = 2 * shape_.head_dim;  // K and V of one key
    const size_t quantised = head.num_groups * 32, tail = head.rows.size() - quantised;
    const size_t bits = codec_ == DraftFormat::kInt8 ? 8 : 4;
    return quantised * values * bits / 8 + quantised * values / 32 * 4 + tail * values * 2;
  }

 private:
  F16Row RowOf(const FullKv& full, size_t head, int64_t pos) const {
    return ReadFullRow(full.Committed(static_cast<int>(head) / shape_.num_kv_heads),
                       static_cast<int>(head) % shape_.num_kv_heads, pos);
  }
  // The newest 64 stay in f16; the others are folded by 32 as soon as 32 are older.
  void Fold(OracleHead* head) const {
    if (codec_ == DraftFormat::kF16) return;
    while (static_cast<int64_t>(head->rows.size()) - head->num_groups * 32 >= 96)
      ++head->num_groups;
  }
  KvShape shape_;
  DraftFormat codec_;
  int64_t provisional_ = 0;
  std::vector<OracleHead> heads_;
};

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

void RunRandomOperations(const KvShape& shape, DraftFormat codec, uint64_t seed) {
  TestRandom random(seed);
  ThreadPool pool(2);
  FullKv full(shape, &Judge());
  Grow(&full, 1 + random.Below(200), &random);
  auto draft = std::make_unique<DraftKv>(shape, codec, &Judge());
  Oracle oracle(shape, draft->codec());
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
      draft->CommitRows(full, begin, full.num_tokens(), &pool);
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
  for (DraftFormat codec : kFormats) {
    RunRandomOperations({2, 2, 32}, codec, 11 + static_cast<int>(codec));
    RunRandomOperations({1, 1, 64}, codec, 21 + static_cast<int>(codec));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(DraftKv, FallsBackToF16WhereGroupsDoNotFit) {
  for (int head_dim : {8, 16, 24, 40, 48, 80}) {
    const KvShape shape{1, 2, head_dim};
    EXPECT_EQ(DraftKv(shape, DraftFormat::kInt4, &Judge()).codec(), DraftFormat::kF16);
    EXPECT_EQ(DraftKv::LayoutBytes(shape, DraftFormat::kInt4, 200), 200u * 2 * 2 * head_dim * 2);
    RunRandomOperations(shape, DraftFormat::kInt8, head_dim);
  }
  EXPECT_EQ(DraftKv({1, 1, 96}, DraftFormat::kInt4, &Judge()).codec(), DraftFormat::kInt4);
}

TEST(DraftKv, LayoutBytesAreThoseOfAFreshDraft) {
  const KvShape shape{2, 3, 32};
  ThreadPool pool(1);
  TestRandom random(3);
  FullKv full(shape, &Judge());
  Grow(&full, 330, &random);
  for (DraftFormat codec : kFormats) {
    DraftKv draft(shape, codec, &Judge());
    for (int64_t n : {1, 15, 16, 63, 64, 65, 95, 96, 97, 127, 128, 160, 320, 330}) {
      draft.Rebuild(full, KeepFirst(shape, n), &pool);
      EXPECT_EQ(draft.num_bytes(), DraftKv::LayoutBytes(shape, codec, n)) << n;
      // The buffers themselves, where no tail lane is unused.
      if (n % 16 != 0) continue;
      std::string bytes;
      draft.AppendTo(&bytes);
      EXPECT_EQ(bytes.size(), 8 + 6 * 16 + draft.num_bytes()) << n;
    }
  }
  // 4-bit codes cost 5 bits a value with scale and minimum; the tail costs 16.
  const double full_bytes = static_cast<double>(shape.bytes_per_token()) * 100000;
  EXPECT_NEAR(DraftKv::LayoutBytes(shape, DraftFormat::kInt4, 100000) / full_bytes, 5.0 / 16, 1e-3);
  EXPECT_NEAR(DraftKv::LayoutBytes(shape, DraftFormat::kInt8, 100000) / full_bytes, 9.0 / 16, 1e-3);
}

TEST(DraftKv, CommitReplacesProvisionalRows) {
  const KvShape shape{2, 1, 32};
  ThreadPool pool(1);
  TestRandom random(4);
  FullKv full(shape, &Judge());
  Grow(&full, 50, &random);
  DraftKv draft(shape, DraftFormat::kInt8, &Judge());
  draft.Rebuild(full, KeepFirst(shape, 50), &pool);
  RowBatch bad(shape, 7, &random);
  for (auto& layer : bad.k) layer.assign(layer.size(), std::nanf(""));
  for (auto& layer : bad.v) layer.assign(layer.size(), 1e30f);
  bad.AppendTo(&draft);
  EXPECT_EQ(draft.Layer(0).draft[0].num_keys(), 57);
  Grow(&full, 2, &random);
  draft.CommitRows(full, 50, 52, &pool);
  Oracle oracle(shape, DraftFormat::kInt8);
  oracle.Rebuild(full, KeepFirst(shape, 52));
  oracle.ExpectSame(&draft, "the bad rows left nothing");
  EXPECT_DEATH(draft.CommitRows(full, 51, 52, &pool), "CHECK failed") << "rows twice";
}

// A pass over several layers may stop anywhere: each layer counts its own provisional rows.
TEST(DraftKv, RollsBackLayersThatGotMoreRowsThanOthers) {
  const KvShape shape{3, 1, 32};
  ThreadPool pool(1);
  TestRandom random(5);
  FullKv full(shape, &Judge());
  Grow(&full, 20, &random);
  DraftKv draft(shape, DraftFormat::kInt4, &Judge());
  draft.Rebuild(full, KeepFirst(shape, 20), &pool);
  const RowBatch batch(shape, 4, &random);
  draft.Append(0, batch.k[0].data(), batch.v[0].data(), 4);
  draft.Append(1, batch.k[1].data(), batch.v[1].data(), 2);
  draft.Rollback();
  Oracle oracle(shape, DraftFormat::kInt4);
  oracle.Rebuild(full, KeepFirst(shape, 20));
  oracle.ExpectSame(&draft, "rolled back");
}

TEST(DraftKv, CopiesAreIndependent) {
  const KvShape shape{1, 2, 32};
  ThreadPool pool(1);
  TestRandom random(6);
  FullKv full(shape, &Judge());
  Grow(&full, 150, &random);
  DraftKv draft(shape, DraftFormat::kInt4, &Judge());
  draft.Rebuild(full, KeepFirst(shape, 150), &pool);
  Oracle before(shape, DraftFormat::kInt4);
  before.Rebuild(full, KeepFirst(shape, 150));
  const RowBatch batch(shape, 5, &random);
  batch.AppendTo(&draft);
  DraftKv copy = draft.Copy();
  Grow(&full, 90, &random);
  draft.CommitRows(full, 150, 240, &pool);
  copy.Rollback();  // the copy took the provisional rows along
  EXPECT_EQ(copy.num_tokens(), 150);
  before.ExpectSame(&copy, "copy");
  DraftKv moved(std::move(copy));
  before.ExpectSame(&moved, "moved");
}

struct Saved {
  std::string bytes;
  KvShape shape{2, 1, 32};
  DraftFormat codec;
  FullKv full{KvShape{2, 1, 32}, &Judge()};
  Oracle oracle;

  explicit Saved(DraftFormat format) : codec(format), oracle(shape, format) {
    TestRandom random(static_cast<int>(format) + 40);
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
  for (DraftFormat codec : kFormats) {
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
    draft.CommitRows(saved.full, 150, 220, &pool);
    saved.oracle.Commit(saved.full, 150, 220);
    saved.oracle.ExpectSame(&draft, "continued");
  }
}

TEST(DraftKv, EveryTruncationIsDataLoss) {
  for (DraftFormat codec : kFormats) {
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
  for (DraftFormat codec : kFormats) {
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
  std::string bytes = Saved(DraftFormat::kF16).bytes;
  const int64_t one = 1;
  std::memcpy(bytes.data() + 8, &one, sizeof(one));
  bytes.append(100000, '\0');
  DraftKv draft({2, 1, 32}, DraftFormat::kF16, &Judge());
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
  for (DraftFormat codec : kFormats) {
    const double tolerance = codec == DraftFormat::kF16    ? 1e-4
                             : codec == DraftFormat::kInt8 ? 2e-3
                                                           : 2e-2;
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
