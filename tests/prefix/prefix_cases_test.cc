// Public bug reports about prefix caches, replayed by number: 10, 11, 13, 14, 46.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gtest/gtest.h"
#include "tests/prefix/prefix_fixture.h"
#include "tests/support/tiny_model.h"

namespace vericache {
namespace {

namespace fs = std::filesystem;

class PrefixCasesTest : public PrefixFixture {};

// Case 10: predictable hashes let a chosen prompt be served another's K/V. With keys of 8 bits
// nearly every key is somebody else's; token ids decide.
TEST_F(PrefixCasesTest, Case10CollidingKeysAreMisses) {
  EngineOptions options = WithStore();
  options.prefix_digest_bits_for_tests = 8;
  const auto plain = Load(Options());
  auto engine = Load(options);
  std::vector<int32_t> ids;
  for (int i = 0; i < 500; ++i) {
    // Two blocks of few kinds each: the same second block behind many first ones.
    const auto prompt =
        TestPrompt(64, 1 + i % 37) + TestPrompt(64, 1000 + i % 11) + TestPrompt(3, i);
    const Request request = Ask(prompt, "off", 2);
    ASSERT_EQ(AnswerOf(engine->Generate(request)), AnswerOf(plain->Generate(request))) << i;
    if (i % 7 == 0) engine->WaitForPrefixWrites();
    if (i == 250) engine = nullptr, engine = Load(options);
  }
  EXPECT_GT(engine->prefix_stats().store_hits, 20) << "what does not collide hits";
  EXPECT_LE(engine->prefix_stats().store_blobs, 256);
}

// Case 11: (a) tenants; fields of the key itself: src/kv/prefix_key_test.cc.
TEST_F(PrefixCasesTest, Case11aSaltsShareNothing) {
  for (const EngineOptions& options : {WithStore(), WithMemory()}) {
    const auto engine = Load(options);
    Request request = Ask(TestPrompt(150, 3));
    request.prefix_salt = "x";
    ASSERT_TRUE(engine->Generate(request).ok());
    engine->WaitForPrefixWrites();
    for (const char* salt : {"", "y", "xx", "model x"}) {
      request.prefix_salt = salt;
      request.max_tokens = 0;
      EXPECT_EQ(engine->Generate(request)->usage.cached_tokens, 0) << salt;
    }
    request.prefix_salt = "x";
    EXPECT_GE(engine->Generate(request)->usage.cached_tokens, 128);
  }
}

// (b) A store filled by another KV format or shape: another model's file stands for both here, the
// format's own field is tested with the key.
TEST_F(PrefixCasesTest, Case11bAnotherModelsBlocksAreMisses) {
  ASSERT_TRUE(Load(WithStore())->Generate(Ask(TestPrompt(150, 3))).ok());
  EngineOptions other = WithStore();
  other.model_path = "tests/golden/model/llama_q8_0.gguf";
  const auto engine = Load(other);
  EXPECT_EQ(engine->Generate(Ask(TestPrompt(150, 3)))->usage.cached_tokens, 0);
  EXPECT_EQ(Load(WithStore())->Generate(Ask(TestPrompt(150, 3)))->usage.cached_tokens, 128);
}

// (c) One tensor changed, same name, same size, same time of modification.
TEST_F(PrefixCasesTest, Case11cAChangedWeightIsAnotherModel) {
  // Old enough for a digest note to be written and believed.
  const auto settle = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2300)); };
  settle();
  const Request request = Ask(TestPrompt(150, 3));
  ASSERT_TRUE(Load(WithStore())->Generate(request).ok());
  ASSERT_EQ(Load(WithStore())->Generate(request)->usage.cached_tokens, 128);
  size_t num_notes = 0;
  for (const auto& entry : fs::directory_iterator(store_))
    num_notes += entry.path().filename().string().starts_with("digest-");
  ASSERT_EQ(num_notes, 1u) << "the digest is remembered, or this test shows nothing";
  struct stat before;
  ASSERT_EQ(stat(model_.c_str(), &before), 0);
  {
    std::fstream file(model_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-20000, std::ios::end);
    const auto at = file.tellg();
    char byte = 0;
    file.get(byte);
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 0x10));
  }
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, model_.c_str(), times, 0), 0);
  settle();
  const Answer want = AnswerOf(Load(Options())->Generate(request));
  const auto engine = Load(WithStore());
  const auto got = engine->Generate(request);
  EXPECT_EQ(got->usage.cached_tokens, 0);
  EXPECT_EQ(AnswerOf(got), want);
}

