// Redis that evicts, fills up, dies, hangs, moves slots and lies: misses and errors, nothing else.
#include <hiredis/hiredis.h>

#include <fstream>

#include "remote/guarded_store.h"
#include "remote/open_store.h"
#include "remote/redis_store.h"
#include "tests/remote/fake_server.h"
#include "tests/remote/redis_server.h"
#include "tests/remote/store_contract.h"

namespace vericache {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<RedisStore> StoreAt(const std::string& url) {
  auto parsed = ParseStoreUrl(url);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  auto options = RedisOptionsOf(*parsed);
  EXPECT_TRUE(options.ok()) << options.status();
  return std::make_unique<RedisStore>(*options);
}

std::string MainName(const BlobKey& key) { return "vericache:{" + HexOf(key) + "}"; }

// What hiredis reads, as a judge that shares no code with ours.
class Judge {
 public:
  explicit Judge(int port) : context_(redisConnect("127.0.0.1", port)) {
    EXPECT_TRUE(context_ != nullptr && context_->err == 0);
  }
  ~Judge() { redisFree(context_); }
  std::string Get(const std::string& name) {
    auto* reply =
        static_cast<redisReply*>(redisCommand(context_, "GET %b", name.data(), name.size()));
    std::string text;
    if (reply != nullptr && reply->type == REDIS_REPLY_STRING) text.assign(reply->str, reply->len);
    freeReplyObject(reply);
    return text;
  }
  void Set(const std::string& name, const std::string& value) {
    freeReplyObject(
        redisCommand(context_, "SET %b %b", name.data(), name.size(), value.data(), value.size()));
  }
  std::vector<std::string> Keys() {
    auto* reply = static_cast<redisReply*>(redisCommand(context_, "KEYS *"));
    std::vector<std::string> names;
    for (size_t i = 0; reply != nullptr && i < reply->elements; ++i)
      names.emplace_back(reply->element[i]->str, reply->element[i]->len);
    freeReplyObject(reply);
    return names;
  }
  int64_t Ttl(const std::string& name) {
    auto* reply =
        static_cast<redisReply*>(redisCommand(context_, "TTL %b", name.data(), name.size()));
    const int64_t ttl = reply == nullptr ? -99 : reply->integer;
    freeReplyObject(reply);
    return ttl;
  }

