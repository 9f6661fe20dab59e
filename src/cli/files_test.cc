#include "cli/files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

namespace vericache::cli {
namespace {

namespace fs = std::filesystem;

class FilesTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/vericache_files_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ / name; }
  std::string Read(const std::string& name) const {
    return ReadWholeFile(Path(name), kPromptBytesMax).value_or("(unreadable)");
  }
  size_t NumEntries() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_;
};

TEST_F(FilesTest, WritesWholeFilesAndLeavesNothingBeside) {
  ASSERT_TRUE(WriteFileAtomic(Path("a"), "one").ok());
  ASSERT_TRUE(WriteFileAtomic(Path("a"), "two").ok());
  EXPECT_EQ(Read("a"), "two");
  EXPECT_EQ(NumEntries(), 1);
  EXPECT_FALSE(WriteFileAtomic(Path("none/a"), "x").ok());
  fs::create_directory(folder_ / "folder");
  EXPECT_FALSE(WriteFileAtomic(Path("folder"), "x").ok());
  EXPECT_EQ(NumEntries(), 2);
}

TEST_F(FilesTest, WritesThroughALinkAndIntoADevice) {
  ASSERT_TRUE(WriteFileAtomic(Path("a"), "one").ok());
  fs::create_symlink("a", folder_ / "link");
  ASSERT_TRUE(WriteFileAtomic(Path("link"), "two").ok());
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(Read("a"), "two");
  EXPECT_TRUE(WriteFileAtomic("/dev/null", "x").ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_EQ(WriteFileAtomic("/dev/full", "x").code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(FilesTest, ReadsUpToTheLimit) {
  ASSERT_TRUE(WriteFileAtomic(Path("a"), std::string(100000, 'x')).ok());
  EXPECT_EQ(ReadWholeFile(Path("a"), 100000)->size(), 100000);
  EXPECT_EQ(ReadWholeFile(Path("a"), 99999).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReadWholeFile(Path("b"), 10).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadWholeFile(folder_, 10).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FilesTest, ChecksBeforeTheWork) {
  EXPECT_TRUE(CheckWritable("--receipt", Path("new")).ok());
  EXPECT_TRUE(CheckWritable("--receipt", "/dev/null").ok());
  EXPECT_FALSE(CheckWritable("--receipt", Path("none/new")).ok());
  EXPECT_FALSE(CheckWritable("--receipt", folder_).ok());
  ASSERT_TRUE(WriteFileAtomic(Path("a"), "").ok());
  EXPECT_FALSE(CheckWritable("--receipt", Path("a/b")).ok());
  EXPECT_EQ(NumEntries(), 1) << "a check creates nothing";
}

}  // namespace
}  // namespace vericache::cli
