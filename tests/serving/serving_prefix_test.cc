// Prefixes that a slow, hanging or dying store has, under a service and a batch: others go on
// meanwhile, shown by the order of events, and answers are those of Engine::Generate() without one.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/prefix/far_store.h"
#include "tests/prefix/prefix_fixture.h"
#include "tests/serving/serving_test_util.h"
#include "vericache/batch.h"

namespace vericache {
namespace {

constexpr int64_t kPrefix = 320;
constexpr int64_t kBlocks = kPrefix / 64;
// In which a store that answers at once is heard of again.
constexpr auto kQuiet = std::chrono::milliseconds(200);

class ServingPrefixTest : public PrefixFixture {
 protected:
  void SetUp() override {
    PrefixFixture::SetUp();
    alone_ = Load(Options());
  }
  // Documents `first` to `last`, stored with a draft KV of `spec`.
  void Push(uint64_t first, uint64_t last, const std::string& spec = "int8") {
    const auto engine = Load(WithStore());
    for (uint64_t document = first; document <= last; ++document) {
      const auto pushed =
          engine->PushPrefix(Ask(TestPrompt(kPrefix, document)), {{spec}, "document"});
      ASSERT_TRUE(pushed.ok()) << pushed.status();
    }
  }
  std::unique_ptr<Engine> Far(FarStore::Before before) {
    EngineOptions options = WithStore();
    options.prefix_store_mode = "ro";
    options.prefix_memory_bytes = prefix_memory_;
    options.kv_memory = kv_memory_;
    options.kv_dir = folder_;
    auto engine = Load(options);
    tier_ = EngineAccess::Of(engine.get())->tier;
    loop_ = EngineAccess::Of(engine.get())->MakeServiceLoopOptions();
    MoveStoreAway(store_, {true, 1e6, 0.001}, std::move(before), engine.get());
    return engine;
  }
  std::unique_ptr<CompletionService> Serve(FarStore::Before before,
                                           const ServiceOptions& options = {}) {
    auto service = StartService(Far(std::move(before)), options);
    EXPECT_TRUE(service.ok()) << service.status();
    return *std::move(service);
  }
  static ServeRequest Question(uint64_t document, uint64_t seed, const std::string& draft = "int8",
                               int64_t max_tokens = 24) {
    ServeRequest request = Ask(TestPrompt(kPrefix, document) + TestPrompt(21, seed), max_tokens);
    request.request.draft = draft;
    request.request.ignore_eos = true;
    return request;
  }
  static std::shared_ptr<Collector> Submit(CompletionService* service, const ServeRequest& request,
                                           ServeId* id = nullptr) {
    auto sink = std::make_shared<Collector>(request.num_choices);
    const auto submitted = service->Submit(request, sink);
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    if (id != nullptr) *id = *submitted;
    return sink;
  }
  // Returns the cached tokens of choice 0.
  int64_t ExpectRight(const ServeRequest& request, Collector* sink, const std::string& what) {
    for (int choice = 0; choice < request.num_choices; ++choice)
      ExpectAnswer(sink->Wait(choice), Oracle(alone_.get(), request, choice), what);
    return sink->Wait(0).end->completion.usage.cached_tokens;
  }

  uint64_t kv_memory_ = 0, prefix_memory_ = 0;
  std::shared_ptr<KvTier> tier_;
  LoopOptions loop_;  // of the service
  std::unique_ptr<Engine> alone_;
};

// Holds the first blob back, which is one of the first request.
class Holding {
 public:
  FarStore::Before before() {
    return [this](int64_t number, Deadline) {
      ++num_blobs_;
      if (number < num_held_ && !open_.Wait()) ++late_;
      return absl::OkStatus();
    };
  }
  void AwaitHeld() {
    while (num_blobs_ < num_held_) std::this_thread::yield();
  }
  void Open() { open_.Open(); }
  int num_held_ = 1;
  std::atomic<int> num_blobs_{0}, late_{0};