 private:
  redisContext* context_;
};

TEST(RedisStore, HiredisReadsWhatOursWroteAndTheOtherWayRound) {
  RedisServer server;
  Judge judge(server.port());
  const auto store = StoreAt(server.Url("?piece_bytes=65536"));
  const std::string small = Bytes(1, 500), large = Bytes(2, 200000);
  ASSERT_TRUE(store->Put(KeyOf(1), {small}).ok());
  ASSERT_TRUE(store->Put(KeyOf(2), {large}).ok());
  const std::string value = judge.Get(MainName(KeyOf(1)));
  ASSERT_EQ(value.size(), kRedisHeadBytes + small.size());
  EXPECT_EQ(value.substr(kRedisHeadBytes), small);
  RedisHead head;
  const std::string of_large = judge.Get(MainName(KeyOf(2)));
  ASSERT_EQ(of_large.size(), kRedisHeadBytes);
  head.ReadFrom(reinterpret_cast<const uint8_t*>(of_large.data()));
  ASSERT_EQ(head.num_pieces, 4u);
  std::string joined;
  for (uint32_t i = 0; i < head.num_pieces; ++i) {
    const std::string name = RedisPieceKey(MainName(KeyOf(2)), head.generation, i);
    EXPECT_EQ(judge.Ttl(name), -1) << "permanent once the blob is complete";
    joined += judge.Get(name);
  }
  EXPECT_TRUE(joined == large);
  // The other way round, under other names.
  BlobHeader header = MakeBlobHeader(KeyOf(3), {small});
  head = RedisHead();
  head.header = header;
  std::string text(kRedisHeadBytes, '\0');
  head.Write(reinterpret_cast<uint8_t*>(text.data()));
  judge.Set(MainName(KeyOf(3)), text + small);
  EXPECT_TRUE(TextOf(store->Get(KeyOf(3))) == small);
  // Replaced and removed blobs leave no pieces behind.
  ASSERT_TRUE(store->Put(KeyOf(2), {small}).ok());
  EXPECT_EQ(judge.Keys().size(), 3u);
  ASSERT_TRUE(store->Put(KeyOf(2), {large}).ok());
  EXPECT_EQ(judge.Keys().size(), 7u);
  ASSERT_TRUE(store->Remove(KeyOf(2)).ok());
  EXPECT_EQ(judge.Keys().size(), 2u);
}

// Case 58: data gone, metadata there; a piece cut, longer, changed, or a head that lies.
TEST(RedisStore, Case58WhatIsNotWholeIsAMiss) {
  RedisServer server;
  Judge judge(server.port());
  const auto store = StoreAt(server.Url("?piece_bytes=65536"));
  const std::string large = Bytes(2, 200000);
  const std::string main = MainName(KeyOf(2));
  const auto put = [&] {
    EXPECT_TRUE(store->Put(KeyOf(2), {large}).ok());
    RedisHead head;
    head.ReadFrom(reinterpret_cast<const uint8_t*>(judge.Get(main).data()));
    return head;
  };
  const auto expect_missing = [&](const char* why) {
    EXPECT_TRUE(absl::IsNotFound(store->Get(KeyOf(2)).status())) << why;
    // The connection is still in step.
    ASSERT_TRUE(store->Put(KeyOf(9), {"x"}).ok());
    EXPECT_EQ(TextOf(store->Get(KeyOf(9))), "x") << why;
  };
  for (uint32_t i = 0; i < 4; ++i) {
    const RedisHead head = put();
    server.Call({"DEL", RedisPieceKey(main, head.generation, i)});
    EXPECT_TRUE(store->Contains(KeyOf(2))) << "a hint only";
    expect_missing("a piece is gone");
  }
  const RedisHead head = put();
  const std::string piece = RedisPieceKey(main, head.generation, 1);
  const std::string good = judge.Get(piece);
  for (const std::string& bad : {good.substr(1), good + "x", std::string(),
                                 std::string(good).replace(7, 1, 1, good[7] ^ 1)}) {
    judge.Set(piece, bad);
    expect_missing("a piece of other bytes");
  }
  judge.Set(piece, good);
  EXPECT_TRUE(TextOf(store->Get(KeyOf(2))) == large);
  const std::string text = judge.Get(main);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string bad = text;
    bad[i] = static_cast<char>(bad[i] ^ 0x41);
    judge.Set(main, bad);
    EXPECT_FALSE(store->Get(KeyOf(2)).ok()) << "byte " << i;
  }
  for (size_t size : {size_t{0}, size_t{1}, size_t{127}, size_t{143}}) {
    judge.Set(main, text.substr(0, size));
    expect_missing("a short head");
  }
  EXPECT_GT(store->Stats().damaged, 100);
  server.Call({"DEL", main});
  server.Call({"RPUSH", main, "a list"});
  EXPECT_FALSE(store->Get(KeyOf(2)).ok());
  expect_missing("a value of another type");
}

TEST(RedisStore, Case58EvictionUnderMaxmemoryCostsHitsOnly) {
  RedisServer server({"--maxmemory", "12mb", "--maxmemory-policy", "allkeys-lru"});
  const auto store = StoreAt(server.Url("?piece_bytes=65536"));
  int hits = 0;
  for (int i = 0; i < 60; ++i) {
    const absl::Status put = store->Put(KeyOf(i), {Bytes(i, 400000)});
    EXPECT_TRUE(put.ok() || absl::IsResourceExhausted(put)) << put;
    for (int k = std::max(0, i - 3); k <= i; ++k) {
      const auto got = store->Get(KeyOf(k));
      if (got.ok())
        EXPECT_TRUE(TextOf(got) == Bytes(k, 400000)) << ++hits;
      else
        EXPECT_TRUE(absl::IsNotFound(got.status())) << got.status();
      hits += got.ok();
    }
  }
  EXPECT_GT(hits, 50);
  EXPECT_EQ(store->Stats().damaged, 0);
}

TEST(RedisStore, Case58AFullServerRefusesAndStaysUsable) {
  RedisServer server({"--maxmemory", "6mb", "--maxmemory-policy", "noeviction"});
  Judge judge(server.port());
  const auto store = StoreAt(server.Url("?piece_bytes=65536"));
  ASSERT_TRUE(store->Put(KeyOf(1), {Bytes(1, 100000)}).ok());
  const absl::Status large = store->Put(KeyOf(2), {Bytes(2, 9000000)});
  EXPECT_TRUE(absl::IsResourceExhausted(large)) << large;
  EXPECT_FALSE(store->Contains(KeyOf(2)));
  EXPECT_EQ(judge.Keys().size(), 3u) << "the refused blob's pieces are removed";
  EXPECT_TRUE(TextOf(store->Get(KeyOf(1))) == Bytes(1, 100000));
  EXPECT_TRUE(store->Put(KeyOf(3), {Bytes(3, 100000)}).ok()) << "there is room for this one";
  EXPECT_EQ(store->Stats().failed_puts, 1);
}

