// A service's answers are those of Engine::Generate() on another engine, bit for bit, whatever else
// it serves: greedy, seeded, stop strings, logprobs, choices, aborts, budgets, preemptions.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/serving/serving_test_util.h"

namespace vericache {
namespace {

struct Mixed {
  ServeRequest request;
  bool aborts = false;
};

// Half of them begin alike. Stop strings are pieces of the answer without them.
std::vector<Mixed> MixedRequests(Engine* alone, int count, uint64_t seed) {
  Picks pick(seed);
  const std::vector<int32_t> shared = TestPrompt(150, seed + 1000);
  std::vector<Mixed> requests;
  for (int i = 0; i < count; ++i) {
    Mixed mixed;
    std::vector<int32_t> prompt = pick(2) == 0 ? shared : std::vector<int32_t>();
    const std::vector<int32_t> own = TestPrompt(1 + pick(200), seed * 100 + i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    mixed.request = Ask(prompt, 1 + pick(50));
    Request& r = mixed.request.request;
    PickOptions(kMixedSpecs, seed + i, &pick, &r);
    mixed.request.num_choices = pick(6) == 0 ? 3 : 1;
    mixed.request.logprobs = pick(2) == 0;
    mixed.request.top_logprobs = static_cast<int>(pick(4));
    mixed.request.drafts = pick(3) == 0;
    mixed.aborts = pick(6) == 0;
    if (pick(3) == 0) {
      const std::string text = Oracle(alone, mixed.request).text;
      for (const size_t size : {3, 9})
        if (const std::string stop = PieceOf(text, text.size() / 2, size); !stop.empty())
          mixed.request.stop.push_back(stop);
    }
    requests.push_back(std::move(mixed));
  }
  return requests;
}

// Those that abort have the beginning of their answer.
void ExpectBeginning(const Collector::Choice& got, const Expected& want, const std::string& what) {
  ASSERT_LE(got.ids.size(), want.ids.size()) << what;
  EXPECT_TRUE(std::equal(got.ids.begin(), got.ids.end(), want.ids.begin())) << what;
  EXPECT_EQ(got.text, want.text.substr(0, got.text.size())) << what;
  if (!got.end->status.ok()) {
    EXPECT_EQ(got.end->status.code(), absl::StatusCode::kCancelled) << got.end->status;
  }
}

struct Totals {
  int num_stopped = 0, num_cancelled = 0;
};

Totals ServeAll(CompletionService* service, Engine* alone, const std::vector<Mixed>& requests,
                std::map<std::string, std::vector<PositionLogprobs>>* logprobs) {
  std::vector<std::shared_ptr<Collector>> sinks;
  for (const Mixed& mixed : requests) {
    auto sink = std::make_shared<Collector>(mixed.request.num_choices);
    auto id = std::make_shared<std::atomic<ServeId>>(0);
    auto count = std::make_shared<int>(0);
    if (mixed.aborts) {
      sink->on_delta = [=](const ServeDelta&) {
        if (++*count == 2 && *id != 0) service->Cancel(*id);
      };
    }
    const absl::StatusOr<ServeId> taken = service->Submit(mixed.request, sink);
    EXPECT_TRUE(taken.ok()) << taken.status();
    if (taken.ok()) *id = *taken;
    sinks.push_back(sink);
  }
  Totals totals;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (int choice = 0; choice < requests[i].request.num_choices; ++choice) {
      const std::string what = requests[i].request.request.draft + " request " + std::to_string(i) +
                               " choice " + std::to_string(choice);
      const Expected want = Oracle(alone, requests[i].request, choice);
      const Collector::Choice& got = sinks[i]->Wait(choice);
      if (requests[i].aborts) {
        ExpectBeginning(got, want, what);
        totals.num_cancelled += !got.end->status.ok();
        continue;
      }
      ExpectAnswer(got, want, what);
      totals.num_stopped += !got.end->stop_string.empty();
      if (!requests[i].request.logprobs) {
        EXPECT_TRUE(got.logprobs.empty());
        continue;
      }
      EXPECT_EQ(got.logprobs.size(), got.ids.size()) << what;
      const auto [at, is_new] = logprobs->emplace(what, got.logprobs);
      if (!is_new) {
        EXPECT_TRUE(SameLogprobs(at->second, got.logprobs)) << what;
      }
    }
  }
  return totals;
}

TEST(ServingBits, SixtyFourMixedRequestsHaveTheBitsTheyHaveAlone) {
  const auto alone = LoadServingEngine(ServingOptions());
  const uint64_t token = alone->info().kv_bytes_per_token;
  const std::vector<Mixed> requests = MixedRequests(alone.get(), 64, 1);
  // The same numbers without a budget, with one, with a prefix cache, with few at once.
  std::map<std::string, std::vector<PositionLogprobs>> logprobs;
  Totals totals;
  const auto serve = [&](uint64_t kv_tokens, uint64_t prefix_memory, int max_running) {
    ServiceOptions options;
    options.max_running = max_running;
    const auto service = StartTestService(
        ServingOptions(kv_tokens > 0 ? kLeastBudget + kv_tokens * token : 0, prefix_memory),
        options);
    const Totals now = ServeAll(service.get(), alone.get(), requests, &logprobs);
    totals.num_stopped += now.num_stopped;
    totals.num_cancelled += now.num_cancelled;
    service->Stop(1e9);
    const ServiceStats stats = service->stats();
    EXPECT_EQ(stats.running + stats.waiting, 0);
    EXPECT_EQ(stats.finished + stats.cancelled, stats.submitted);
    EXPECT_EQ(stats.failed, 0);
    return stats;
  };
  const ServiceStats cold = serve(0, 0, 64);
  EXPECT_GT(cold.accepted_tokens, 0);
  EXPECT_LT(cold.accepted_tokens, cold.drafted_tokens);
  const ServiceStats warm = serve(0, 64 << 20, 16);
  EXPECT_GT(warm.prefix.memory_hits, 10);
  const ServiceStats spilled = serve(1500, 0, 16);
  EXPECT_GT(spilled.fetched_bytes, 0u);
  serve(1500, 4 << 20, 5);
  EXPECT_GE(totals.num_stopped, 10);
  EXPECT_GE(totals.num_cancelled, 4);
  EXPECT_GE(logprobs.size(), 10u);
}

// Choices begin with the prompt that the first has computed; a draft KV is lent as well.
TEST(ServingBits, ChoicesShareThePromptAndAreThoseOfTheirNumber) {
  const auto alone = LoadServingEngine(ServingOptions());
  const uint64_t token = alone->info().kv_bytes_per_token;
  for (const uint64_t budget : {uint64_t{0}, kLeastBudget + 1500 * token}) {
    const auto service = StartTestService(ServingOptions(budget));
    for (const char* spec : kMixedSpecs) {
      for (const int64_t max_tokens : {1, 24}) {
        ServeRequest request = Ask(TestPrompt(300, 17), max_tokens);
        request.request.draft = spec;
        request.request.sampling.temperature = 1.0f;
        request.request.sampling.seed = 5;
        request.num_choices = 4;
        auto sink = std::make_shared<Collector>(4);
        ASSERT_TRUE(service->Submit(request, sink).ok());
        bool differ = false;
        for (int choice = 0; choice < 4; ++choice) {
          const Collector::Choice& got = sink->Wait(choice);
          ExpectAnswer(got, Oracle(alone.get(), request, choice), spec);
          EXPECT_EQ(got.end->completion.usage.cached_tokens, 0);
          differ = differ || got.ids != sink->Wait(0).ids;
        }
        EXPECT_TRUE(differ) << "each choice has its own noise";
      }
    }
    const ServiceStats stats = service->stats();
    const int64_t num_requests = 2 * std::size(kMixedSpecs);
    EXPECT_EQ(stats.prompt_tokens, 300 * num_requests) << "a request's prompt counts once";
    service->Stop(1e9);
  }
}

// The prompt of four choices costs about the rows of one.
TEST(ServingBits, ChoicesDoNotComputeThePromptAgain) {
  EngineOptions options = ServingOptions();
  options.prefill_chunk = 16;
  const auto service = StartTestService(options);
  ServeRequest request = Ask(TestPrompt(800, 3), 2);
  request.request.draft = "off";
  request.num_choices = 4;
  auto sink = std::make_shared<Collector>(4);
  ASSERT_TRUE(service->Submit(request, sink).ok());
  for (int choice = 0; choice < 4; ++choice) sink->Wait(choice);
  EXPECT_EQ(sink->num_prefills(), 800 / 16);
  EXPECT_LE(service->stats().num_passes, 800 / 16 + 8);
}

// Case 52: preempted and resumed under a small budget: nothing is lost, doubled or counted wrong.
TEST(ServingBits, Case52PreemptionChangesNothing) {
  const auto alone = LoadServingEngine(ServingOptions());
  const uint64_t token = alone->info().kv_bytes_per_token;
  std::vector<std::vector<PositionLogprobs>> logprobs(4);
  int64_t preempted = 0;
  for (const uint64_t tokens : {0, 100, 300, 600, 900}) {
    const auto service =
        StartTestService(ServingOptions(tokens > 0 ? kLeastBudget + tokens * token : 0));
    std::vector<ServeRequest> requests;
    std::vector<std::shared_ptr<Collector>> sinks;
    for (int i = 0; i < 4; ++i) {
      ServeRequest request = Ask(TestPrompt(60 + 10 * i, 50 + i), 300);
      request.request.ignore_eos = true;
      request.request.draft = "int4";
      request.request.draft_len = 6;
      request.request.sampling.temperature = 0.8f;
      request.request.sampling.seed = i;
      request.request.sampling.repetition_penalty = 1.2f;
      request.request.sampling.presence_penalty = 0.3f;
      request.logprobs = true;
      request.top_logprobs = 3;
      sinks.push_back(std::make_shared<Collector>());
      ASSERT_TRUE(service->Submit(request, sinks.back()).ok());
      requests.push_back(request);
    }
    for (int i = 0; i < 4; ++i) {
      const Collector::Choice& got = sinks[i]->Wait();
      ExpectAnswer(got, Oracle(alone.get(), requests[i]), std::to_string(i));
      EXPECT_EQ(got.logprobs.size(), got.ids.size());
      if (tokens == 0) logprobs[i] = got.logprobs;
      EXPECT_TRUE(SameLogprobs(got.logprobs, logprobs[i])) << i;
    }
    preempted += service->stats().preempted;
  }
  EXPECT_GT(preempted, 0);
}

}  // namespace
}  // namespace vericache
