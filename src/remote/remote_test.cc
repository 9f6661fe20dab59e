// Parts that need no server: URLs, the circuit breaker, replies, tiers.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "remote/circuit_breaker.h"
#include "remote/guarded_store.h"
#include "remote/open_store.h"
#include "remote/resp.h"
#include "remote/store_url.h"
#include "remote/tiered_store.h"

namespace vericache {
namespace {

using std::chrono::milliseconds;

BlobKey KeyOf(int n) { return Sha256Of(&n, sizeof(n)); }

std::string TextOf(const absl::StatusOr<BlobBytes>& bytes) {
  if (!bytes.ok()) return "";
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

TEST(StoreUrl, ReadsWhatItSays) {
  const auto url = ParseStoreUrl("rediss://us%40er:p%2Cw%25@[::1]:7000/3?prefix=a%26b&x=");
  ASSERT_TRUE(url.ok()) << url.status();
  EXPECT_EQ(url->scheme, "rediss");
  EXPECT_EQ(url->user, "us@er");
  EXPECT_EQ(url->password, "p,w%");
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->port, 7000);
  EXPECT_EQ(url->path, "/3");
  EXPECT_EQ(url->Param("prefix"), "a&b");
  EXPECT_EQ(url->Redacted(), "rediss://[::1]:7000/3");
  EXPECT_EQ(ParseStoreUrl("/a/b?c#d")->path, "/a/b?c#d") << "a folder may be called anything";
  EXPECT_EQ(ParseStoreUrl("redis+unix:///run/s.sock?db=1")->path, "/run/s.sock");
  const auto list = ParseStoreList("dir, redis://h ,s3://b/p");
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(list->size(), 3u);
  EXPECT_EQ(RedactedStoreList("dir,redis://u:SECRET@h:1,s3://b/p"), "dir, redis://h:1, s3://b/p");
}

TEST(StoreUrl, RefusesWithoutRepeatingThePassword) {
  for (const char* bad :
       {"", "redis://", "redis://u:SECRET@", "redis://u:SECRET@h:0", "redis://u:SECRET@h:65536",
        "redis://u:SECRET@h:x", "redis://u:SECRET@h?novalue", "redis://u:SECRET@h/%4",
        "redis://u:SECRET%0a@h", "redis://u:SECRET@h#x", "rediss://u:SECRET@[::1", "redis+unix://",
        "https://u:SECRET@h", "redis://u:SECRET@a b", "s3://", "dir,,dir2", "dir,"}) {
    const auto list = ParseStoreList(bad);
    EXPECT_FALSE(list.ok()) << bad;
    EXPECT_EQ(list.status().ToString().find("SECRET"), std::string::npos) << list.status();
  }
  for (const char* bad : {"redis://:SECRET@h?tls_verfy=0", "redis://:SECRET@h?piece_bytes=1",
                          "redis://:SECRET@h?db=-1", "redis://:SECRET@h/x", "s3://b?endpoint=h",
                          "redis://:SECRET@h?prefix=%7Ba%7D", "redis://:SECRET@h?timeout_ms=0"}) {
    const absl::Status status = CheckStores(bad);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_EQ(status.ToString().find("SECRET"), std::string::npos) << status;
  }
}

TEST(CircuitBreaker, OpensAfterFailuresAndTriesAgain) {
  CircuitBreaker breaker({3, milliseconds(100), milliseconds(400)});
  CircuitBreaker::Clock::time_point now{};
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(breaker.Allow(now));
    EXPECT_FALSE(breaker.Failed(now));
  }
  EXPECT_FALSE(breaker.Succeeded());
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(breaker.Allow(now));
    EXPECT_EQ(breaker.Failed(now), i == 2);
  }
  EXPECT_FALSE(breaker.Allow(now + milliseconds(49)));
  now += milliseconds(101);
  EXPECT_TRUE(breaker.Allow(now)) << "one trial";
  EXPECT_FALSE(breaker.Allow(now)) << "and no other beside it";
  EXPECT_FALSE(breaker.Failed(now)) << "it was open";
  EXPECT_FALSE(breaker.Allow(now + milliseconds(99))) << "twice as long now, at least half of it";
  now += milliseconds(201);
  EXPECT_TRUE(breaker.Allow(now));
  EXPECT_TRUE(breaker.Succeeded());
  EXPECT_TRUE(breaker.Allow(now) && breaker.Allow(now));
}

RespReader ReaderOf(const std::string& text) {
  auto at = std::make_shared<size_t>(0);
  return RespReader([text, at](uint8_t* to, size_t size) -> absl::StatusOr<size_t> {
    if (*at == text.size()) return absl::UnavailableError("the end");
    const size_t n = std::min({size, text.size() - *at, size_t{3}});
    text.copy(reinterpret_cast<char*>(to), n, *at);
    *at += n;
    return n;
  });
}