// The same while the model is loaded: the store is not used any more.
TEST_F(PrefixCasesTest, Case11AModelThatChangesWhileItRuns) {
  EngineOptions options = WithStore();
  std::vector<std::string> notices;
  options.on_notice = [&](std::string_view text) { notices.emplace_back(text); };
  const auto engine = Load(options);
  fs::last_write_time(model_, fs::last_write_time(model_) + std::chrono::seconds(1));
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(engine->Generate(Ask(TestPrompt(150, 3)))->usage.cached_tokens, 0);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].find("changed"), std::string::npos);
  EXPECT_EQ(engine->prefix_stats().store_blobs, 0);
}

// Case 13: restart with one flipped byte, one cut file, one leftover, two processes.
TEST_F(PrefixCasesTest, Case13DamageAndLeftoversAfterARestart) {
  const std::vector<Request> requests = {Ask(TestPrompt(300, 3)), Ask(TestPrompt(200, 4)),
                                         Ask(TestPrompt(500, 5))};
  const auto plain = Load(Options());
  std::vector<Answer> want;
  for (const Request& request : requests) want.push_back(AnswerOf(plain->Generate(request)));
  {
    const auto engine = Load(WithStore());
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(AnswerOf(engine->Generate(requests[i])), want[i]);
  }
  const std::vector<fs::path> blobs = Blobs();
  ASSERT_GT(blobs.size(), 12u);
  {
    std::fstream file(blobs[1], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.put('\x5a');
  }
  fs::resize_file(blobs[2], fs::file_size(blobs[2]) / 2);
  fs::resize_file(blobs[3], 0);
  std::ofstream(store_ / "tmp" / "999999-1-2.part") << "half a blob";
  // Two on one folder at the same time, then a third that finds all of it mended.
  const auto a = Load(WithStore()), b = Load(WithStore());
  EXPECT_TRUE(fs::is_empty(store_ / "tmp"));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(AnswerOf(a->Generate(requests[i])), want[i]);
    EXPECT_EQ(AnswerOf(b->Generate(requests[i])), want[i]);
    a->WaitForPrefixWrites();
    b->WaitForPrefixWrites();
  }
  EXPECT_GE(a->prefix_stats().damaged + b->prefix_stats().damaged, 2);
  EXPECT_GE(a->prefix_stats().store_hits, 2) << "sound entries hit";
  const auto c = Load(WithStore());
  for (size_t i = 0; i < 3; ++i) {
    const auto got = c->Generate(requests[i]);
    EXPECT_EQ(AnswerOf(got), want[i]);
    EXPECT_EQ(got->usage.cached_tokens, got->usage.prompt_tokens / 64 * 64);
  }
  EXPECT_EQ(c->prefix_stats().damaged, 0);
}

// Every blob of every kind damaged in turn: the text stays.
TEST_F(PrefixCasesTest, Case13AnyBlobMayBeDamaged) {
  for (const char* spec : {"verify:0.25+int4", "kvzip:0.3,chunk=64"}) {
    fs::remove_all(store_);
    const Request request = Ask(TestPrompt(200, 3), spec);
    const Answer want = AnswerOf(Load(WithStore())->Generate(request));
    for (const fs::path& blob : Blobs()) {
      std::fstream file(blob, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(fs::file_size(blob)) - 9);
      const char byte = static_cast<char>(file.get());
      file.seekp(static_cast<std::streamoff>(fs::file_size(blob)) - 9);
      file.put(static_cast<char>(byte ^ 1));
      file.close();
      EXPECT_EQ(AnswerOf(Load(WithStore())->Generate(request)), want) << spec << " " << blob;
    }
    // A draft KV that is gone leaves the newest queries to be computed again.
    EXPECT_GE(Load(WithStore())->Generate(request)->usage.cached_tokens, 200 - 32);
  }
}

