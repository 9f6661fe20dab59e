// What needs no server: names, listings, and the part file on disk. Pulls are in tests/hub.
#include "hub/hub.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hub/http.h"
#include "hub/listing.h"
#include "hub/part_file.h"
#include "hub/reference.h"

namespace vericache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

class HubTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/vericache_hub_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    dir_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ + "/" + name) << text;
    return dir_ + "/" + name;
  }
  std::string Read(const std::string& name) {
    std::ifstream in(dir_ + "/" + name);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  bool Exists(const std::string& name) { return std::filesystem::exists(dir_ + "/" + name); }
  static std::string Sha(const std::string& text) {
    return HexOf(Sha256Of(text.data(), text.size()));
  }

  std::string dir_;
};

TEST(ModelReference, TakesRepositoriesFilesAndShortNames) {
  const auto repo = ParseModelReference("Owner/Repo-1.5_B");
  ASSERT_TRUE(repo.ok());
  EXPECT_EQ(repo->repo, "Owner/Repo-1.5_B");
  EXPECT_EQ(repo->file, "");

  const auto file = ParseModelReference("hf:Owner/Repo/sub folder/x.Q4_K_M.GGUF");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->repo, "Owner/Repo");
  EXPECT_EQ(file->file, "sub folder/x.Q4_K_M.GGUF");

  for (const std::string& name : ShortModelNames()) {
    const auto known = ParseModelReference(name);
    ASSERT_TRUE(known.ok()) << name;
    EXPECT_EQ(known->local_name, name + ".gguf");
    EXPECT_TRUE(IsSha256Hex(known->sha256)) << name;
  }
}