TEST(Resp, ReadsBothVersions) {
  using Kind = RespReply::Kind;
  RespReader reader = ReaderOf(
      "+OK\r\n-ERR no\r\n:-42\r\n$5\r\na\r\nbc\r\n$-1\r\n*-1\r\n*2\r\n:1\r\n*1\r\n$0\r\n\r\n_\r\n"
      "#t\r\n,1.5\r\n(123456789012345678901234567890\r\n!5\r\nERR x\r\n=7\r\ntxt:abc\r\n"
      "%1\r\n+k\r\n:7\r\n~1\r\n+s\r\n>1\r\n+p\r\n");
  EXPECT_EQ(reader.Read()->text, "OK");
  EXPECT_TRUE(reader.Read()->is_error("ERR"));
  EXPECT_EQ(reader.Read()->integer, -42);
  EXPECT_EQ(reader.Read()->text, "a\r\nbc");
  EXPECT_EQ(reader.Read()->kind, Kind::kNull);
  EXPECT_EQ(reader.Read()->kind, Kind::kNull);
  const auto nested = reader.Read();
  ASSERT_EQ(nested->elements.size(), 2u);
  EXPECT_EQ(nested->elements[1].elements[0].kind, Kind::kText);
  EXPECT_EQ(reader.Read()->kind, Kind::kNull);
  EXPECT_EQ(reader.Read()->integer, 1);
  EXPECT_EQ(reader.Read()->text, "1.5");
  EXPECT_EQ(reader.Read()->text, "123456789012345678901234567890");
  EXPECT_TRUE(reader.Read()->is_error("ERR x"));
  EXPECT_EQ(reader.Read()->text, "txt:abc");
  EXPECT_EQ(reader.Read()->elements.size(), 2u);
  EXPECT_EQ(reader.Read()->elements[0].text, "s");
  EXPECT_EQ(reader.Read()->kind, Kind::kArray);
  EXPECT_TRUE(absl::IsUnavailable(reader.Read().status()));
}

TEST(Resp, BoundsWhatItReads) {
  std::string deep, wide = "*1048577\r\n";
  for (int i = 0; i < 50; ++i) deep += "*1\r\n";
  for (const std::string& bad :
       {deep, wide, std::string("$16777217\r\n"), std::string("$-2\r\n"), std::string("*-2\r\n"),
        std::string(":1 \r\n"), std::string(":\r\n"), std::string("$3\r\nabcd\r\n"),
        std::string("+x\n"), std::string("#x\r\n"), std::string("_x\r\n"), std::string("@\r\n"),
        std::string("%9223372036854775807\r\n"), std::string("$+-3\r\n"),
        "+" + std::string(70000, 'x') + "\r\n"}) {
    RespReader reader = ReaderOf(bad);
    EXPECT_TRUE(absl::IsDataLoss(reader.Read().status())) << bad.substr(0, 20);
  }
  // Many texts, each within the limit.
  std::string many = "*20\r\n";
  for (int i = 0; i < 20; ++i) many += "$1000000\r\n" + std::string(1000000, 'x') + "\r\n";
  RespReader reader = ReaderOf(many);
  EXPECT_TRUE(absl::IsDataLoss(reader.Read().status()));
}

// A store that can be told to fail; counts what it is asked.
class Flaky : public MemoryBlobStore {
 public:
  using BlobStore::Get;
  absl::Status error;
  std::atomic<int> gets{0}, puts{0};  // also by the thread that writes back
  absl::Status Put(const BlobKey& key, absl::Span<const std::string_view> parts) override {
    ++puts;
    return error.ok() ? MemoryBlobStore::Put(key, parts) : error;
  }
  absl::StatusOr<BlobBytes> Get(const BlobKey& key, Deadline deadline) override {
    ++gets;
    deadlines.push_back(deadline);
    if (!error.ok()) return error;
    return MemoryBlobStore::Get(key, deadline);
  }
  absl::StatusOr<int64_t> CountPresent(absl::Span<const BlobKey> keys, Deadline d) override {
    if (!error.ok()) return error;
    return MemoryBlobStore::CountPresent(keys, d);
  }
  std::vector<Deadline> deadlines;
};

struct Tiers {
  Flaky* near;
  Flaky* far;
  std::unique_ptr<TieredStore> store;

  explicit Tiers(TieredStore::WriteBack write_back = TieredStore::WriteBack::kOn) {
    std::vector<std::unique_ptr<BlobStore>> tiers;
    tiers.push_back(std::make_unique<Flaky>());
    tiers.push_back(std::make_unique<Flaky>());
    near = static_cast<Flaky*>(tiers[0].get());
    far = static_cast<Flaky*>(tiers[1].get());
    store = std::make_unique<TieredStore>(std::move(tiers), write_back);
  }
};

