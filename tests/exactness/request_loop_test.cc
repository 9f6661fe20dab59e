// Many requests under one KV budget: each has the bits that it has alone, whatever its neighbours,
// the order, preemptions, lock-step or staggering; what cannot be served fails alone, with numbers.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/mixed_requests.h"
#include "vericache/engine.h"

namespace vericache {
namespace {

// Open blocks, staging and a rebuild's layer of this model, whatever the requests.
constexpr uint64_t kLeast = 640 << 10;

std::unique_ptr<Engine> LoadEngine(uint64_t kv_memory, uint64_t prefix_memory = 0,
                                   std::function<void(std::string_view)> on_notice = nullptr) {
  EngineOptions options;
  options.model_path = "tests/golden/model/qwen2_untied.gguf";
  options.num_threads = 2;
  options.kv_memory = kv_memory;
  options.kv_dir = testing::TempDir();
  options.prefix_memory_bytes = prefix_memory;
  options.on_notice = std::move(on_notice);
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::vector<Request> MixedRequests(int count, uint64_t seed, int64_t longest) {
  std::vector<Request> requests;
  Picks pick(seed);
  for (int i = 0; i < count; ++i) {
    Request r;
    r.prompt_token_ids = TestPrompt(1 + pick(longest), seed * 100 + i);
    r.max_tokens = 1 + pick(60);
    PickOptions(kMixedSpecs, seed + i, &pick, &r);
    requests.push_back(std::move(r));
  }
  return requests;
}

void ExpectSame(const absl::StatusOr<Completion>& got, const absl::StatusOr<Completion>& want,
                const std::string& what) {
  ASSERT_TRUE(got.ok()) << what << ": " << got.status();
  ASSERT_TRUE(want.ok()) << what << ": " << want.status();
  EXPECT_EQ(got->token_ids, want->token_ids) << what;
  EXPECT_EQ(got->logits_hash, want->logits_hash) << what;
  EXPECT_EQ(got->finish_reason, want->finish_reason) << what;
  EXPECT_EQ(got->usage.completion_tokens, want->usage.completion_tokens) << what;
}

TEST(RequestLoop, EachRequestHasTheBitsItHasAlone) {
  const auto alone = LoadEngine(0);
  const uint64_t token = alone->info().kv_bytes_per_token;
  int preempted = 0, most_running = 0;
  uint64_t fetched = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const std::vector<Request> requests = MixedRequests(9, seed, 700);
    std::vector<absl::StatusOr<Completion>> want;
    for (const Request& r : requests) want.push_back(alone->Generate(r));
    for (const uint64_t tokens : {0, 400, 1200, 4000}) {
      const uint64_t budget = tokens > 0 ? kLeast + tokens * token : 0;
      const auto engine = LoadEngine(budget);
      for (const bool lock_step : {false, true}) {
        BatchOptions options;
        options.lock_step = lock_step;
        options.max_running = 2 + static_cast<int>(seed % 3) * 4;
        BatchReport report;
        const auto got = engine->GenerateBatch(requests, options, &report);
        for (size_t i = 0; i < requests.size(); ++i)
          ExpectSame(got[i], want[i],
                     requests[i].draft + " seed " + std::to_string(seed) + " request " +
                         std::to_string(i) + " budget " + std::to_string(tokens));
        if (tokens > 0) {
          EXPECT_LE(report.peak_kv_bytes, budget);
        }
        preempted += static_cast<int>(report.num_preempted);
        most_running = std::max(most_running, report.most_running);
        fetched += report.fetched_bytes;
      }
    }
  }
  EXPECT_GE(most_running, 5);
  EXPECT_GT(fetched, 1u << 20);
  RecordProperty("preempted", preempted);
}

// Case 53: a request that can never fit fails at once, alone, with numbers.
TEST(RequestLoop, Case53AnImpossibleRequestFailsAlone) {
  const auto alone = LoadEngine(0);
  const auto engine = LoadEngine(240 << 10);
  std::vector<Request> requests = MixedRequests(4, 3, 150);
  requests[1].prompt_token_ids = TestPrompt(900, 7);
  requests[1].max_tokens = 100000;  // one head of a layer of it is more than the budget
  const auto got = engine->GenerateBatch(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i != 1) {
      ExpectSame(got[i], alone->Generate(requests[i]), std::to_string(i));
      continue;
    }
    EXPECT_EQ(got[i].status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(got[i].status().message().find("--kv-memory"), absl::string_view::npos)
        << got[i].status();
  }
}

// A draft KV that does not fit beside staging is made smaller, as `run` does, and said so.
TEST(RequestLoop, DraftsAreMadeSmallerUntilTheyFit) {
  const auto alone = LoadEngine(0);
  Request r;
  r.prompt_token_ids = TestPrompt(2000, 21);
  r.max_tokens = 24;
  r.ignore_eos = true;
  r.draft = "verify:0.9+int8";
  r.draft_len = 5;
  const auto want = alone->Generate(r);
  ASSERT_TRUE(want.ok()) << want.status();
  int smaller = 0;
  for (uint64_t budget = kLeast; budget < 4 * kLeast; budget += kLeast / 4) {
    std::vector<std::string> notices;
    const auto engine =
        LoadEngine(budget, 0, [&](std::string_view text) { notices.emplace_back(text); });
    BatchReport report;
    const auto got = engine->GenerateBatch({&r, 1}, BatchOptions(), &report);
    ExpectSame(got[0], want, std::to_string(budget));
    EXPECT_LE(report.peak_kv_bytes, budget);
    const bool told = std::any_of(notices.begin(), notices.end(), [](const std::string& text) {
      return text.find("instead of verify:0.9") != std::string::npos;
    });
    const CompletionStats& stats = got[0]->stats;
    EXPECT_EQ(told, stats.drafted > 0 && stats.kept_fraction < 0.9 * want->stats.kept_fraction)
        << budget << " " << stats.kept_fraction;
    smaller += told;
  }
  EXPECT_GT(smaller, 0);
}

// A draft KV a little smaller than asked for lets more requests run at once.
TEST(RequestLoop, DraftsAreMadeSmallerToRunTogether) {
  const auto alone = LoadEngine(0);
  std::vector<Request> requests(4);
  std::vector<absl::StatusOr<Completion>> want;
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& r = requests[i];
    r.prompt_token_ids = TestPrompt(2000, 30 + i);
    r.max_tokens = 24;
    r.ignore_eos = true;
    r.draft = "verify:0.5+int8";
    r.draft_len = 5;
    want.push_back(alone->Generate(r));
  }
  int more = 0;
  for (uint64_t budget = 2 * kLeast; budget < 12 * kLeast; budget += kLeast / 2) {
    std::vector<std::string> notices;
    const auto engine =
        LoadEngine(budget, 0, [&](std::string_view text) { notices.emplace_back(text); });
    BatchReport report;
    const auto got = engine->GenerateBatch(requests, BatchOptions(), &report);
    for (size_t i = 0; i < got.size(); ++i) ExpectSame(got[i], want[i], std::to_string(budget));
    EXPECT_LE(report.peak_kv_bytes, budget);
    const auto told = std::count_if(notices.begin(), notices.end(), [](const std::string& text) {
      return text.find("instead of verify:0.5") != std::string::npos;
    });
    EXPECT_LE(told, 1) << "said once for all";
    more += told == 1 && report.most_running == 4;
  }
  EXPECT_GT(more, 0);
}

// Case 52: preempted requests go on as if nothing had happened, penalties included.
TEST(RequestLoop, Case52PreemptionChangesNothing) {
  const auto alone = LoadEngine(0);
  const uint64_t token = alone->info().kv_bytes_per_token;
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    Request r;
    r.prompt_token_ids = TestPrompt(60 + 10 * i, 50 + i);
    r.max_tokens = 300;
    r.ignore_eos = true;
    r.draft = "int4";
    r.draft_len = 6;
    r.sampling.temperature = 0.8f;
    r.sampling.seed = i;
    r.sampling.repetition_penalty = 1.2f;
    r.sampling.presence_penalty = 0.3f;
    requests.push_back(r);
  }
  int64_t preempted = 0;
  for (const uint64_t tokens : {100, 300, 600, 900}) {
    const auto engine = LoadEngine(kLeast + tokens * token);
    BatchReport report;
    const auto got = engine->GenerateBatch(requests, BatchOptions(), &report);
    for (size_t i = 0; i < requests.size(); ++i)
      ExpectSame(got[i], alone->Generate(requests[i]), std::to_string(i));
    EXPECT_LE(report.peak_kv_bytes, kLeast + tokens * token);
    preempted += report.num_preempted;
  }
  EXPECT_GT(preempted, 0);
}