TEST(ModelReference, RefusesWhatIsNoModelOrLeavesTheFolder) {
  for (const char* text :
       {"", "hf:", "nonsense", "/", "a/", "/a", "../b", "a/..", "a/b/../x.gguf", "a/b//x.gguf",
        "a/b/x.bin", "a/b/.gguf", "a b/c", "a/b\n", "a/b/x\n.gguf", "a/b/x\\y.gguf"}) {
    EXPECT_EQ(ParseModelReference(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_FALSE(ParseModelReference("a/" + std::string(1000, 'b')).ok());
}

TEST_F(HubTest, ResolvesPathsAndNames) {
  const std::string path = Write("tiny.gguf", "GGUF");
  EXPECT_EQ(*ResolveModel(path, "/nowhere"), path);
  EXPECT_EQ(*ResolveModel("tiny", dir_), path);
  EXPECT_EQ(*ResolveModel("tiny.gguf", dir_), path);
}

TEST_F(HubTest, AnUnknownModelIsAnsweredByWhatThereIs) {
  EXPECT_THAT(MessageOf(ResolveModel("tiny", dir_).status()), HasSubstr("empty"));
  Write("b.gguf", "");
  Write("a.GGUF", "");
  Write("c.gguf.part", "");
  EXPECT_THAT(ListModels(dir_), ElementsAre("a.GGUF", "b.gguf"));
  const absl::Status status = ResolveModel("smollm2-135m", dir_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(status), HasSubstr("a.GGUF, b.gguf"));
  EXPECT_THAT(MessageOf(status), HasSubstr("vericache pull smollm2-135m"));
  EXPECT_THAT(MessageOf(ResolveModel("x/y.gguf", dir_).status()), HasSubstr("no such file"));
  EXPECT_FALSE(ResolveModel("", dir_).ok());
  EXPECT_FALSE(ResolveModel("a", "/nowhere/at/all").ok());
}

TEST(Listing, ReadsFilesWithTheirDigests) {
  const std::string sha(64, 'A');
  const auto files = ParseTreePage(R"([
    {"type": "directory", "path": "sub", "oid": "1", "size": 0},
    {"type": "file", "path": "README.md", "oid": "2", "size": 10},
    {"type": "file", "path": "x.gguf", "oid": "3", "size": 5,
     "lfs": {"oid": ")" + sha + R"(", "size": 7, "pointerSize": 134}},
    {"type": "file", "path": "y.gguf", "size": -1, "lfs": {"oid": "zz", "size": "7"}}])");
  ASSERT_TRUE(files.ok());
  ASSERT_EQ(files->size(), 3u);
  EXPECT_EQ((*files)[0].sha256, "");
  EXPECT_EQ((*files)[1].bytes, 7);
  EXPECT_EQ((*files)[1].sha256, std::string(64, 'a'));
  EXPECT_EQ((*files)[2].bytes, -1);
  EXPECT_EQ((*files)[2].sha256, "");
}

TEST(Listing, RefusesWhatIsNoListing) {
  for (const char* text : {"", "<!doctype html>", "{}", "[1]", "[{]", "null", "\xff"}) {
    EXPECT_FALSE(ParseTreePage(text).ok()) << text;
  }
  EXPECT_FALSE(ParseTreePage(std::string(1 << 20, '[')).ok());  // and does not recurse
}

TEST(Listing, FindsTheNextPage) {
  EXPECT_EQ(NextPageUrl("<https://h/a?cursor=x>; rel=\"next\""), "https://h/a?cursor=x");
  EXPECT_EQ(NextPageUrl("<https://h/p>; rel=\"prev\", <https://h/n>; rel=\"next\""), "https://h/n");
  EXPECT_EQ(NextPageUrl(""), "");
  EXPECT_EQ(NextPageUrl(">x<; rel=\"next\""), "");
}

TEST(Listing, ChoosesTheOnlyGgufOrAsks) {
  const std::vector<RemoteFile> one = {{"README.md", 1, ""}, {"x.gguf", 2, ""}};
  EXPECT_EQ(ChooseFile("o/r", "", one)->path, "x.gguf");
  EXPECT_EQ(ChooseFile("o/r", "x.gguf", one)->bytes, 2);
  const std::vector<RemoteFile> two = {{"b.gguf", 1, ""}, {"a.gguf", 2, ""}};
  EXPECT_THAT(MessageOf(ChooseFile("o/r", "", two).status()), HasSubstr("a.gguf, b.gguf"));
  EXPECT_THAT(MessageOf(ChooseFile("o/r", "c.gguf", two).status()), HasSubstr("a.gguf, b.gguf"));
  EXPECT_THAT(MessageOf(ChooseFile("o/r", "", {{"a.bin", 1, ""}}).status()), HasSubstr("no GGUF"));
}

TEST(Http, OriginsAreCompared) {
  EXPECT_EQ(OriginOf("HTTPS://Hub.Example/a?b"), "https://hub.example:443");
  EXPECT_EQ(OriginOf("http://h:8080/"), "http://h:8080");
  EXPECT_NE(OriginOf("http://h:8080/"), OriginOf("http://h:8081/"));
  EXPECT_EQ(OriginOf("https://h@evil.example/"), "https://evil.example:443");
  for (const char* url : {"", "file:///etc/passwd", "ftp://h/x", "not a url"}) {
    EXPECT_EQ(OriginOf(url), "") << url;
  }
}

TEST(Http, PathsAreEncoded) { EXPECT_EQ(EncodePath("a b/c#d?e%.gguf"), "a%20b/c%23d%3Fe%25.gguf"); }

TEST_F(HubTest, APartBecomesTheFileOnlyWhenItIsWhole) {
  const std::string text = "GGUF and more";
  {
    auto part = PartFile::Open(dir_ + "/m.gguf", text.size(), Sha(text));
    ASSERT_TRUE(part.ok()) << part.status();
    ASSERT_TRUE(part->Append({text.data(), 5}).ok());
    EXPECT_FALSE(Exists("m.gguf"));
  }
  auto part = PartFile::Open(dir_ + "/m.gguf", text.size(), Sha(text));
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->bytes_done(), 5);
  ASSERT_TRUE(part->Append({text.data() + 5, text.size() - 5}).ok());
  ASSERT_TRUE(part->Finish().ok());
  EXPECT_EQ(Read("m.gguf"), text);
  EXPECT_FALSE(Exists("m.gguf.part"));
  EXPECT_FALSE(Exists("m.gguf.part.sha256"));
}

TEST_F(HubTest, APartOfAnotherVersionIsStartedAnew) {
  Write("m.gguf.part", "old old old");
  Write("m.gguf.part.sha256", Sha("something else") + "\n");
  auto part = PartFile::Open(dir_ + "/m.gguf", 20, Sha("new"));
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->bytes_done(), 0);
  EXPECT_EQ(Read("m.gguf.part"), "");
}

TEST_F(HubTest, ADamagedPartIsDeletedAndNeverNamed) {
  const std::string text = "GGUF!";
  auto part = PartFile::Open(dir_ + "/m.gguf", 5, Sha("GGUF?"));
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->Append({"GGUF!!", 6}).code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(part->Append({text.data(), 5}).ok());
  EXPECT_EQ(part->Finish().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(Exists("m.gguf"));
  EXPECT_FALSE(Exists("m.gguf.part"));
}

TEST_F(HubTest, TwoWritersOfOneFileDoNotMix) {
  auto first = PartFile::Open(dir_ + "/m.gguf", 5, Sha("x"));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(PartFile::Open(dir_ + "/m.gguf", 5, Sha("x")).status().code(),
            absl::StatusCode::kAborted);
}

TEST_F(HubTest, TooLargeForTheDiskIsSaidBeforehand) {
  const auto part = PartFile::Open(dir_ + "/m.gguf", int64_t{1} << 60, Sha("x"));
  EXPECT_EQ(part.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(part.status()), HasSubstr("make room"));
  EXPECT_FALSE(Exists("m.gguf.part"));
}

TEST_F(HubTest, AFolderThatCannotBeWrittenIsSaid) {
  const auto part = PartFile::Open(dir_ + "/none/m.gguf", 1, Sha("x"));
  EXPECT_THAT(MessageOf(part.status()), HasSubstr("cannot create"));
}

}  // namespace
}  // namespace vericache
