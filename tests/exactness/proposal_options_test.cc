// Proposals through the public interface: what may propose, what it says when it cannot, and that
// the answer is the same; sessions, batches and a KV budget included.
#include <filesystem>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "vericache/engine.h"

namespace vericache {
namespace {

constexpr char kModel[] = "tests/golden/model/llama_tied.gguf";

std::unique_ptr<Engine> LoadEngine(const std::string& small, uint64_t kv_memory = 0) {
  EngineOptions options;
  options.model_path = kModel;
  options.draft_model_path = small;
  options.num_threads = 2;
  options.kv_memory = kv_memory;
  options.kv_dir = testing::TempDir();
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

Request Ask(const std::string& draft, const std::string& propose, int draft_len) {
  Request request;
  for (int i = 0; i < 200; ++i) request.prompt_token_ids.push_back(3 + i * i % 37);
  request.draft = draft;
  request.propose = propose;
  request.draft_len = draft_len;
  request.max_tokens = 60;
  request.ignore_eos = true;
  return request;
}

int64_t RoundsIn(const Completion& c, const std::string& mode) {
  for (const ModeStats& m : c.stats.choice.modes)
    if (m.mode == mode) return m.rounds;
  return 0;
}

// Numbers by mode add up to those of all rounds.
void ExpectSums(const Completion& c) {
  ModeStats sum;
  for (const ModeStats& m : c.stats.choice.modes) {
    sum.rounds += m.rounds;
    sum.drafted += m.drafted;
    sum.accepted += m.accepted;
    sum.emitted += m.emitted;
  }
  EXPECT_EQ(sum.rounds, c.stats.rounds);
  EXPECT_EQ(sum.drafted, c.stats.drafted);
  EXPECT_EQ(sum.accepted, c.stats.accepted);
  EXPECT_EQ(sum.emitted + 1, c.usage.completion_tokens);
}

TEST(ProposalOptions, SayWhatMayPropose) {
  const std::unique_ptr<Engine> alone = LoadEngine(""), both = LoadEngine(kModel);
  const auto plain = alone->Generate(Ask("off", "", 0));
  ASSERT_TRUE(plain.ok()) << plain.status();
  for (Engine* engine : {alone.get(), both.get()}) {
    for (const char* draft : {"off", "int8", "verify:0.25+f16"}) {
      for (const char* propose : {"", "off", "ngram", "model", "ngram,model", "model,ngram"}) {
        for (const int draft_len : {0, 5}) {
          SCOPED_TRACE(std::string(draft) + " " + propose + " " + std::to_string(draft_len));
          const auto c = engine->Generate(Ask(draft, propose, draft_len));
          const std::string asked = propose;
          if (engine == alone.get() && asked.find("model") != asked.npos) {
            EXPECT_EQ(c.status().code(), absl::StatusCode::kInvalidArgument);
            EXPECT_NE(c.status().message().find("--draft-model"), std::string::npos);
            continue;
          }
          ASSERT_TRUE(c.ok()) << c.status();
          EXPECT_EQ(c->logits_hash, plain->logits_hash);
          EXPECT_EQ(c->token_ids, plain->token_ids);
          ExpectSums(*c);
          const bool lookup = RoundsIn(*c, "ngram") + RoundsIn(*c, "ngram+draft-kv") > 0;
          const bool model = RoundsIn(*c, "draft-model") + RoundsIn(*c, "draft-model+draft-kv") > 0;
          const bool automatic = asked.empty() && draft_len == 0 && std::string(draft) != "off";
          EXPECT_TRUE(!lookup || automatic || asked.find("ngram") != asked.npos);
          EXPECT_TRUE(!model || automatic || asked.find("model") != asked.npos);
          const bool direct = std::string(draft) == "off" && draft_len > 0;
          EXPECT_TRUE(lookup || asked != "ngram" || !direct);
          // The same model proposes: nothing of it is ever wrong.
          if (asked == "model" && direct) {
            EXPECT_TRUE(model);
            EXPECT_EQ(c->stats.accepted, c->stats.drafted);
            EXPECT_EQ(c->stats.rounds, 10);
          }
        }
      }
    }
  }
  const auto wrong = alone->Generate(Ask("int8", "trigram", 0));
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(wrong.status().message().find("trigram"), std::string::npos);
}

TEST(ProposalOptions, AModelOfAnotherTokenizerIsRefused) {
  EngineOptions options;
  options.model_path = kModel;
  options.draft_model_path = "tests/golden/model/llama3_untied.gguf";
  const auto engine = Engine::Load(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("another tokenizer"), std::string::npos)
      << engine.status();
}

TEST(ProposalOptions, SessionsGoOnWithAModel) {
  const std::unique_ptr<Engine> engine = LoadEngine(kModel);
  Session session = engine->NewSession(), plain_session = engine->NewSession();
  Request ask = Ask("int8", "ngram,model", 6), plain = Ask("off", "off", 0);
  for (int turn = 0; turn < 3; ++turn) {
    const auto c = engine->Generate(ask, &session);
    const auto p = engine->Generate(plain, &plain_session);
    ASSERT_TRUE(c.ok() && p.ok());
    ASSERT_EQ(c->logits_hash, p->logits_hash) << turn;
    for (Request* r : {&ask, &plain}) {
      r->prompt_token_ids.insert(r->prompt_token_ids.end(), c->token_ids.begin(),
                                 c->token_ids.end());
      r->prompt_token_ids.push_back(5 + turn);
    }
  }
}

TEST(ProposalOptions, BatchesUnderABudget) {
  const std::unique_ptr<Engine> plain = LoadEngine("");
  for (const uint64_t kv_memory : {uint64_t{0}, uint64_t{3} << 20}) {
    const std::unique_ptr<Engine> engine =
        LoadEngine("tests/golden/model/qwen2_tied.gguf", kv_memory);
    std::vector<Request> requests;
    for (const char* propose : {"", "ngram", "model", "ngram,model", "off"}) {
      requests.push_back(Ask(requests.size() % 2 == 0 ? "int8" : "off", propose,
                             requests.size() % 3 == 0 ? 0 : 7));
      requests.back().prompt_token_ids.resize(60 + 30 * requests.size());
      requests.back().sampling.temperature = requests.size() % 2 == 0 ? 0.8f : 0;
    }
    const auto results = engine->GenerateBatch(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(results[i].ok()) << results[i].status();
      Request alone = requests[i];
      alone.draft = alone.propose = "off";
      EXPECT_EQ(results[i]->logits_hash, plain->Generate(alone)->logits_hash) << i;
    }
  }
}

}  // namespace
}  // namespace vericache
