// Answers do not depend on what the prefix cache holds: cold, from RAM, from a store, after a
// restart. Damage and public bug reports: prefix_cases_test.cc.
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/prefix/prefix_fixture.h"
#include "vericache/engine.h"

namespace vericache {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSpecs[] = {"off",
                                  "verify:0.25+int4",
                                  "snapkv:0.3",
                                  "int4",
                                  "kvzip:0.3,chunk=64",
                                  "h2o:0.3",
                                  "verify:0.3,floor=0.15,chunk=64"};

class PrefixCacheTest : public PrefixFixture {};

// Prompts that share: identical, one a prefix of another, another tail within a block, a question
// behind a document, nothing in common, shorter than a block.
std::vector<std::vector<int32_t>> SharingPrompts() {
  const std::vector<int32_t> document = TestPrompt(200, 3);
  return {document + TestPrompt(40, 9),
          document + TestPrompt(40, 9),
          document + TestPrompt(9, 11),
          document,
          {document.begin(), document.begin() + 128},
          {document.begin(), document.begin() + 129},
          {document.begin(), document.begin() + 100},
          {document.begin(), document.begin() + 100},
          document + TestPrompt(100, 12),
          TestPrompt(90, 77),
          TestPrompt(5, 78),
          TestPrompt(5, 78),
          TestPrompt(1, 79)};
}

TEST_F(PrefixCacheTest, ColdWarmAndRestartedAnswersAreEqual) {
  const auto plain = Load(Options());
  std::vector<Answer> want;
  for (const auto& prompt : SharingPrompts())
    want.push_back(AnswerOf(plain->Generate(Ask(prompt))));
  for (const char* spec : kSpecs) {
    fs::remove_all(store_);
    EngineOptions both = WithStore();
    both.prefix_memory_bytes = 64 << 20;
    for (const EngineOptions& options : {WithMemory(), WithStore(), WithStore(), both}) {
      const auto engine = Load(options);
      for (size_t i = 0; i < want.size(); ++i) {
        SCOPED_TRACE(std::string(spec) + " prompt " + std::to_string(i));
        const auto got = engine->Generate(Ask(SharingPrompts()[i], spec));
        EXPECT_EQ(AnswerOf(got), want[i]);
        EXPECT_LT(got->usage.cached_tokens, got->usage.prompt_tokens);
        engine->WaitForPrefixWrites();
      }
      EXPECT_GT(engine->prefix_stats().found_tokens, 600);
      EXPECT_EQ(engine->prefix_stats().damaged, 0);
    }
  }
}

TEST_F(PrefixCacheTest, MemoryMatchesByToken) {
  const auto engine = Load(WithMemory());
  const std::vector<int32_t> document = TestPrompt(150, 3);
  EXPECT_EQ(engine->Generate(Ask(document + TestPrompt(10, 4)))->usage.cached_tokens, 0);
  EXPECT_EQ(engine->Generate(Ask(document + TestPrompt(10, 5)))->usage.cached_tokens, 150);
  EXPECT_EQ(engine->Generate(Ask(document))->usage.cached_tokens, 149);
  // The answers' tokens are kept, too: the next turn of a chat begins with them.
  const auto first = engine->Generate(Ask(TestPrompt(70, 6)));
  const auto turn = TestPrompt(70, 6) + first->token_ids + TestPrompt(30, 7);
  EXPECT_EQ(engine->Generate(Ask(turn))->usage.cached_tokens, 70 + 19);  // the last has no K/V
}

TEST_F(PrefixCacheTest, TheStoreMatchesByBlockAcrossRestarts) {
  const std::vector<int32_t> document = TestPrompt(150, 3);
  std::vector<int32_t> turn;
  {
    const auto engine = Load(WithStore());
    const auto first = engine->Generate(Ask(document, "off", 60));
    EXPECT_EQ(first->usage.cached_tokens, 0);
    turn = document + first->token_ids + TestPrompt(20, 8);
  }
  const auto engine = Load(WithStore());
  EXPECT_EQ(engine->Generate(Ask(turn))->usage.cached_tokens, 192);  // 209 rows: three blocks
  EXPECT_EQ(engine->Generate(Ask(document))->usage.cached_tokens, 128);
  EXPECT_EQ(engine->Generate(Ask(document + TestPrompt(100, 2)))->usage.cached_tokens, 128);
  const PrefixCacheStats stats = engine->prefix_stats();
  EXPECT_EQ(stats.lookups, 3);
  EXPECT_EQ(stats.store_hits, 3);
  EXPECT_EQ(stats.found_tokens, 192 + 128 + 128);
  EXPECT_GT(stats.read_bytes, 0u);
}

// What costs nothing is kept as well: a warm run drafts exactly as a cold one did.
TEST_F(PrefixCacheTest, WarmDraftsAreThoseOfAColdRun) {
  for (const char* spec :
       {"verify:0.25+int4", "snapkv:0.3", "int4", "sink:0.2", "verify:0.2+int2"}) {
    for (int64_t n : {150, 192, 193, 200, 220, 255, 256}) {
      SCOPED_TRACE(std::string(spec) + " " + std::to_string(n) + " tokens");
      fs::remove_all(store_);
      const auto cold = Load(WithStore())->Generate(Ask(TestPrompt(n, 3), spec, 30));
      const auto warm = Load(WithStore())->Generate(Ask(TestPrompt(n, 3), spec, 30));
      EXPECT_GE(warm->usage.cached_tokens, 128);
      EXPECT_EQ(warm->token_ids, cold->token_ids);
      ASSERT_FALSE(cold->stats.records.empty());
      // The first round's draft is bit for bit the same one.
      EXPECT_EQ(warm->stats.records[0].accepted, cold->stats.records[0].accepted);
      EXPECT_EQ(warm->stats.records[0].draft_bytes, cold->stats.records[0].draft_bytes);
    }
  }
}

// "So that a second run needs neither prefill nor scoring."
TEST_F(PrefixCacheTest, ScoresComeBackFromMemoryAndStore) {
  for (const char* spec :
       {"kvzip:0.3,chunk=64", "expected:0.3", "h2o:0.3", "verify:0.3,floor=0.15,chunk=64"}) {
    for (const EngineOptions& options : {WithMemory(), WithStore()}) {
      SCOPED_TRACE(spec);
      fs::remove_all(store_);
      auto engine = Load(options);
      const auto cold = engine->Generate(Ask(TestPrompt(260, 3), spec));
      if (!options.prefix_store.empty()) engine = nullptr, engine = Load(options);
      int passes = 0;
      Callbacks callbacks;
      callbacks.on_prefill = [&](int64_t, int64_t) { return ++passes > 0; };
      const auto warm = engine->Generate(Ask(TestPrompt(260, 3), spec), nullptr, callbacks);
      EXPECT_EQ(AnswerOf(warm), AnswerOf(cold));
      EXPECT_EQ(passes, 1) << "the last rows and nothing else";
    }
  }
}

TEST_F(PrefixCacheTest, BatchesSharePrefixes) {
  const std::vector<int32_t> document = TestPrompt(200, 3);
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i)
    requests.push_back(Ask(document + TestPrompt(30 + i, 50 + i), "int4"));
  const auto want = Load(Options())->GenerateBatch(requests);
  const auto engine = Load(WithMemory());
  const auto got = engine->GenerateBatch(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(AnswerOf(got[i]), AnswerOf(want[i]));
    EXPECT_EQ(got[i]->usage.cached_tokens, i == 0 ? 0 : 200);
  }
}

