// The contract over memory, folders, Redis in all its forms, a cluster, and tiers of them.
#include "tests/remote/store_contract.h"

#include "remote/guarded_store.h"
#include "remote/open_store.h"
#include "remote/redis_store.h"
#include "remote/tiered_store.h"
#include "storage/file_blob_store.h"
#include "storage/forwarding_store.h"
#include "tests/remote/redis_server.h"

namespace vericache {
namespace {

// Where stores of one kind come from: each Open() is a further client of the same place.
struct Place {
  std::string name;
  size_t large_bytes = 700000;
  std::unique_ptr<RedisServer> redis;
  std::unique_ptr<RedisCluster> cluster;
  std::filesystem::path folder;
  std::string urls;
  MemoryBlobStore memory;

  ~Place() {
    if (!folder.empty()) std::filesystem::remove_all(folder);
  }
};

class StoreContract : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    place_.name = kind;
    if (kind.starts_with("file") || kind.starts_with("tiered") || kind == "redis_tls")
      place_.folder = NewTestFolder();
    if (kind == "file") place_.urls = (place_.folder / "store").string();
    if (kind == "redis") StartRedis({}, "?prefix=a*[b]?:");
    if (kind == "redis_pieces") StartRedis({}, "/3?piece_bytes=65536");
    if (kind == "redis_squeezed") StartRedis({}, "?squeeze=zstd&piece_bytes=65536");
    if (kind == "redis_resp3") StartRedis({}, "?protocol=3&piece_bytes=100000");
    if (kind == "redis_unix") {
      StartRedis({}, "");
      place_.urls = "redis+unix://" + place_.redis->socket() + "?db=2";
    }
    if (kind == "redis_acl") {
      StartRedis({}, "");
      place_.redis->Call(
          {"ACL", "SETUSER", "writer", "on", ">pass%word", "~vericache:*", "+@all", "-cluster"});
      place_.urls = StrCat("redis://writer:pass%25word@127.0.0.1:", place_.redis->port());
    }
    if (kind == "redis_tls") StartTls();
    if (kind == "cluster") {
      place_.cluster = std::make_unique<RedisCluster>();
      place_.urls = place_.cluster->Url("?piece_bytes=65536");
    }
    if (kind == "tiered") {
      StartRedis({}, "");
      place_.urls = (place_.folder / "near").string() + ", " + place_.redis->Url();
    }
  }
  void StartRedis(const std::vector<std::string>& args, const std::string& params) {
    place_.redis = std::make_unique<RedisServer>(args);
    place_.urls = place_.redis->Url(params);
  }
  void StartTls() {
    ASSERT_TRUE(MakeCertificates(place_.folder));
    const int port = FreePort();
    const std::string at = place_.folder.string();
    place_.redis = std::make_unique<RedisServer>(std::vector<std::string>{
        "--tls-port", std::to_string(port), "--tls-cert-file", at + "/good.pem", "--tls-key-file",
        at + "/good.key", "--tls-ca-cert-file", at + "/ca.pem", "--tls-auth-clients", "no"});
    place_.urls = StrCat("rediss://localhost:", port, "?ca_file=", at, "/ca.pem");
  }
  std::unique_ptr<BlobStore> Open() {
    if (place_.name == "memory") return std::make_unique<ForwardingStore>(&place_.memory);
    auto store = OpenStore(place_.urls, {});
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  Place place_;
};

TEST_P(StoreContract, KeepsWhatWasPut) { ExpectKeepsWhatWasPut(Open().get(), place_.large_bytes); }
TEST_P(StoreContract, ManyInOrder) { ExpectManyInOrder(Open().get()); }
TEST_P(StoreContract, WholeUnderConcurrency) {
  ExpectWholeUnderConcurrency([this] { return Open(); }, 200000);
}
TEST_P(StoreContract, LastsBeyondTheObject) {
  ExpectLastsBeyondTheObject([this] { return Open(); });
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreContract,
                         testing::Values("memory", "file", "redis", "redis_pieces", "redis_resp3",
                                         "redis_squeezed", "redis_unix", "redis_acl", "redis_tls",
                                         "cluster", "tiered"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace vericache