 private:
  Latch open_;
};

TEST_F(ServingPrefixTest, OthersAreAnsweredWhileAStoreHangs) {
  Push(1, 2);
  for (const uint64_t budget : {uint64_t{0}, uint64_t{3} << 20}) {
    kv_memory_ = budget;
    Holding store;
    const auto service = Serve(store.before());
    const ServeRequest held = Question(1, 10);
    const auto sink = Submit(service.get(), held);
    store.AwaitHeld();
    const ServeRequest stored = Question(2, 11), unknown = Question(7, 12);
    const auto stored_sink = Submit(service.get(), stored);
    const auto unknown_sink = Submit(service.get(), unknown);
    EXPECT_EQ(ExpectRight(stored, stored_sink.get(), "stored"), kPrefix) << budget;
    EXPECT_EQ(ExpectRight(unknown, unknown_sink.get(), "unknown"), 0) << budget;
    EXPECT_FALSE(sink->ended());
    EXPECT_EQ(sink->num_deltas(), 0);
    EXPECT_EQ(service->stats().running, 1);
    store.Open();
    // Nothing else runs: the end of the load alone wakes the service.
    EXPECT_EQ(ExpectRight(held, sink.get(), "held"), kPrefix) << budget;
    EXPECT_EQ(store.late_, 0);
  }
}

// More hang than may be loaded at once.
TEST_F(ServingPrefixTest, ManyThatHangHoldUpNobody) {
  Push(1, 8);
  Holding store;
  store.num_held_ = 4;
  const auto service = Serve(store.before());
  std::vector<ServeRequest> held;
  std::vector<std::shared_ptr<Collector>> sinks;
  for (uint64_t document = 1; document <= 8; ++document) {
    held.push_back(Question(document, document, document % 2 == 0 ? "snapkv:0.3" : "int8"));
    held.back().num_choices = document % 4 == 0 ? 2 : 1;
    sinks.push_back(Submit(service.get(), held.back()));
  }
  store.AwaitHeld();
  ServeRequest without = Question(1, 20);
  without.request.use_prefix_cache = false;
  const auto sink = Submit(service.get(), without);
  ExpectRight(without, sink.get(), "without a cache");
  EXPECT_EQ(store.num_blobs_, 4) << "loads at once";
  store.Open();
  for (size_t i = 0; i < held.size(); ++i)
    EXPECT_GE(ExpectRight(held[i], sinks[i].get(), std::to_string(i)), kPrefix - 32) << i;
  EXPECT_EQ(store.late_, 0);
}

TEST_F(ServingPrefixTest, ACancelledRequestStopsItsLoad) {
  Push(1, 1);
  Holding store;
  const auto service = Serve(store.before());
  ServeId id = 0;
  const auto sink = Submit(service.get(), Question(1, 10), &id);
  store.AwaitHeld();
  service->Cancel(id);
  // At once, although the store still hangs.
  EXPECT_TRUE(absl::IsCancelled(sink->Wait().end->status));
  EXPECT_EQ(service->stats().cancelled, 1);
  EXPECT_EQ(service->stats().running, 0);
  const ServeRequest next = Question(3, 11);
  ExpectRight(next, Submit(service.get(), next).get(), "next");
  store.Open();
  service->Stop(1e9);
  EXPECT_EQ(store.num_blobs_, 1) << "blobs of a load that nobody wants";
  EXPECT_EQ(store.late_, 0);
}

TEST_F(ServingPrefixTest, AStopEndsThoseThatLoad) {
  Push(1, 2);
  Holding store;
  auto service = Serve(store.before());
  ServeRequest request = Question(1, 10);
  request.num_choices = 2;
  const auto sink = Submit(service.get(), request);
  store.AwaitHeld();
  service->Stop(0);
  EXPECT_TRUE(absl::IsCancelled(sink->Wait(0).end->status));
  EXPECT_TRUE(absl::IsCancelled(sink->Wait(1).end->status));
  EXPECT_EQ(store.late_, 0);
  store.Open();
  service.reset();
}

// Dead from some blob on, or damaged there: that costs rows, and no bits.
TEST_F(ServingPrefixTest, WhatTheStoreDoesCostsNoBits) {
  const char* const specs[] = {"int8", "verify:0.5+int4", "kvzip:0.4,chunk=64", "off"};
  for (uint64_t i = 0; i < std::size(specs); ++i) Push(i + 1, i + 1, specs[i]);
  for (const uint64_t budget : {uint64_t{0}, uint64_t{3} << 20})
    for (const int64_t good : {0, 1, 3, 9})
      for (const bool dead : {false, true}) {
        kv_memory_ = budget;
        const auto service = Serve([&](int64_t number, Deadline) -> absl::Status {
          if (dead ? number < good : number != good) return absl::OkStatus();
          return dead ? absl::UnavailableError("gone") : absl::NotFoundError("damaged");
        });
        std::vector<ServeRequest> requests;
        std::vector<std::shared_ptr<Collector>> sinks;
        for (uint64_t j = 0; j < std::size(specs); ++j) {
          ServeRequest request = Question(j + 1, 30 + j, specs[j], 16);
          request.num_choices = j == 1 ? 3 : 1;
          request.logprobs = j == 3;
          if (j % 2 == 1) {
            request.request.sampling.temperature = 0.9F;
            request.request.sampling.seed = j;
          }
          requests.push_back(request);
          sinks.push_back(Submit(service.get(), request));
        }
        for (size_t j = 0; j < requests.size(); ++j)
          ExpectRight(requests[j], sinks[j].get(),
                      std::string(specs[j]) + (dead ? " dead after " : " damaged at ") +
                          std::to_string(good));
        service->Stop(1e9);
        EXPECT_EQ(service->stats().failed, 0);
      }
}

// What is loading is a part of the budget, as is what was loaded and waits to be taken: the service
// is kept in a pass while the store answers, with requests that could use all of the budget.
TEST_F(ServingPrefixTest, LoadsStayWithinTheBudget) {
  constexpr uint64_t kDocuments = 8;
  Push(1, kDocuments);
  kv_memory_ = 640 << 10;
  std::atomic<int64_t> num_blobs{0};
  Latch running;
  const auto service = Serve([&](int64_t, Deadline) {
    running.Wait();
    ++num_blobs;
    return absl::OkStatus();
  });
  std::vector<ServeRequest> requests;
  std::vector<std::shared_ptr<Collector>> sinks;
  int num_tokens = 0;
  for (uint64_t i = 0; i < 3; ++i) {
    requests.push_back(Ask(TestPrompt(1900, 90 + i), 60));
    requests.back().request.draft = "off";
    requests.back().request.ignore_eos = true;
    requests.back().request.use_prefix_cache = false;
    requests.back().request.propose = "off";  // a token at a time
    sinks.push_back(std::make_shared<Collector>());
    sinks.back()->on_delta = [&](const ServeDelta&) {
      if (++num_tokens != 90) return;
      running.Open();
      for (int64_t blobs = -1; blobs < num_blobs; std::this_thread::sleep_for(kQuiet))
        blobs = num_blobs;
    };
    ASSERT_TRUE(service->Submit(requests.back(), sinks.back()).ok());
  }
  for (uint64_t i = 0; i < kDocuments; ++i) {
    requests.push_back(Question(1 + i, 40 + i, "off", 40));
    sinks.push_back(Submit(service.get(), requests.back()));
  }
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(ExpectRight(requests[i], sinks[i].get(), std::to_string(i)), i < 3 ? 0 : kPrefix);
  // Staging and what a rebuild takes are kept free all the time.
  const size_t kept_free = loop_.staging_bytes + loop_.rebuild_bytes;
  EXPECT_LE(tier_->pool().num_used_peak() * tier_->pool().block_bytes(), kv_memory_ - kept_free);
}

// Two questions about one document load it once; the second finds it in RAM, without the store.
TEST_F(ServingPrefixTest, ThoseThatBeginAlikeLoadOnce) {
  Push(1, 1, "off");
  prefix_memory_ = 64 << 20;
  Holding store;
  const auto service = Serve(store.before());
  const ServeRequest first = Question(1, 10, "off"), second = Question(1, 11, "off");
  const auto first_sink = Submit(service.get(), first);
  store.AwaitHeld();
  const auto second_sink = Submit(service.get(), second);
  store.Open();
  EXPECT_EQ(ExpectRight(first, first_sink.get(), "first"), kPrefix);
  EXPECT_GE(ExpectRight(second, second_sink.get(), "second"), kPrefix);
  service->Stop(1e9);
  EXPECT_EQ(store.num_blobs_, kBlocks);
  EXPECT_EQ(service->stats().prefix.memory_hits, 1);
  EXPECT_EQ(service->stats().prefix.store_hits, 1);
}

TEST_F(ServingPrefixTest, ARestartedServiceFindsWhatTheLastOneStored) {
  const ServeRequest request = Question(1, 10, "verify:0.5+int4");
  for (const bool again : {false, true}) {
    auto service = StartService(Load(WithStore()), {});
    ASSERT_TRUE(service.ok()) << service.status();
    const int64_t cached = ExpectRight(request, Submit(service->get(), request).get(), "restart");
    EXPECT_EQ(cached > 0, again);
  }
}

std::vector<Request> RequestsOf(const std::vector<ServeRequest>& from) {
  std::vector<Request> requests;
  for (const ServeRequest& request : from) requests.push_back(request.request);
  return requests;
}

TEST_F(ServingPrefixTest, ABatchAnswersOthersWhileAStoreHangs) {
  Push(1, 2);
  for (const uint64_t budget : {uint64_t{0}, uint64_t{3} << 20}) {
    kv_memory_ = budget;
    Holding store;
    const auto engine = Far(store.before());
    const auto requests = RequestsOf({Question(1, 10), Question(7, 11), Question(2, 12)});
    std::vector<size_t> order;
    BatchOptions options;
    options.on_finished = [&](size_t idx, const absl::StatusOr<Completion>&) {
      order.push_back(idx);
      if (order.size() == 2) store.Open();
      return true;
    };
    BatchReport report;
    // The store holds the blob of whoever asks first back: the others end before it.
    const auto got = engine->GenerateBatch(requests, options, &report);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(AnswerOf(got[i]), AnswerOf(alone_->Generate(requests[i]))) << i;
      EXPECT_EQ(got[i]->usage.cached_tokens, i == 1 ? 0 : kPrefix) << i;
    }
    EXPECT_EQ(order.size(), 3u);
    EXPECT_NE(order[2], 1u);
    EXPECT_EQ(store.late_, 0);
    if (budget > 0) {
      EXPECT_LE(report.peak_kv_bytes, budget);
    }
  }
}

TEST_F(ServingPrefixTest, ABatchCanBeStoppedWhileAStoreHangs) {
  Push(1, 1);
  Holding store;
  const auto engine = Far(store.before());
  const auto requests = RequestsOf({Question(1, 10), Question(7, 11)});
  bool answered = false;
  BatchOptions options;
  options.on_finished = [&](size_t idx, const absl::StatusOr<Completion>&) {
    answered = idx == 1;
    return true;
  };
  int looks = 0;
  options.on_progress = [&](int64_t) {
    if (!answered || ++looks < 5) return true;
    store.Open();
    return false;
  };
  const auto got = engine->GenerateBatch(requests, options, nullptr);
  EXPECT_TRUE(absl::IsCancelled(got[0].status())) << got[0].status();
  EXPECT_EQ(AnswerOf(got[1]), AnswerOf(alone_->Generate(requests[1])));
  EXPECT_EQ(store.late_, 0);
}

}  // namespace
}  // namespace vericache