TEST(TieredStore, ReadsThroughAndWritesBack) {
  Tiers t;
  ASSERT_TRUE(t.far->Put(KeyOf(1), {"far"}).ok());
  EXPECT_EQ(TextOf(t.store->Get(KeyOf(1))), "far");
  t.store->WaitForWriteBack();
  EXPECT_EQ(TextOf(t.near->Get(KeyOf(1))), "far");
  const int gets = t.far->gets;
  EXPECT_EQ(TextOf(t.store->Get(KeyOf(1))), "far");
  EXPECT_EQ(t.far->gets, gets) << "from the near one now";
  ASSERT_TRUE(t.store->Put(KeyOf(2), {"both"}).ok());
  EXPECT_TRUE(t.near->Contains(KeyOf(2)) && t.far->Contains(KeyOf(2)));
  EXPECT_TRUE(t.store->ContainsEverywhere(KeyOf(2)));
  ASSERT_TRUE(t.near->Remove(KeyOf(2)).ok());
  EXPECT_FALSE(t.store->ContainsEverywhere(KeyOf(2)));
  EXPECT_TRUE(t.store->Contains(KeyOf(2)));
  Tiers read_only(TieredStore::WriteBack::kOff);
  ASSERT_TRUE(read_only.far->Put(KeyOf(1), {"far"}).ok());
  EXPECT_EQ(TextOf(read_only.store->Get(KeyOf(1))), "far");
  read_only.store->WaitForWriteBack();
  EXPECT_FALSE(read_only.near->Contains(KeyOf(1)));
}

TEST(TieredStore, ManyComeFromWhereTheyAre) {
  Tiers t;
  std::vector<BlobKey> keys;
  for (int i = 0; i < 12; ++i) {
    keys.push_back(KeyOf(i));
    if (i == 9) continue;
    ASSERT_TRUE((i % 3 == 0 ? t.near : t.far)->Put(keys[i], {std::to_string(i)}).ok());
  }
  EXPECT_EQ(*t.store->CountPresent(keys, kNoDeadline), 9);
  size_t next = 0;
  t.store->GetMany(keys, kNoDeadline, [&](size_t idx, absl::StatusOr<BlobBytes> blob) {
    EXPECT_EQ(idx, next++);
    EXPECT_EQ(TextOf(blob), idx == 9 ? "" : std::to_string(idx));
    return true;
  });
  EXPECT_EQ(next, keys.size());
  t.store->WaitForWriteBack();
  for (int i = 0; i < 12; ++i) EXPECT_EQ(t.near->Contains(keys[i]), i != 9) << i;
  std::set<BlobKey> seen;
  EXPECT_TRUE(t.store->List("", [&](const BlobInfo& i) { return seen.insert(i.key).second; }).ok());
  EXPECT_EQ(seen.size(), 11u);
}

TEST(TieredStore, AFailingTierIsATierThatHasNothing) {
  Tiers t;
  ASSERT_TRUE(t.far->Put(KeyOf(1), {"x"}).ok());
  t.near->error = absl::UnavailableError("down");
  EXPECT_EQ(TextOf(t.store->Get(KeyOf(1))), "x");
  EXPECT_EQ(*t.store->CountPresent({KeyOf(1)}, kNoDeadline), 1);
  EXPECT_TRUE(absl::IsUnavailable(t.store->Get(KeyOf(2)).status()))
      << "perhaps the near one has it";
  EXPECT_TRUE(t.store->Put(KeyOf(3), {"y"}).ok());
  t.far->error = absl::ResourceExhaustedError("full");
  EXPECT_FALSE(t.store->Put(KeyOf(3), {"y"}).ok());
  EXPECT_FALSE(t.store->CountPresent({KeyOf(1)}, kNoDeadline).ok());
}

TEST(TieredStore, ANearTierDoesNotUseUpTheDeadline) {
  Tiers t;
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
  (void)t.store->Get(KeyOf(1), deadline);
  ASSERT_EQ(t.near->deadlines.size(), 1u);
  EXPECT_LT(t.near->deadlines[0], deadline - std::chrono::minutes(29));
  EXPECT_EQ(t.far->deadlines[0], deadline);
}

TEST(GuardedStore, LeavesAFailingStoreAloneAndSaysSo) {
  auto flaky = std::make_unique<Flaky>();
  Flaky* raw = flaky.get();
  std::vector<std::string> said;
  GuardedStore store(std::move(flaky), [&](std::string_view text) { said.emplace_back(text); },
                     {3, milliseconds(20), milliseconds(20)});
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(absl::IsNotFound(store.Get(KeyOf(1)).status()));
  EXPECT_EQ(raw->gets, 10) << "a miss is an answer";
  raw->error = absl::DeadlineExceededError("slow");
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(store.Get(KeyOf(1)).ok());
  ASSERT_EQ(said.size(), 1u);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(absl::IsUnavailable(store.Get(KeyOf(1)).status()));
  EXPECT_LT(raw->gets, 63) << "hardly any of them is tried";
  EXPECT_EQ(said.size(), 1u) << "told once";
  const BlobStoreStats stats = store.Stats();
  EXPECT_EQ(stats.late, stats.errors);
  EXPECT_EQ(stats.errors + stats.skipped, 53);
  EXPECT_EQ(stats.errors, raw->gets - 10);
  raw->error = absl::OkStatus();
  while (!store.Put(KeyOf(1), {"x"}).ok()) {
  }
  EXPECT_EQ(said.size(), 2u);
  EXPECT_EQ(TextOf(store.Get(KeyOf(1))), "x");
}

}  // namespace
}  // namespace vericache