TEST_F(PrefixCacheTest, ASessionWinsWhereItIsLonger) {
  const std::vector<int32_t> document = TestPrompt(150, 3), next = document + TestPrompt(10, 4);
  const auto plain = Load(Options());
  const Answer want = AnswerOf(plain->Generate(Ask(next)));
  const auto engine = Load(WithStore());
  auto session = engine->Prefill(Ask(document));
  ASSERT_TRUE(session.ok());
  engine->WaitForPrefixWrites();
  Session longer = session->Fork();
  const auto from_session = engine->Generate(Ask(next), &longer);
  EXPECT_EQ(from_session->usage.cached_tokens, 150);
  EXPECT_EQ(AnswerOf(from_session), want);
  Session other = *engine->Prefill(Ask(TestPrompt(40, 70)));
  const auto from_store = engine->Generate(Ask(next), &other);
  EXPECT_EQ(from_store->usage.cached_tokens, 128);
  EXPECT_EQ(AnswerOf(from_store), want);
  // The session holds the whole conversation, wherever its rows came from.
  EXPECT_EQ(other.token_ids().size(), next.size() + 19);
  EXPECT_EQ(engine->Generate(Ask(next), &other)->usage.cached_tokens,
            static_cast<int64_t>(next.size()) - 1);
}