TEST(RequestLoop, StoppingABatchKeepsWhatIsFinished) {
  const auto engine = LoadEngine(0);
  std::vector<Request> requests = MixedRequests(6, 5, 200);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].max_tokens = 5 + 40 * i;
  size_t finished = 0;
  BatchOptions options;
  options.on_finished = [&](size_t, const absl::StatusOr<Completion>&) { return ++finished < 2; };
  const auto got = engine->GenerateBatch(requests, options, nullptr);
  int done = 0, cancelled = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (got[i].ok()) {
      ++done;
      ExpectSame(got[i], engine->Generate(requests[i]), std::to_string(i));
    } else {
      EXPECT_EQ(got[i].status().code(), absl::StatusCode::kCancelled) << got[i].status();
      ++cancelled;
    }
  }
  EXPECT_GE(done, 2);
  EXPECT_GE(cancelled, 1);
  // The engine is as good as new.
  ExpectSame(engine->Generate(requests[0]), LoadEngine(0)->Generate(requests[0]), "afterwards");
}

TEST(RequestLoop, SessionsLiveUnderABudget) {
  const auto alone = LoadEngine(0);
  const std::string path = testing::TempDir() + "/budget.kv";
  Request r;
  r.prompt_token_ids = TestPrompt(900, 4);
  r.max_tokens = 30;
  r.draft = "verify:0.25+int4";
  const auto engine = LoadEngine(240 << 10);
  Session session = engine->NewSession();
  const auto first = engine->Generate(r, &session);
  ExpectSame(first, alone->Generate(r), "cold");
  ASSERT_TRUE(engine->SaveSession(session, path).ok());
  std::vector<int32_t> next = r.prompt_token_ids;
  next.insert(next.end(), first->token_ids.begin(), first->token_ids.end());
  for (const int32_t id : TestPrompt(30, 9)) next.push_back(id);
  r.prompt_token_ids = next;
  const auto want = alone->Generate(r);
  ExpectSame(engine->Generate(r, &session), want, "warm");
  for (const uint64_t budget : {uint64_t{350} << 10, uint64_t{420} << 10, kLeast}) {
    const auto other = LoadEngine(budget);
    absl::StatusOr<Session> loaded = other->LoadSession(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const auto again = other->Generate(r, &*loaded);
    ExpectSame(again, want, "from a file, under another budget");
    EXPECT_GE(again->usage.cached_tokens, 900);
    EXPECT_EQ(again->stats.memory.streamed_bytes > 0, budget < (400u << 10)) << budget;
    EXPECT_LE(again->stats.memory.peak_bytes, budget);
  }
}

TEST(RequestLoop, BudgetsThatCannotHoldAnythingAreRefused) {
  EngineOptions options;
  options.model_path = "tests/golden/model/qwen2_untied.gguf";
  options.kv_memory = 4096;
  EXPECT_EQ(Engine::Load(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.kv_memory = 64 << 20;
  options.kv_dir = "/nowhere/at/all";
  EXPECT_EQ(Engine::Load(options).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace vericache
