// Scores change how many drafts are right, never the answer: for sessions with and without them,
// for prompts too short for what a spec asks, for answers of no token.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/mixed_requests.h"
#include "vericache/engine.h"

namespace vericache {
namespace {

constexpr const char* kSpecs[] = {"kvzip:0.3",
                                  "kvzip:0.2,chunk=64,window=4+int4",
                                  "kvzip:0.3,chunk=64,sinks=0,window=256",
                                  "expected:0.3",
                                  "expected:0.3,sinks=100,future=3+int4",
                                  "h2o:0.3",
                                  "h2o:0.01+int2",
                                  "verify:0.3,floor=0.15,chunk=64",
                                  "verify:0.3,floor=0.3,window=200",
                                  "verify:0.2,score=vegas",
                                  "kvzip:0.1,chunk=64,keep=0,f16=1+int4"};

std::unique_ptr<Engine> LoadEngine(const std::string& name) {
  EngineOptions options;
  options.model_path = "tests/golden/model/" + name + ".gguf";
  options.num_threads = 2;
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

Request Ask(std::vector<int32_t> prompt, const std::string& draft, int64_t max_tokens) {
  Request request;
  request.prompt_token_ids = std::move(prompt);
  request.draft = draft;
  request.max_tokens = max_tokens;
  request.draft_len = 5;
  request.ignore_eos = true;
  return request;
}

void ExpectSame(const absl::StatusOr<Completion>& got, const absl::StatusOr<Completion>& want) {
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_TRUE(want.ok()) << want.status();
  EXPECT_EQ(got->text, want->text);
  EXPECT_EQ(got->token_ids, want->token_ids);
  EXPECT_EQ(got->logits_hash, want->logits_hash);
  EXPECT_EQ(got->finish_reason, want->finish_reason);
}

TEST(ScoredSessions, AnswerAsAColdPromptDoes) {
  for (const char* model : {"llama_tied", "qwen2_untied"}) {
    const std::unique_ptr<Engine> engine = LoadEngine(model);
    const std::vector<int32_t> document = TestPrompt(260, 3), question = TestPrompt(40, 9);
    std::vector<int32_t> whole = document;
    whole.insert(whole.end(), question.begin(), question.end());
    auto session = engine->Prefill(Ask(document, "off", 0));
    ASSERT_TRUE(session.ok());
    const auto plain = engine->Generate(Ask(whole, "off", 24));
    for (const char* spec : kSpecs) {
      SCOPED_TRACE(std::string(model) + " " + spec);
      const auto cold = engine->Generate(Ask(whole, spec, 24));
      ExpectSame(cold, plain);
      Session unscored = session->Fork();
      ExpectSame(engine->Generate(Ask(whole, spec, 24), &unscored), cold);
      Session scored = session->Fork();
      ASSERT_TRUE(engine->Score(&scored, spec).ok());
      ASSERT_TRUE(engine->Score(&scored, spec).ok()) << "there is nothing to do";
      Session fork = scored.Fork();
      int passes = 0;
      Callbacks callbacks;
      callbacks.on_prefill = [&](int64_t, int64_t) { return ++passes > 0; };
      ExpectSame(engine->Generate(Ask(whole, spec, 24), &fork, callbacks), cold);
      EXPECT_EQ(passes, 1) << "the session's scores are used: only the question is computed";
      // The next turn, on the draft that the last one left.
      std::vector<int32_t> next = fork.token_ids();
      next.insert(next.end(), question.rbegin(), question.rend());
      const auto want = engine->Generate(Ask(next, "off", 12));
      ExpectSame(engine->Generate(Ask(next, spec, 12), &fork), want);
    }
  }
}

// A stored prefix brings its scores along: a question asked after a restart computes itself alone,
// and drafts as one asked before.
TEST(ScoredSessions, KeepTheirScoresInAFile) {
  const std::unique_ptr<Engine> engine = LoadEngine("llama_head_dim");
  const std::vector<int32_t> document = TestPrompt(260, 3);
  std::vector<int32_t> whole = document;
  for (int32_t id : TestPrompt(40, 9)) whole.push_back(id);
  const std::string path = testing::TempDir() + "/scored.kv";
  for (const char* spec :
       {"kvzip:0.3,chunk=64", "expected:0.3", "h2o:0.3", "verify:0.3,floor=0.15,chunk=64"}) {
    SCOPED_TRACE(spec);
    auto session = engine->Prefill(Ask(document, "off", 0));
    ASSERT_TRUE(session.ok());
    ASSERT_TRUE(engine->Score(&*session, spec).ok());
    ASSERT_TRUE(engine->SaveSession(*session, path).ok());
    auto loaded = engine->LoadSession(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    int passes = 0;
    Callbacks callbacks;
    callbacks.on_prefill = [&](int64_t, int64_t) { return ++passes > 0; };
    const auto before = engine->Generate(Ask(whole, spec, 24), &*session);
    const auto after = engine->Generate(Ask(whole, spec, 24), &*loaded, callbacks);
    ExpectSame(after, before);
    EXPECT_EQ(passes, 1);
    EXPECT_EQ(after->stats.accepted, before->stats.accepted);
    EXPECT_EQ(after->stats.draft_bytes, before->stats.draft_bytes);
  }
}

// Scores of one spec, answers by another; prompts that leave the session early or do not go on.
TEST(ScoredSessions, AnswerAnyPromptWithAnySpec) {
  const std::unique_ptr<Engine> engine = LoadEngine("llama_tied");
  const std::vector<int32_t> document = TestPrompt(150, 3);
  auto session = engine->Prefill(Ask(document, "off", 0));
  ASSERT_TRUE(session.ok());
  for (const char* spec : kSpecs) ASSERT_TRUE(engine->Score(&*session, spec).ok()) << spec;
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t common : {0, 1, 10, 74, 76, 149, 150}) {
    prompts.emplace_back(document.begin(), document.begin() + common);
    const std::vector<int32_t> tail = TestPrompt(common == 0 ? 90 : 9, 50 + common);
    prompts.back().insert(prompts.back().end(), tail.begin(), tail.end());
  }
  prompts.push_back(document);
  prompts.emplace_back(document.begin(), document.begin() + 40);
  std::vector<int32_t> much = document;
  const std::vector<int32_t> tail = TestPrompt(400, 77);
  much.insert(much.end(), tail.begin(), tail.end());
  prompts.push_back(much);
  for (const std::vector<int32_t>& prompt : prompts) {
    const auto plain = engine->Generate(Ask(prompt, "off", 20));
    for (const char* spec : kSpecs) {
      SCOPED_TRACE(std::to_string(prompt.size()) + " tokens " + spec);
      Session fork = session->Fork();
      const auto first = engine->Generate(Ask(prompt, spec, 20), &fork);
      ExpectSame(first, plain);
      // Scores of other tokens, or of the smaller part, are not used: the drafts are a cold
      // prompt's.
      if (prompt.size() != 159 && std::string(spec).find("verify") == std::string::npos) {
        const auto cold = engine->Generate(Ask(prompt, spec, 20));
        EXPECT_EQ(first->stats.accepted, cold->stats.accepted);
        EXPECT_EQ(first->stats.kept_fraction, cold->stats.kept_fraction);
      }
      ExpectSame(engine->Generate(Ask(prompt, spec, 20), &fork), plain);
    }
  }
}

TEST(ScoredSessions, SurviveShortPromptsAndEmptyAnswers) {
  const std::unique_ptr<Engine> engine = LoadEngine("llama_tied");
  for (int64_t n = 1; n <= 70; ++n) {
    const std::vector<int32_t> prompt = TestPrompt(n, 5);
    const auto plain = engine->Generate(Ask(prompt, "off", 6));
    const auto none = engine->Generate(Ask(prompt, "off", 0));
    for (const char* spec : kSpecs) {
      SCOPED_TRACE(std::to_string(n) + " tokens " + spec);
      ExpectSame(engine->Generate(Ask(prompt, spec, 6)), plain);
      ExpectSame(engine->Generate(Ask(prompt, spec, 0)), none);
      if (n % 8 != 1) continue;
      Session session = engine->NewSession();
      EXPECT_EQ(engine->Score(&session, spec).ok(), std::string(spec) == "verify:0.2,score=vegas")
          << "no tokens to score";
      ExpectSame(engine->Generate(Ask(prompt, spec, 0), &session), none);
      EXPECT_TRUE(engine->Score(&session, spec).ok());
      ExpectSame(engine->Generate(Ask(prompt, spec, 6), &session), plain);
      EXPECT_TRUE(engine->GenerateUnverified(Ask(prompt, spec, 3), &session).ok());
    }
  }
}

TEST(ScoredSessions, CanBeCancelledWhileScoring) {
  const std::unique_ptr<Engine> engine = LoadEngine("llama_tied");
  const std::vector<int32_t> prompt = TestPrompt(300, 5);
  const auto plain = engine->Generate(Ask(prompt, "off", 6));
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    for (int stop_at : {0, 1, 3, 5}) {
      Session session = *engine->Prefill(Ask(prompt, "off", 0));
      int calls = 0;
      Callbacks callbacks;
      callbacks.on_prefill = [&](int64_t done, int64_t total) {
        EXPECT_LE(done, total);
        return calls++ < stop_at;
      };
      const absl::Status status = engine->Score(&session, spec, callbacks);
      EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kCancelled) << status;
      EXPECT_EQ(status.ok(), calls <= stop_at);
      ExpectSame(engine->Generate(Ask(prompt, spec, 6), &session), plain);
    }
  }
}

// Positions from a file: an exact answer, or one line that names the file.
TEST(KeptFiles, ServeThePromptsTheyFit) {
  const std::unique_ptr<Engine> engine = LoadEngine("qwen2_untied");  // 2 layers, 2 KV heads
  const std::string spec = "kept,file=tests/golden/compressors/kept_deflated.npz+int4";
  const auto expect_refused = [&](Engine* by, int64_t n, const std::string& part) {
    const auto completion = by->Generate(Ask(TestPrompt(n, 5), spec, 4));
    ASSERT_FALSE(completion.ok());
    const std::string message(completion.status().message());
    EXPECT_NE(message.find("kept_deflated.npz"), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  expect_refused(engine.get(), 300, "position 300");  // prompt positions end at 299
  expect_refused(LoadEngine("llama_tied").get(), 320, "\"L0H1\"");
  for (int64_t n : {301, 302, 380}) {
    Session session = engine->NewSession();
    const auto plain = engine->Generate(Ask(TestPrompt(n, 5), "off", 20));
    ExpectSame(engine->Generate(Ask(TestPrompt(n, 5), spec, 20), &session), plain);
    std::vector<int32_t> next = session.token_ids();
    next.insert(next.end(), {9, 8, 7});
    const auto want = engine->Generate(Ask(next, "off", 20));
    ExpectSame(engine->Generate(Ask(next, spec, 20), &session), want);
  }
}

TEST(ScoredSessions, RefuseASenselessSpec) {
  const std::unique_ptr<Engine> engine = LoadEngine("llama_tied");
  Session session = *engine->Prefill(Ask(TestPrompt(30, 5), "off", 0));
  EXPECT_EQ(engine->Score(&session, "kvzipp").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine->Score(&session, "off").ok());
  EXPECT_TRUE(engine->Score(&session, "int4").ok());
}

}  // namespace
}  // namespace vericache
