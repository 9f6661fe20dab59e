#include "kv/kv_rows.h"

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kv/draft_kv.h"
#include "kv/draft_kv_oracle.h"

namespace vericache {
namespace {

constexpr KvShape kShape = {2, 3, 24};  // a head size that V is padded for

// Rows behind the wire make the same draft KV as rows at hand, from any position on.
TEST(KvRows, ADraftKvOfParsedRowsIsThatOfTheFullKv) {
  for (const KvShape& shape : {kShape, KvShape{2, 2, 32}}) {
    TestRandom random(7);
    ThreadPool pool(2);
    FullKv full(shape, &Judge());
    Grow(&full, 200, &random);
    for (const int64_t begin : {1, 63, 64, 100}) {
      DraftKv direct(shape, DraftCodec(), &Judge());
      DraftKv parsed(shape, DraftCodec(), &Judge());
      std::string bytes;
      ASSERT_TRUE(direct.CommitRows(full, 0, begin, &pool).ok());
      ASSERT_TRUE(parsed.CommitRows(full, 0, begin, &pool).ok());
      ASSERT_TRUE(direct.CommitRows(full, begin, 200, &pool).ok());
      ASSERT_TRUE(AppendRows(full, begin, 200, &bytes).ok());
      ASSERT_EQ(bytes.size(), (200 - begin) * shape.bytes_per_token());
      const absl::StatusOr<KvRows> rows = KvRows::Parse(shape, begin, bytes);
      ASSERT_TRUE(rows.ok()) << rows.status();
      EXPECT_EQ(rows->pos_begin(), begin);
      EXPECT_EQ(rows->pos_end(), 200);
      parsed.CommitRowsOf([&](int layer) { return rows->Layer(layer); }, begin, 200, &pool);
      std::string a, b;
      direct.AppendTo(&a);
      parsed.AppendTo(&b);
      EXPECT_TRUE(a == b) << "from " << begin;
    }
  }
}

TEST(KvRows, PartsOfARowAreRefused) {
  const std::string bytes(kShape.bytes_per_token() * 2 + 1, 'x');
  EXPECT_TRUE(absl::IsDataLoss(KvRows::Parse(kShape, 0, bytes).status()));
  EXPECT_TRUE(absl::IsDataLoss(
      KvRows::Parse(kShape, -1, bytes.substr(0, kShape.bytes_per_token())).status()));
  const absl::StatusOr<KvRows> none = KvRows::Parse(kShape, 70, "");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->pos_end(), 70);
}

}  // namespace
}  // namespace vericache
