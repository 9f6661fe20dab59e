// Threads that hand in and cancel at random, beside one that reads the counters: for the thread
// sanitizer, and for text of one request in another's reply.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/serving/serving_test_util.h"

namespace vericache {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kRequestsAThread = 40;
#else
constexpr int kRequestsAThread = 120;
#endif
constexpr int kKinds = 12;

std::vector<ServeRequest> Kinds() {
  std::vector<ServeRequest> kinds;
  const std::vector<int32_t> shared = TestPrompt(100, 500);
  for (int i = 0; i < kKinds; ++i) {
    std::vector<int32_t> prompt = i % 2 == 0 ? shared : std::vector<int32_t>();
    for (const int32_t id : TestPrompt(10 + 17 * i, 600 + i)) prompt.push_back(id);
    ServeRequest request = Ask(prompt, 5 + 4 * i);
    request.request.draft = std::vector<std::string>{"off", "int4", "verify:0.25+int4"}[i % 3];
    request.request.sampling.temperature = i % 4 < 2 ? 0.0f : 0.8f;
    request.request.sampling.seed = i;
    request.num_choices = i % 5 == 0 ? 2 : 1;
    request.logprobs = i % 3 == 1;
    request.prompt_logprobs = i % 6 == 4;
    request.drafts = i % 4 == 1;
    kinds.push_back(request);
  }
  return kinds;
}

class Client {
 public:
  Client(CompletionService* service, const std::vector<ServeRequest>& kinds,
         const std::vector<std::vector<Expected>>& want, uint64_t seed)
      : service_(service), kinds_(kinds), want_(want), pick_(seed) {}

  void Run() {
    for (int i = 0; i < kRequestsAThread; ++i) {
      Submit();
      while (open_.size() > 6) Check(Pick(open_.size()), Pick(3) == 0);
      if (Pick(4) == 0 && !open_.empty()) Check(Pick(open_.size()), true);
    }
    while (!open_.empty()) Check(0, Pick(5) == 0);
  }
  int num_cancelled() const { return num_cancelled_; }
  int num_whole() const { return num_whole_; }

 private:
  struct Open {
    size_t kind;
    ServeId id;
    std::shared_ptr<Collector> sink;
  };

  size_t Pick(size_t n) { return pick_(static_cast<int64_t>(n)); }

  void Submit() {
    Open open;
    open.kind = Pick(kinds_.size());
    open.sink = std::make_shared<Collector>(kinds_[open.kind].num_choices);
    const absl::StatusOr<ServeId> id = service_->Submit(kinds_[open.kind], open.sink);
    ASSERT_TRUE(id.ok()) << id.status();
    open.id = *id;
    if (Pick(8) == 0) service_->Cancel(open.id);
    open_.push_back(open);
  }

  void Check(size_t at, bool cancels) {
    const Open open = open_[at];
    open_.erase(open_.begin() + at);
    if (cancels) service_->Cancel(open.id);
    for (int choice = 0; choice < kinds_[open.kind].num_choices; ++choice) {
      const Collector::Choice& got = open.sink->Wait(choice);
      const Expected& want = want_[open.kind][choice];
      const std::string what = "kind " + std::to_string(open.kind);
      if (got.end->status.ok()) {
        ++num_whole_;
        ExpectAnswer(got, want, what);
        continue;
      }
      ++num_cancelled_;
      EXPECT_EQ(got.end->status.code(), absl::StatusCode::kCancelled) << got.end->status;
      ASSERT_LE(got.ids.size(), want.ids.size()) << what;
      EXPECT_TRUE(std::equal(got.ids.begin(), got.ids.end(), want.ids.begin())) << what;
    }
  }

  CompletionService* service_;
  const std::vector<ServeRequest>& kinds_;
  const std::vector<std::vector<Expected>>& want_;
  Picks pick_;
  std::vector<Open> open_;
  int num_cancelled_ = 0, num_whole_ = 0;
};

void RunClients(const EngineOptions& options, uint64_t seed) {
  const std::vector<ServeRequest> kinds = Kinds();
  std::vector<std::vector<Expected>> want;
  {
    const auto alone = LoadServingEngine(ServingOptions());
    for (const ServeRequest& kind : kinds) {
      want.emplace_back();
      for (int choice = 0; choice < kind.num_choices; ++choice)
        want.back().push_back(Oracle(alone.get(), kind, choice));
    }
  }
  ServiceOptions serving;
  serving.max_running = 6;
  const auto service = StartTestService(options, serving);
  Client first(service.get(), kinds, want, seed), second(service.get(), kinds, want, seed + 1);
  std::atomic<bool> over = false;
  std::thread reader([&] {
    while (!over) {
      const ServiceStats stats = service->stats();
      EXPECT_EQ(stats.finished + stats.cancelled + stats.failed + stats.running + stats.waiting,
                stats.submitted);
      EXPECT_TRUE(service->RenderPrompt(kinds[0].request).ok());
      std::this_thread::yield();
    }
  });
  std::thread one([&] { first.Run(); }), two([&] { second.Run(); });
  one.join();
  two.join();
  over = true;
  reader.join();
  EXPECT_GT(first.num_cancelled() + second.num_cancelled(), 10);
  EXPECT_GT(first.num_whole() + second.num_whole(), 20);
  const ServiceStats stats = service->stats();
  EXPECT_EQ(stats.running + stats.waiting + stats.failed, 0);
  service->Stop(0);
}

TEST(ServingThreads, RandomSubmitsAndCancels) { RunClients(ServingOptions(), 1); }

TEST(ServingThreads, TheSameUnderABudgetWithPrefixes) {
  const uint64_t token = LoadServingEngine(ServingOptions())->info().kv_bytes_per_token;
  RunClients(ServingOptions(kLeastBudget + 500 * token, 1 << 20), 7);
}

}  // namespace
}  // namespace vericache
