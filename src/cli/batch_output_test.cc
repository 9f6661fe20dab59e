#include "cli/batch_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "cli/files.h"

namespace vericache::cli {
namespace {

class BatchOutputTest : public testing::Test {
 protected:
  BatchOutputTest() : path_(testing::TempDir() + "/batch_output." + std::to_string(getpid())) {}
  ~BatchOutputTest() override {
    unlink(path_.c_str());
    unlink(side().c_str());
  }
  std::string side() const { return path_ + ".part"; }
  std::unique_ptr<BatchOutput> Open() {
    auto output = BatchOutput::Open(path_);
    EXPECT_TRUE(output.ok()) << output.status();
    return *std::move(output);
  }
  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  const std::string path_;
};

TEST_F(BatchOutputTest, LinesArriveAtOnceAndTheFileAtTheEnd) {
  {
    const auto output = Open();
    EXPECT_EQ(*output->ReadOld(), "");
    ASSERT_TRUE(output->Append("one").ok());
    ASSERT_TRUE(output->Append("two").ok());
    EXPECT_EQ(*ReadWholeFile(side(), 100), "one\ntwo\n");
    EXPECT_FALSE(FileExists(path_));
  }
  {
    const auto output = Open();
    EXPECT_EQ(*output->ReadOld(), "one\ntwo\n");
    ASSERT_TRUE(output->Finish("two\none\n").ok());
  }
  EXPECT_EQ(*ReadWholeFile(path_, 100), "two\none\n");
  EXPECT_FALSE(FileExists(side()));
}

TEST_F(BatchOutputTest, ACutLineDoesNotSwallowTheNext) {
  Write(path_, "a\nb");
  Write(side(), "c\nd");
  const auto output = Open();
  EXPECT_EQ(*output->ReadOld(), "a\nb\nc\nd");
  ASSERT_TRUE(output->Append("e").ok());
  ASSERT_TRUE(output->Append("f").ok());
  EXPECT_EQ(*ReadWholeFile(side(), 100), "c\nd\ne\nf\n");
}

TEST_F(BatchOutputTest, OneWriterAtATime) {
  {
    const auto output = Open();
    const auto second = BatchOutput::Open(path_);
    EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr("another"));
    ASSERT_TRUE(output->Append("one").ok());  // still ours
  }
  EXPECT_EQ(*Open()->ReadOld(), "one\n");
}

TEST_F(BatchOutputTest, AnEmptySideFileGoesAway) {
  Open();
  EXPECT_FALSE(FileExists(side()));
}

TEST_F(BatchOutputTest, ALinkIsNotFollowed) {
  Write(path_ + ".victim", "");
  ASSERT_EQ(symlink((path_ + ".victim").c_str(), side().c_str()), 0);
  EXPECT_FALSE(BatchOutput::Open(path_).ok());
  unlink((path_ + ".victim").c_str());
}

}  // namespace
}  // namespace vericache::cli