TEST(RedisStore, AKilledWritersPiecesAreNotSeenAndGoByThemselves) {
  RedisServer server;
  Judge judge(server.port());
  const pid_t child = fork();
  if (child == 0) {
    auto options = *RedisOptionsOf(*ParseStoreUrl(server.Url("?piece_bytes=4096")));
    RedisStore store(options);
    for (;;) (void)store.Put(KeyOf(1), {Bytes(1, 30000000)});
  }
  while (judge.Keys().size() < 20) std::this_thread::sleep_for(milliseconds(2));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const auto store = StoreAt(server.Url());
  if (!store->Contains(KeyOf(1))) {
    for (const std::string& name : judge.Keys()) EXPECT_GT(judge.Ttl(name), 0) << name;
    EXPECT_TRUE(KeysIn(store.get()).empty());
  }
  ASSERT_TRUE(store->Put(KeyOf(1), {"whole"}).ok());
  EXPECT_EQ(TextOf(store->Get(KeyOf(1))), "whole");
}

TEST(RedisStore, ARestartedServerIsFoundAgain) {
  RedisServer server;
  const auto store = StoreAt(server.Url());
  ASSERT_TRUE(store->Put(KeyOf(1), {"x"}).ok());
  EXPECT_EQ(TextOf(store->Get(KeyOf(1))), "x");
  server.Kill();
  EXPECT_TRUE(absl::IsUnavailable(store->Get(KeyOf(1)).status()));
  EXPECT_FALSE(store->Put(KeyOf(1), {"x"}).ok());
  server.Start();
  EXPECT_TRUE(absl::IsNotFound(store->Get(KeyOf(1)).status())) << "it forgot, without persistence";
  // Between two calls: the pooled connection is dead, which is no news about the server.
  server.Kill();
  server.Start();
  ASSERT_TRUE(store->Put(KeyOf(1), {"y"}).ok());
  server.Call({"CLIENT", "KILL", "TYPE", "normal"});
  EXPECT_EQ(TextOf(store->Get(KeyOf(1))), "y");
  EXPECT_EQ(*store->CountPresent({KeyOf(1)}, kNoDeadline), 1);
}

TEST(RedisStore, Case59AHangingServerIsGivenUpAtTheDeadline) {
  RedisServer server;
  const auto store = StoreAt(server.Url());
  ASSERT_TRUE(store->Put(KeyOf(1), {Bytes(1, 3000000)}).ok());
  server.Stop();
  EXPECT_TRUE(absl::IsDeadlineExceeded(store->Get(KeyOf(1), In(milliseconds(50))).status()));
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(store->CountPresent({KeyOf(1)}, In(milliseconds(50))).status()));
  server.Continue();
  EXPECT_TRUE(TextOf(store->Get(KeyOf(1))) == Bytes(1, 3000000)) << "late bytes are nobody's";
}

// Answers each command with what `answer` says of it; CLUSTER SLOTS with an error, as one server
// does.
FakeServer Lying(std::function<void(FakeServer::Peer&, const std::string&)> answer) {
  return FakeServer([answer = std::move(answer)](FakeServer::Peer& peer) {
    for (;;) {
      const std::string command = peer.Receive();
      if (command.empty()) return;
      if (command.find("CLUSTER") != command.npos)
        peer.Send("-ERR no cluster\r\n");
      else
        answer(peer, command);
    }
  });
}

