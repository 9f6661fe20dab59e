#include "gguf/writer.h"

#include "gguf/test_util.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

// The bytes by hand, so that reader and writer cannot agree on a wrong layout.
TEST(Writer, LaysOutBytesAsTheFormatSays) {
  GgufWriter writer;
  writer.AddUint32("k", 7);
  writer.AddStrings("s", {"ab", ""});
  writer.AddTensor("t", TensorType::kF32, {2, 1}, "01234567");
  std::string expected = "GGUF" + Le<uint32_t>(3) + Le<uint64_t>(1) + Le<uint64_t>(2);
  expected += Le<uint64_t>(1) + "k" + Le<uint32_t>(4) + Le<uint32_t>(7);
  expected += Le<uint64_t>(1) + "s" + Le<uint32_t>(9) + Le<uint32_t>(8) + Le<uint64_t>(2) +
              Le<uint64_t>(2) + "ab" + Le<uint64_t>(0);
  expected += Le<uint64_t>(1) + "t" + Le<uint32_t>(2) + Le<uint64_t>(2) + Le<uint64_t>(1) +
              Le<uint32_t>(0) + Le<uint64_t>(0);
  expected.resize((expected.size() + 31) / 32 * 32);
  expected += "01234567";
  EXPECT_EQ(writer.ToBytes(), expected);
}

TEST(Writer, ReportsPathsItCannotWrite) {
  const TempDir dir;
  EXPECT_EQ(GgufWriter().WriteFile(dir.path() + "/absent/m.gguf").code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(GgufWriter().WriteFile(dir.path()).ok());
}

TEST(Writer, ReportsFullDisk) {
  EXPECT_EQ(SmallModel().WriteFile("/dev/full").code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace vericache
