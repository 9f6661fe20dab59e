// An engine over stores that misbehave: the same answer always, bit for bit, and told by figures.
#include <filesystem>

#include "remote/redis_store.h"
#include "tests/prefix/prefix_fixture.h"
#include "tests/remote/fake_s3.h"
#include "tests/remote/redis_server.h"
#include "tests/remote/store_contract.h"
#include "vericache/prefixes.h"

namespace vericache {
namespace {

using std::chrono::milliseconds;
using Peer = FakeServer::Peer;

// Whether something is found must not depend on how busy this machine is.
std::string Patient(const RedisServer& server) {
  return server.Url("?wait_ms=60000&timeout_ms=60000");
}

class RemoteEngineTest : public PrefixFixture {
 protected:
  EngineOptions At(const std::string& store) {
    EngineOptions options = Options();
    options.prefix_store = store;
    options.environment = [](const std::string& name) -> std::string {
      if (name == "AWS_ACCESS_KEY_ID" || name == "AWS_SECRET_ACCESS_KEY") return "x";
      return "";
    };
    options.on_notice = [this](std::string_view text) { notices_ += std::string(text) + "\n"; };
    return options;
  }
  Answer Plain(const Request& request) { return AnswerOf(Load(Options())->Generate(request)); }
  std::string notices_;
};

TEST_F(RemoteEngineTest, WarmFromRedisIsColdBitForBit) {
  RedisServer server;
  for (const char* draft : {"off", "verify:0.25+int4", "h2o:0.3"}) {
    const Request request = Ask(TestPrompt(400, 5), draft);
    const Answer plain = Plain(request);
    EXPECT_EQ(AnswerOf(Load(At(Patient(server)))->Generate(request)), plain);
    const auto warm = Load(At(Patient(server)));  // another process would see the same
    const auto completion = warm->Generate(request);
    EXPECT_EQ(AnswerOf(completion), plain) << draft;
    EXPECT_GE(completion->usage.cached_tokens, 400 - 64 - 32) << draft;
    EXPECT_GT(warm->prefix_stats().read_bytes, 0u);
  }
  EXPECT_EQ(notices_.find("left alone"), notices_.npos) << notices_;
}

TEST_F(RemoteEngineTest, Case58EvictedBetweenLookUpAndRead) {
  RedisServer server;
  const Request request = Ask(TestPrompt(500, 5));
  const Answer plain = Plain(request);
  (void)Load(At(Patient(server)))->Generate(request);
  // Every third blob goes, then a change in each of what is left; hints still say "there".
  const RespReply keys = server.Call({"KEYS", "*"});
  ASSERT_GT(keys.elements.size(), 6u);
  for (size_t i = 0; i < keys.elements.size(); i += 3) server.Call({"DEL", keys.elements[i].text});
  EXPECT_EQ(AnswerOf(Load(At(Patient(server)))->Generate(request)), plain);
  for (const RespReply& key : server.Call({"KEYS", "*"}).elements)
    server.Call({"SETRANGE", key.text, "500", "changed"});
  const auto engine = Load(At(Patient(server)));
  EXPECT_EQ(AnswerOf(engine->Generate(request)), plain);
  EXPECT_GT(engine->prefix_stats().damaged, 0);
  engine->WaitForPrefixWrites();
  const auto warm = Load(At(Patient(server)));
  const auto completion = warm->Generate(request);
  EXPECT_EQ(AnswerOf(completion), plain);
  EXPECT_GE(completion->usage.cached_tokens, 448) << "what was damaged has been put anew";
}

TEST_F(RemoteEngineTest, Case59KilledOrStoppedWhileItIsRead) {
  RedisServer server;
  const Request request = Ask(TestPrompt(500, 5));
  const Answer plain = Plain(request);
  (void)Load(At(Patient(server)))->Generate(request);
  const auto engine = Load(At(Patient(server)));
  std::atomic<bool> done{false};
  std::thread killer([&] {
    for (int i = 0; !done; ++i) {
      std::this_thread::sleep_for(milliseconds(i % 3));
      server.Stop();
      std::this_thread::sleep_for(milliseconds(2));
      server.Continue();
    }
  });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(AnswerOf(engine->Generate(request)), plain);
  done = true;
  killer.join();
  server.Kill();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(AnswerOf(engine->Generate(request)), plain);
  EXPECT_GT(engine->prefix_stats().store_errors, 0);
  EXPECT_NE(notices_.find("left alone for a while"), notices_.npos);
}

// A store that never answers, or a byte at a time, costs as long as computing would, and then is
// not asked any more.
TEST_F(RemoteEngineTest, Case59HangingAndDrippingStores) {
  const Request request = Ask(TestPrompt(300, 5));
  const Answer plain = Plain(request);
  const auto hang = [](Peer& peer) { peer.HangUntilTheEnd(); };
  const auto drip = [](Peer& peer) {
    const std::string asked = peer.Receive();
    const std::string head = asked.starts_with("*") ? "" : "HTTP/1.1 200 OK\r\nX-Slow: ";
    if (!asked.empty()) peer.Drip(head + std::string(100000, '1'), milliseconds(1));
  };
  for (const std::function<void(Peer&)>& serve :
       {std::function<void(Peer&)>(hang), std::function<void(Peer&)>(drip)}) {
    for (const std::string& scheme :
         {std::string("redis://127.0.0.1:"), std::string("s3://b/p?endpoint=http://127.0.0.1:")}) {
      const FakeServer server(serve);
      const std::string more = scheme[0] == 's' ? "&timeout_ms=400" : "?timeout_ms=400";
      const auto engine = Load(At(StrCat(scheme, server.port(), more)));
      for (int i = 0; i < 4; ++i) EXPECT_EQ(AnswerOf(engine->Generate(request)), plain);
      engine->WaitForPrefixWrites();
      const PrefixCacheStats stats = engine->prefix_stats();
      EXPECT_GT(stats.store_errors, 0);
      EXPECT_GT(stats.store_late, 0);
      EXPECT_GT(stats.store_skipped, 0) << "the breaker has opened";
      EXPECT_EQ(stats.store_hits, 0);
    }
  }
}

TEST_F(RemoteEngineTest, Case61S3Refuses) {
  const Request request = Ask(TestPrompt(300, 5));
  const Answer plain = Plain(request);
  for (const char* code : {"ExpiredToken", "RequestTimeTooSkewed", "AccessDenied", "SlowDown"}) {
    std::atomic<bool> refusing{false};
    FakeS3 s3([&](const FakeRequest&, Peer& peer) {
      if (!refusing) return false;
      const bool slow = std::string(code) == "SlowDown";
      return peer.Send(FakeS3::Error(slow ? "503 Slow Down" : "403 Forbidden", code)), true;
    });
    EXPECT_EQ(AnswerOf(Load(At(s3.Url()))->Generate(request)), plain);
    const auto warm = Load(At(s3.Url()));
    const auto completion = warm->Generate(request);
    EXPECT_EQ(AnswerOf(completion), plain);
    EXPECT_GE(completion->usage.cached_tokens, 256);
    refusing = true;
    for (int i = 0; i < 4; ++i) EXPECT_EQ(AnswerOf(warm->Generate(request)), plain) << code;
    EXPECT_GT(warm->prefix_stats().store_errors, 0);
    EXPECT_NE(notices_.find(code), notices_.npos) << notices_;
  }
}

// Each at once for every read: the same answer, and what happened is counted.
TEST_F(RemoteEngineTest, Case62WrongBytesAndLengths) {
  const Request request = Ask(TestPrompt(300, 5), "h2o:0.3");
  const Answer plain = Plain(request);
  for (const std::string how : {"byte", "short", "long", "empty", "other"}) {
    std::atomic<bool> lying{false};
    FakeS3* server = nullptr;
    FakeS3 s3([&](const FakeRequest& r, Peer& peer) {
      if (!lying || r.method != "GET") return false;
      std::string bytes = server->Get(r.path).bytes;
      if (bytes.empty()) return false;
      if (how == "byte") bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
      if (how == "short") bytes.resize(bytes.size() - 1);
      if (how == "long") bytes += "x";
      if (how == "empty") bytes.clear();
      if (how == "other") bytes = server->Get(server->seen()[0].path).bytes + bytes;
      return peer.Send(FakeS3::Answer("200 OK", "ETag: \"e\"\r\n", bytes)), true;
    });
    server = &s3;
    EXPECT_EQ(AnswerOf(Load(At(s3.Url()))->Generate(request)), plain);
    lying = true;
    const auto engine = Load(At(s3.Url()));
    const auto completion = engine->Generate(request);
    EXPECT_EQ(AnswerOf(completion), plain) << how;
    EXPECT_EQ(completion->usage.cached_tokens, 0) << how;
    EXPECT_GT(engine->prefix_stats().damaged, 0) << how;
  }
}

// A store that is full, a disk that is: nothing of it is kept, nothing else happens.
TEST_F(RemoteEngineTest, AFullStoreCostsHitsOnly) {
  const Request request = Ask(TestPrompt(300, 5));
  const Answer plain = Plain(request);
  RedisServer server({"--maxmemory", "1", "--maxmemory-policy", "noeviction"});
  FakeS3 s3([](const FakeRequest& r, Peer& peer) {
    if (r.method != "PUT") return false;
    return peer.Send(FakeS3::Error("507 Insufficient Storage", "QuotaExceeded")), true;
  });
  for (const std::string& url : {Patient(server), s3.Url()}) {
    const auto engine = Load(At(url));
    for (int i = 0; i < 2; ++i) EXPECT_EQ(AnswerOf(engine->Generate(request)), plain) << url;
    engine->WaitForPrefixWrites();
    EXPECT_GT(engine->prefix_stats().failed_writes, 0) << url;
    EXPECT_EQ(AnswerOf(Load(At(url))->Generate(request)), plain);
  }
  // It is used again once there is room.
  server.Call({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_EQ(AnswerOf(Load(At(Patient(server)))->Generate(request)), plain);
  const auto warm = Load(At(Patient(server)))->Generate(request);
  EXPECT_EQ(AnswerOf(warm), plain);
  EXPECT_GE(warm->usage.cached_tokens, 256);
}

// The clock is wrong, the credentials have expired, from the first request on: said once, in words
// that say what to do.
TEST_F(RemoteEngineTest, Case61WhatWillNotHealIsSaidAtOnce) {
  const Request request = Ask(TestPrompt(300, 5));
  const Answer plain = Plain(request);
  const std::pair<const char*, const char*> cases[] = {{"RequestTimeTooSkewed", "clock"},
                                                       {"ExpiredToken", "ExpiredToken"}};
  for (const auto& [code, says] : cases) {
    notices_.clear();
    FakeS3 s3([&](const FakeRequest&, Peer& peer) {
      return peer.Send(FakeS3::Error("403 Forbidden", code)), true;
    });
    const auto engine = Load(At(s3.Url()));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(AnswerOf(engine->Generate(request)), plain) << code;
    engine->WaitForPrefixWrites();
    const size_t told = notices_.find("cannot be used");
    EXPECT_NE(told, notices_.npos) << notices_;
    EXPECT_EQ(notices_.find("cannot be used", told + 1), notices_.npos) << notices_;
    EXPECT_NE(notices_.find(says), notices_.npos) << notices_;
    EXPECT_GT(engine->prefix_stats().store_errors, 0);
    EXPECT_GT(engine->prefix_stats().store_skipped, 0) << "the breaker has opened";
  }
}

TEST_F(RemoteEngineTest, TiersGoOnWhenOneFails) {
  RedisServer server;
  const Request request = Ask(TestPrompt(300, 5));
  const Answer plain = Plain(request);
  const std::string both = StrCat(store_.string(), ",", Patient(server));
  (void)Load(At(Patient(server)))->Generate(request);
  {
    const auto engine = Load(At(both));
    EXPECT_EQ(AnswerOf(engine->Generate(request)), plain);
  }
  EXPECT_GT(Blobs().size(), 3u) << "written back";
  server.Kill();
  const auto engine = Load(At(both));
  const auto completion = engine->Generate(request);
  EXPECT_EQ(AnswerOf(completion), plain);
  EXPECT_GE(completion->usage.cached_tokens, 256);
}

TEST_F(RemoteEngineTest, PushedDraftsAreThoseOfTheWholeBlocks) {
  RedisServer server;
  const auto engine = Load(At(Patient(server)));
  Request request = Ask(TestPrompt(300, 5));
  PrefixPushOptions push;
  push.drafts = {"verify:0.25+int4", "expected:0.3", "kvzip:0.3+int4"};
  const auto report = engine->PushPrefix(request, push);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->stored_tokens, 256);
  EXPECT_EQ(report->drafts.size(), 3u);
  // The prompt of just these blocks continues the stored draft.
  const Request whole = Ask(TestPrompt(300, 5), "verify:0.25+int4");
  Request blocks = whole;
  blocks.prompt_token_ids.resize(256);
  const auto warm = Load(At(Patient(server)))->Generate(blocks);
  EXPECT_EQ(AnswerOf(warm), Plain(blocks));
  EXPECT_EQ(warm->usage.cached_tokens, 255);
  EXPECT_TRUE(absl::IsInvalidArgument(engine->PushPrefix(Ask(TestPrompt(63, 5)), push).status()));
  push.drafts = {"nonsense"};
  EXPECT_TRUE(absl::IsInvalidArgument(engine->PushPrefix(request, push).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Load(Options())->PushPrefix(request, {}).status()));
}

}  // namespace
}  // namespace vericache