TEST(RedisStore, Case59ADripOfBytesIsGivenUpAtTheDeadline) {
  const FakeServer server = Lying([](FakeServer::Peer& peer, const std::string&) {
    peer.Drip("$1000000\r\n" + std::string(1000000, 'x'), milliseconds(10));
  });
  const auto store = StoreAt(StrCat("redis://127.0.0.1:", server.port()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(store->Get(KeyOf(1), In(milliseconds(100))).status()));
}

TEST(RedisStore, HostileRepliesAreBounded) {
  for (const std::string& reply :
       {std::string("$536870913\r\n"), std::string("$-2\r\n"),
        std::string("$99999999999999999999\r\n"), std::string("*-5\r\n"),
        std::string("*2147483647\r\n"), std::string("?what\r\n"), std::string("\r\n"),
        std::string("$5\r\nabcdefgh\r\n"), std::string("+") + std::string(200000, 'a'),
        std::string(":12x\r\n"), [] {
          std::string deep;
          for (int i = 0; i < 100000; ++i) deep += "*1\r\n";
          return deep;
        }()}) {
    const FakeServer server =
        Lying([&](FakeServer::Peer& peer, const std::string&) { peer.Send(reply); });
    const auto store = StoreAt(StrCat("redis://127.0.0.1:", server.port(), "?timeout_ms=300"));
    EXPECT_FALSE(store->Get(KeyOf(1)).ok()) << reply.substr(0, 20);
    EXPECT_FALSE(store->CountPresent({KeyOf(1)}, kNoDeadline).ok()) << reply.substr(0, 20);
    EXPECT_FALSE(store->List("", [](const BlobInfo&) { return true; }).ok());
    EXPECT_FALSE(store->Put(KeyOf(1), {"x"}).ok());
  }
}

TEST(RedisStore, ClosedInTheMiddleOfAValue) {
  RedisHead head;
  const std::string payload = Bytes(1, 5000);
  head.header = MakeBlobHeader(KeyOf(1), {payload});
  std::string value(kRedisHeadBytes, '\0');
  head.Write(reinterpret_cast<uint8_t*>(value.data()));
  value += payload;
  for (size_t size :
       {size_t{0}, size_t{10}, kRedisHeadBytes, kRedisHeadBytes + 100, value.size() - 1}) {
    const FakeServer server([&](FakeServer::Peer& peer) {
      for (;;) {
        const std::string command = peer.Receive();
        if (command.empty()) return;
        if (command.find("CLUSTER") != command.npos) {
          peer.Send("-ERR no cluster\r\n");
          continue;
        }
        peer.Send(StrCat("$", value.size(), "\r\n", value.substr(0, size)));
        return;
      }
    });
    const auto store = StoreAt(StrCat("redis://127.0.0.1:", server.port()));
    EXPECT_TRUE(absl::IsUnavailable(store->Get(KeyOf(1)).status())) << size;
  }
}

TEST(RedisCluster, SlotsAreThoseOfTheSpecification) {
  EXPECT_EQ(RedisSlot("123456789"), 0x31C3 % 16384);
  EXPECT_EQ(RedisSlot("{user1000}.following"), RedisSlot("{user1000}.followers"));
  EXPECT_EQ(RedisSlot("foo{}{bar}"), RedisSlot("foo{}{bar}"));
  RedisServer server({"--cluster-enabled", "yes", "--cluster-port", std::to_string(FreePort())});
  for (const char* key : {"foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}", "{", "}{", "a{b", ""})
    EXPECT_EQ(server.Call({"CLUSTER", "KEYSLOT", key}).integer, RedisSlot(key)) << key;
}

// A slot that moves while blobs of it are read and written: MOVED, and ASK before it.
TEST(RedisCluster, FollowsMovedAndAsk) {
  RedisCluster cluster;
  const auto store = StoreAt(cluster.Url());
  int n = 0;
  while (RedisSlot(MainName(KeyOf(n))) > 5460) ++n;  // of node 0
  const std::string main = MainName(KeyOf(n)), slot = std::to_string(RedisSlot(main));
  ASSERT_TRUE(store->Put(KeyOf(n), {Bytes(1, 9000)}).ok());
  // ASK: the slot is on its way, this key has gone ahead.
  const std::string from = cluster.Id(0), to = cluster.Id(1);
  cluster.node(1).Call({"CLUSTER", "SETSLOT", slot, "IMPORTING", from});
  cluster.node(0).Call({"CLUSTER", "SETSLOT", slot, "MIGRATING", to});
  cluster.node(0).Call(
      {"MIGRATE", "127.0.0.1", std::to_string(cluster.node(1).port()), main, "0", "5000"});
  const RespReply ask = cluster.node(0).Call({"GET", main});
  ASSERT_TRUE(ask.is_error("ASK ")) << ask.text;
  EXPECT_TRUE(TextOf(store->Get(KeyOf(n))) == Bytes(1, 9000));
  EXPECT_TRUE(store->Contains(KeyOf(n)));
  // MOVED: it has arrived, and the store does not know yet.
  for (int i : {1, 0, 2}) cluster.node(i).Call({"CLUSTER", "SETSLOT", slot, "NODE", to});
  ASSERT_TRUE(cluster.node(0).Call({"GET", main}).is_error("MOVED "));
  EXPECT_TRUE(TextOf(store->Get(KeyOf(n))) == Bytes(1, 9000));
  EXPECT_TRUE(store->Put(KeyOf(n), {Bytes(2, 9000)}).ok());
  EXPECT_TRUE(TextOf(store->Get(KeyOf(n))) == Bytes(2, 9000));
}

// Slots move away, key by key as `redis-cli --cluster reshard` does it, while blobs of several
// pieces are read and written: whatever is read is right, and once a slot has arrived nothing is
// missing.
TEST(RedisCluster, SlotsMoveUnderTraffic) {
  RedisCluster cluster;
  constexpr int kBlobs = 12;
  const std::string url = cluster.Url("?piece_bytes=4096&timeout_ms=20000");
  const auto store = StoreAt(url);
  std::vector<int> moving;  // blobs of node 0
  for (int n = 0; static_cast<int>(moving.size()) < kBlobs; ++n)
    if (RedisSlot(MainName(KeyOf(n))) <= 5460) moving.push_back(n);
  for (int n : moving) ASSERT_TRUE(store->Put(KeyOf(n), {Bytes(n, 17000)}).ok());
  std::atomic<bool> done{false};
  std::atomic<int> right{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t)
    readers.emplace_back([&] {
      const auto own = StoreAt(url);
      for (int i = 0; !done; ++i) {
        const int n = moving[i % kBlobs];
        const auto blob = own->Get(KeyOf(n));
        if (blob.ok()) {
          EXPECT_TRUE(TextOf(blob) == Bytes(n, 17000)) << n;
          ++right;
        } else {
          EXPECT_TRUE(absl::IsNotFound(blob.status())) << "a miss, no error: " << blob.status();
        }
        EXPECT_TRUE(own->CountPresent({KeyOf(n)}, kNoDeadline).ok());
      }
    });
  const std::string from = cluster.Id(0), to = cluster.Id(1);
  const std::string port = std::to_string(cluster.node(1).port());
  int num_asked = 0;
  for (int n : moving) {
    const std::string slot = std::to_string(RedisSlot(MainName(KeyOf(n))));
    cluster.node(1).Call({"CLUSTER", "SETSLOT", slot, "IMPORTING", from});
    cluster.node(0).Call({"CLUSTER", "SETSLOT", slot, "MIGRATING", to});
    const RespReply keys = cluster.node(0).Call({"CLUSTER", "GETKEYSINSLOT", slot, "100"});
    EXPECT_GE(keys.elements.size(), 5u) << "the blob and its pieces";
    for (const RespReply& key : keys.elements) {
      cluster.node(0).Call({"MIGRATE", "127.0.0.1", port, key.text, "0", "5000"});
      num_asked += cluster.node(0).Call({"GET", key.text}).is_error("ASK ");
      // In the middle of it: a write, which may fail but leaves nothing wrong, and a read.
      const absl::Status put = store->Put(KeyOf(n), {Bytes(n, 17000)});
      const auto blob = store->Get(KeyOf(n));
      EXPECT_TRUE(blob.ok() ? TextOf(blob) == Bytes(n, 17000) : absl::IsNotFound(blob.status()))
          << blob.status() << put;
    }
    // What came back to the old node while the slot was open goes, too; else it would be lost.
    for (const RespReply& key :
         cluster.node(0).Call({"CLUSTER", "GETKEYSINSLOT", slot, "100"}).elements)
      cluster.node(0).Call({"MIGRATE", "127.0.0.1", port, key.text, "0", "5000", "REPLACE"});
    for (int i : {1, 0, 2}) cluster.node(i).Call({"CLUSTER", "SETSLOT", slot, "NODE", to});
  }
  EXPECT_GT(num_asked, kBlobs);
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(right, 0);
  for (int n : moving) {
    const absl::Status put = store->Put(KeyOf(n), {Bytes(n, 17000)});
    EXPECT_TRUE(put.ok()) << put;
    EXPECT_TRUE(TextOf(store->Get(KeyOf(n))) == Bytes(n, 17000)) << n;
    EXPECT_TRUE(TextOf(StoreAt(url)->Get(KeyOf(n))) == Bytes(n, 17000)) << n;
  }
}

TEST(RedisCluster, ADeadMasterCostsItsOwnSlotsOnly) {
  RedisCluster cluster;
  const auto store = StoreAt(cluster.Url("?timeout_ms=2000"));
  std::vector<int> of_node[3];
  for (int n = 0; n < 60; ++n) {
    const int slot = RedisSlot(MainName(KeyOf(n)));
    of_node[slot < 5461 ? 0 : slot < 10923 ? 1 : 2].push_back(n);
    ASSERT_TRUE(store->Put(KeyOf(n), {Bytes(n, 1000)}).ok());
  }
  cluster.node(2).Kill();
  for (int n : of_node[0]) EXPECT_TRUE(TextOf(store->Get(KeyOf(n))) == Bytes(n, 1000));
  EXPECT_FALSE(store->Get(KeyOf(of_node[2][0])).ok());
  for (int n : of_node[1]) EXPECT_TRUE(TextOf(store->Get(KeyOf(n))) == Bytes(n, 1000));
}

// Case 64: verification is on, and off only by an explicit parameter; no secret is ever printed.
TEST(RedisStore, Case64CertificatesAreVerified) {
  const std::filesystem::path folder = NewTestFolder();
  ASSERT_TRUE(MakeCertificates(folder));
  const std::string at = folder.string();
  for (const std::string& which : {"good", "other", "old"}) {
    if (!std::filesystem::exists(at + "/" + which + ".pem")) {
      ADD_FAILURE() << "no certificate " << which;
      continue;
    }
    const int port = FreePort();
    RedisServer server({"--tls-port", std::to_string(port), "--tls-cert-file",
                        at + "/" + which + ".pem", "--tls-key-file", at + "/" + which + ".key",
                        "--tls-ca-cert-file", at + "/ca.pem", "--tls-auth-clients", "no"});
    const std::string url = StrCat("rediss://localhost:", port);
    EXPECT_TRUE(absl::IsPermissionDenied(StoreAt(url)->Get(KeyOf(1)).status()))
        << "signed by nobody known";
    const absl::Status status = StoreAt(url + "?ca_file=" + at + "/ca.pem")->Get(KeyOf(1)).status();
    if (which == "good")
      EXPECT_TRUE(absl::IsNotFound(status)) << status;
    else
      EXPECT_TRUE(absl::IsPermissionDenied(status)) << which << ": " << status;
    EXPECT_TRUE(absl::IsNotFound(StoreAt(url + "?tls_verify=0")->Get(KeyOf(1)).status()));
  }
  std::filesystem::remove_all(folder);
}

TEST(RedisStore, Case64SecretsAreNeverPrinted) {
  RedisServer server({"--requirepass", "other"});
  std::string said;
  StoreOptions options;
  options.on_notice = [&](std::string_view text) { said += std::string(text) + "\n"; };
  // A server that quotes the arguments it was given, as old ones do with AUTH and HELLO.
  const FakeServer quoting([](FakeServer::Peer& peer) {
    for (std::string command; !(command = peer.Receive()).empty();) {
      for (char& c : command)
        if (c == '\r' || c == '\n') c = ' ';
      peer.Send("-ERR unknown command, with args beginning with: " + command + "\r\n");
    }
  });
  for (int port : {server.port(), quoting.port(), FreePort()})
    for (const char* who : {"u:SENTINEL@", ":SENTINEL@", "SENTINEL:SENTINEL@"}) {
      auto store = OpenStore(StrCat("redis://", who, "127.0.0.1:", port, "?protocol=3"), options);
      ASSERT_TRUE(store.ok());
      for (int i = 0; i < 5; ++i) said += (*store)->Get(KeyOf(1)).status().ToString() + "\n";
      said += (*store)->Put(KeyOf(1), {"x"}).ToString() + "\n" + (*store)->Name();
    }
  for (const char* url : {"redis://u:SENTINEL@h:99999", "redis://u:SENTINEL@h?x=SENTINEL&nope=1",
                          "redis://u:SENTINEL%zz@h", "http://u:SENTINEL@h", "s3://SENTINEL:x@b",
                          "redis://u:SENTINEL@h/notanumber"})
    said += OpenStore(url, options).status().ToString() + RedactedStoreList(url) + "\n";
  EXPECT_EQ(said.find("SENTINEL"), said.npos) << said;
  EXPECT_NE(said.find("WRONGPASS"), said.npos) << "the code is told";
  EXPECT_NE(said.find("left alone for a while"), said.npos);
}

}  // namespace
}  // namespace vericache
