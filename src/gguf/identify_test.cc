// Shared case 68: what the "model" is instead of a GGUF, and what to do about it.
#include "gguf/identify.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "gguf/reader.h"
#include "gguf/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Opens a file of these bytes; the message must be one line that begins with the path.
std::string MessageFor(const std::string& bytes) {
  const TempDir dir;
  const std::string path = dir.Write("model.gguf", bytes);
  const auto file = GgufFile::Open(path);
  EXPECT_FALSE(file.ok());
  if (file.ok()) return "";
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(file.status().message());
  EXPECT_THAT(message, AllOf(StartsWith(path + " is "), Not(HasSubstr("\n"))));
  return message.substr(std::min(message.size(), path.size() + 1));
}

TEST(NotAModel, HtmlPage) {
  for (const char* page : {"<!DOCTYPE html>\n<html><body>Sign in</body></html>",
                           "\xef\xbb\xbf  \n<HTML lang=\"en\">", "<head><title>404</title>"}) {
    EXPECT_THAT(MessageFor(page), AllOf(StartsWith("is an HTML page, not a GGUF model"),
                                        HasSubstr("download the file from its direct link")));
  }
}

TEST(NotAModel, GitLfsPointer) {
  const std::string message = MessageFor(
      "version https://git-lfs.github.com/spec/v1\n"
      "oid sha256:1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32\n"
      "size 491400064\n");
  EXPECT_THAT(message, AllOf(StartsWith("is a Git LFS pointer to a file of 491400064 bytes"),
                             HasSubstr("git lfs pull")));
  EXPECT_THAT(MessageFor("version https://git-lfs.github.com/spec/v1\n"),
              StartsWith("is a Git LFS pointer, not"));
}

TEST(NotAModel, EmptyFile) {
  EXPECT_EQ(MessageFor(""), "is empty (0 bytes): download or copy it again");
}

TEST(NotAModel, Archives) {
  EXPECT_THAT(MessageFor(std::string("PK\x03\x04\x14\0\0\0", 8)),
              AllOf(StartsWith("is a zip archive"), HasSubstr("unpack it")));
  EXPECT_THAT(MessageFor("\x1f\x8b\x08zzzzzzz"), StartsWith("is a gzip archive"));
  EXPECT_THAT(MessageFor("\x28\xb5\x2f\xfdzzzz"), StartsWith("is a zstd archive"));
  EXPECT_THAT(MessageFor("\xfd"
                         "7zXZzzz"),
              StartsWith("is an xz archive"));
  EXPECT_THAT(MessageFor("model.gguf" + std::string(247, '\0') + "ustar  "),
              StartsWith("is a tar archive"));
}

TEST(NotAModel, OtherModelFormats) {
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  EXPECT_THAT(MessageFor(Le<uint64_t>(header.size()) + header + "abcd"),
              AllOf(StartsWith("is a safetensors file"), HasSubstr("convert_hf_to_gguf.py")));
  EXPECT_THAT(MessageFor("\x80\x02}q."), StartsWith("is a Python pickle"));
  EXPECT_THAT(MessageFor("tjgg\x03zzzzzz"), StartsWith("is a model in the old GGJT format"));
  EXPECT_THAT(MessageFor("FUGGzzzz"), StartsWith("is a big-endian GGUF"));
}

TEST(NotAModel, TextsAndOtherBytes) {
  EXPECT_THAT(MessageFor("{\"error\":\"Repository not found\"}"), StartsWith("is a JSON text"));
  EXPECT_THAT(MessageFor("<?xml version=\"1.0\"?><Error/>"), StartsWith("is an XML or HTML text"));
  EXPECT_THAT(MessageFor("Entry not found"), StartsWith("is a text file"));
  EXPECT_THAT(MessageFor(std::string(5000, '\0')), StartsWith("is zeros at its start"));
  EXPECT_EQ(MessageFor("\x01\xfe\x03\x04zzzz"),
            "is not a GGUF model: it starts with bytes 01 fe 03 04 instead of 47 47 55 46 "
            "(\"GGUF\"); give the path of a .gguf file");
  EXPECT_THAT(MessageFor("\x01"), StartsWith("is not a GGUF model: it starts with bytes 01 inst"));
  EXPECT_THAT(MessageFor("GGU"), StartsWith("is cut short: it has 3 bytes of a GGUF model"));
}

TEST(NotAModel, DirectoryAndPipe) {
  const TempDir dir;
  const auto directory = GgufFile::Open(dir.path());
  EXPECT_EQ(directory.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(directory.status().message(),
            dir.path() + " is a directory: give the path of a .gguf file in it");
  const std::string pipe = dir.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(std::string(GgufFile::Open(pipe).status().message()),
              HasSubstr("is a pipe or device"));
}

TEST(NotAModel, MissingPath) {
  const TempDir dir;
  const std::string path = dir.path() + "/absent.gguf";
  const auto file = GgufFile::Open(path);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(file.status().message(),
            path + ": no such file: check the path, or fetch the model first");
  EXPECT_EQ(GgufFile::Open(dir.Write("f", "x") + "/m.gguf").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open("").status().code(), absl::StatusCode::kNotFound);
}

TEST(NotAModel, UnreadableFile) {
  const TempDir dir;
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
  const std::string path = dir.Write("m.gguf", SmallModel().ToBytes());
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  // Root may read everything: become nobody for the call.
  const bool is_root = geteuid() == 0;
  if (is_root) {
    ASSERT_EQ(seteuid(65534), 0);
  }
  const absl::Status status = GgufFile::Open(path).status();
  if (is_root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(status.message(),
            path + ": may not be read by this user: check its permissions (ls -l, chmod u+r)");
}

}  // namespace
}  // namespace vericache