TEST_F(PrefixCacheTest, AStoppedPrefillIsNotLost) {
  EngineOptions options = WithStore();
  options.prefill_chunk = 100;
  const Request request = Ask(TestPrompt(450, 3), "verify:0.25+int4");
  const Answer want = AnswerOf(Load(Options())->Generate(request));
  {
    const auto engine = Load(options);
    Callbacks stop;
    stop.on_prefill = [](int64_t done, int64_t) { return done < 300; };
    EXPECT_EQ(engine->Generate(request, nullptr, stop).status().code(),
              absl::StatusCode::kCancelled);
  }
  const auto got = Load(options)->Generate(request);
  EXPECT_EQ(got->usage.cached_tokens, 256);
  EXPECT_EQ(AnswerOf(got), want);
}

TEST_F(PrefixCacheTest, ARequestMayKeepOut) {
  const auto engine = Load(WithMemory());
  Request request = Ask(TestPrompt(150, 3));
  request.use_prefix_cache = false;
  ASSERT_TRUE(engine->Generate(request).ok());
  EXPECT_EQ(engine->Generate(request)->usage.cached_tokens, 0);
  EXPECT_EQ(engine->prefix_stats().lookups, 0);
  EXPECT_EQ(engine->prefix_stats().memory_bytes, 0u);
}

TEST_F(PrefixCacheTest, MemoryKeepsItsBudget) {
  EngineOptions options = WithMemory();
  const int64_t per_token = Load(Options())->info().kv_bytes_per_token;
  options.prefix_memory_bytes = 300 * per_token;
  const auto engine = Load(options);
  const auto plain = Load(Options());
  for (int i = 0; i < 6; ++i) {
    const Request request = Ask(TestPrompt(140, 3 + i % 4));
    EXPECT_EQ(AnswerOf(engine->Generate(request)), AnswerOf(plain->Generate(request)));
    EXPECT_LE(engine->prefix_stats().memory_bytes, options.prefix_memory_bytes);
  }
  // One that is larger than the budget leaves its beginning.
  const Request large = Ask(TestPrompt(700, 5));
  const Answer want = AnswerOf(plain->Generate(large));
  EXPECT_EQ(AnswerOf(engine->Generate(large)), want);
  const auto again = engine->Generate(large);
  EXPECT_EQ(AnswerOf(again), want);
  EXPECT_GT(again->usage.cached_tokens, 128);
  EXPECT_LT(again->usage.cached_tokens, 300);
}

TEST_F(PrefixCacheTest, ReadOnlyWritesNothing) {
  ASSERT_TRUE(Load(WithStore())->Generate(Ask(TestPrompt(150, 3))).ok());
  // Damage must be left in place, too.
  const fs::path victim = Blobs().back();
  fs::resize_file(victim, fs::file_size(victim) - 1);
  const auto listing = [&] {
    std::set<std::string> lines;
    for (const auto& entry : fs::recursive_directory_iterator(store_)) {
      struct stat info;
      EXPECT_EQ(lstat(entry.path().c_str(), &info), 0);
      lines.insert(entry.path().string() + " " + std::to_string(info.st_size) + " " +
                   std::to_string(info.st_mtim.tv_sec) + "." +
                   std::to_string(info.st_mtim.tv_nsec));
    }
    return lines;
  };
  const auto before = listing();
  EngineOptions options = WithStore();
  options.prefix_store_mode = "ro";
  {
    const auto engine = Load(options);
    EXPECT_GE(engine->Generate(Ask(TestPrompt(150, 3)))->usage.cached_tokens, 0);
    ASSERT_TRUE(engine->Generate(Ask(TestPrompt(300, 4))).ok());
    EXPECT_EQ(engine->prefix_stats().written_bytes, 0u);
  }
  EXPECT_EQ(listing(), before);
  options.prefix_store = folder_ / "none";
  EXPECT_EQ(Engine::Load(options).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(options.prefix_store));
  options.prefix_store_mode = "wo";
  EXPECT_EQ(Engine::Load(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace vericache
