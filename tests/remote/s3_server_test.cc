// The contract over a real S3 server that verifies signatures: run_seaweed.sh starts it and says
// where it is.
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/text.h"
#include "remote/s3_store.h"
#include "tests/remote/store_contract.h"

namespace vericache {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class S3Server : public testing::Test {
 protected:
  // The parts of a server that has just started find each other late on a busy machine; until then
  // it refuses what is put. Nothing is tested before it takes something.
  static void SetUpTestSuite() {
    ASSERT_FALSE(Endpoint().empty()) << "run me by tests/remote/run_seaweed.sh";
    auto options =
        S3OptionsOf(*ParseStoreUrl(StrCat("s3://", Variable("VERICACHE_TEST_S3_BUCKET"),
                                          "/first?timeout_ms=20000&endpoint=", Endpoint())),
                    Keys("testsecret"));
    ASSERT_TRUE(options.ok()) << options.status();
    S3Store store(*std::move(options));
    absl::Status put = store.Put(KeyOf(0), {"x"});
    for (int i = 0; i < 100 && !put.ok(); ++i) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      put = store.Put(KeyOf(0), {"x"});
    }
    ASSERT_TRUE(put.ok()) << put;
  }
  void SetUp() override {
    ASSERT_FALSE(Endpoint().empty()) << "run me by tests/remote/run_seaweed.sh";
    // A prefix of its own for each test.
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    url_ = StrCat("s3://", Variable("VERICACHE_TEST_S3_BUCKET"), "/run/", info->name(),
                  "?timeout_ms=60000&endpoint=", Endpoint());
  }
  static std::string Endpoint() { return Variable("VERICACHE_TEST_S3"); }
  static Environment Keys(const std::string& secret) {
    return [secret](const std::string& name) -> std::string {
      if (name == "AWS_ACCESS_KEY_ID") return "testkey";
      if (name == "AWS_SECRET_ACCESS_KEY") return secret;
      return "";
    };
  }
  std::unique_ptr<BlobStore> Open(const std::string& more = "", const std::string& secret = "") {
    auto options =
        S3OptionsOf(*ParseStoreUrl(url_ + more), Keys(secret.empty() ? "testsecret" : secret));
    EXPECT_TRUE(options.ok()) << options.status();
    return std::make_unique<S3Store>(*std::move(options));
  }
  std::string url_;
};

TEST_F(S3Server, KeepsWhatWasPut) { ExpectKeepsWhatWasPut(Open().get(), 700000); }
TEST_F(S3Server, InRangesAndParts) {
  ExpectKeepsWhatWasPut(Open("&range_bytes=1000000&part_bytes=5242880").get(), 12000000);
}
TEST_F(S3Server, ManyInOrder) { ExpectManyInOrder(Open().get()); }
TEST_F(S3Server, WholeUnderConcurrency) {
  ExpectWholeUnderConcurrency([this] { return Open(); }, 50000);
}
TEST_F(S3Server, LastsBeyondTheObject) {
  ExpectLastsBeyondTheObject([this] { return Open(); });
}

TEST_F(S3Server, ItDoesVerifySignatures) {
  const auto store = Open("", "wrong");
  EXPECT_TRUE(absl::IsPermissionDenied(store->Put(KeyOf(1), {"x"})));
  EXPECT_TRUE(absl::IsPermissionDenied(store->Get(KeyOf(1)).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(Open("&anonymous=1")->Put(KeyOf(1), {"x"})));
  EXPECT_FALSE(store->List("", [](const BlobInfo&) { return true; }).ok());
}

// More keys than a page of a listing has.
TEST_F(S3Server, ListsPageByPage) {
  const auto store = Open();
  std::set<BlobKey> keys;
  for (int i = 0; i < 1100; ++i) {
    ASSERT_TRUE(store->Put(KeyOf(i), {"x"}).ok());
    keys.insert(KeyOf(i));
  }
  EXPECT_EQ(KeysIn(store.get()), keys);
}

}  // namespace
}  // namespace vericache