// Killed at any moment of writing: the next start works with what is whole.
TEST_F(PrefixCasesTest, Case13KilledWhileWriting) {
  const Request request = Ask(TestPrompt(700, 3));
  const Answer want = AnswerOf(Load(Options())->Generate(request));
  for (int wait_us : {0, 2000, 10000, 30000}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto engine = Load(WithStore());
      (void)engine->Generate(request);  // the writer is at work now
      usleep(wait_us);
      raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    {
      const auto engine = Load(WithStore());
      EXPECT_TRUE(fs::is_empty(store_ / "tmp"));
      EXPECT_EQ(AnswerOf(engine->Generate(request)), want);
      EXPECT_EQ(engine->prefix_stats().damaged, 0);
      engine->WaitForPrefixWrites();
      EXPECT_EQ(engine->Generate(request)->usage.cached_tokens, 640);
    }
    fs::remove_all(store_);
  }
}

// Case 14: no room costs hits and no request (the volume itself: src/storage/blob_store_test.cc).
TEST_F(PrefixCasesTest, Case14NoRoomCostsHitsOnly) {
  EngineOptions options = WithStore();
  const uint64_t block = 64 * Load(Options())->info().kv_bytes_per_token + 4096;
  options.prefix_store_bytes = 5 * block;
  const auto plain = Load(Options());
  const auto engine = Load(options);
  for (int i = 0; i < 8; ++i) {
    const Request request = Ask(TestPrompt(250, 3 + i % 4));
    EXPECT_EQ(AnswerOf(engine->Generate(request)), AnswerOf(plain->Generate(request)));
    engine->WaitForPrefixWrites();
    EXPECT_LE(engine->prefix_stats().store_bytes, options.prefix_store_bytes);
  }
  EXPECT_GT(engine->prefix_stats().evicted, 0);
  // Not even one block fits; then the folder vanishes under the engine, and comes back.
  options.prefix_store_bytes = 100;
  const auto tight = Load(options);
  const Request request = Ask(TestPrompt(250, 9));
  const Answer want = AnswerOf(plain->Generate(request));
  EXPECT_EQ(AnswerOf(tight->Generate(request)), want);
  tight->WaitForPrefixWrites();
  EXPECT_GT(tight->prefix_stats().failed_writes, 0);
  fs::remove_all(store_);
  EXPECT_EQ(AnswerOf(engine->Generate(request)), want);
  engine->WaitForPrefixWrites();
  EXPECT_EQ(AnswerOf(engine->Generate(request)), want);
}

// Case 46: a NaN's K/V are kept nowhere, whether or not a row of logits showed it.
TEST_F(PrefixCasesTest, Case46BadRowsAreNotKept) {
  std::ifstream in("tests/golden/model/qwen2_untied.gguf", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto file = OpenBytes(bytes);
  constexpr int32_t kNanToken = 287;
  const GgufTensor* embedding = file->FindTensor("token_embd.weight");
  const size_t row_bytes = embedding->num_bytes / embedding->rows();
  std::memset(bytes.data() + embedding->offset + kNanToken * row_bytes, 0xff, 4);  // NaN as float
  std::ofstream(model_, std::ios::binary | std::ios::trunc) << bytes;
  EngineOptions options = WithStore();
  options.prefix_memory_bytes = 64 << 20;
  const auto engine = Engine::Load(options);
  if (!engine.ok()) GTEST_FAIL() << engine.status();
  auto bad = TestPrompt(200, 3);
  bad[150] = kNanToken;
  EXPECT_EQ((*engine)->Generate(Ask(bad)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ((*engine)->prefix_stats().memory_bytes, 0u) << "the request failed: nothing is kept";
  // No logits are asked for here: what is not finite is found in the rows.
  ASSERT_TRUE((*engine)->Prefill(Ask(bad)).ok());
  (*engine)->WaitForPrefixWrites();
  EXPECT_EQ((*engine)->prefix_stats().bad_sequences, 1);
  EXPECT_EQ((*engine)->prefix_stats().store_blobs, 3)
      << "the blocks before the bad one, and their record";
  EXPECT_EQ((*engine)->Generate(Ask(TestPrompt(200, 3), "off", 0))->usage.cached_tokens, 150);
}

}  // namespace
}  // namespace vericache
