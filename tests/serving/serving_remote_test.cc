// A service whose requests are verified elsewhere: the answers are those of Engine::Generate(), bit
// for bit, whatever the verifiers do; requests go on while the questions of others are away.
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/prefix/prefix_fixture.h"
#include "tests/serving/serving_test_util.h"
#include "vericache/remote.h"

namespace vericache {
namespace {

constexpr int64_t kPrefix = 192;
const char* const kSpecs[] = {"verify:0.25+int4", "snapkv:0.3", "kvzip:0.3+int4",
                              "sink:0.25",        "quest:0.5",  "off"};

// A verifier that can be killed and started again, and whose questions can be held back.
class SwitchedVerifier : public RemoteVerifier {
 public:
  explicit SwitchedVerifier(std::string name) : name_(std::move(name)) {}

  // Called within each call of Verify() from another thread than the service's; its number.
  std::function<void(int call, const RemoteVerify&)> on_verify;

  void Start(std::unique_ptr<VerifierHost> host) {
    const std::lock_guard<std::mutex> lock(mutex_);
    host_ = std::move(host);
  }
  // What it does ends in the middle.
  void Kill() {
    std::shared_ptr<VerifierHost> host;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      host.swap(host_);
    }
    if (host != nullptr) host->Stop();
  }
  absl::StatusOr<std::string> Open(const RemoteOpen& request) override {
    const std::shared_ptr<VerifierHost> host = Host();
    return host == nullptr ? absl::UnavailableError("dead") : host->Open(request);
  }
  absl::StatusOr<RemoteVerified> Verify(const RemoteVerify& request) override {
    if (on_verify) on_verify(num_calls_++, request);
    const std::shared_ptr<VerifierHost> host = Host();
    return host == nullptr ? absl::UnavailableError("dead") : host->Verify(request);
  }
  void Close(const std::string& session) override {
    const std::shared_ptr<VerifierHost> host = Host();
    if (host != nullptr) host->Close(session);
  }
  std::string name() const override { return name_; }
  VerifierStats stats() { return Host()->stats(); }

 private:
  std::shared_ptr<VerifierHost> Host() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return host_;
  }
  const std::string name_;
  std::atomic<int> num_calls_{0};
  std::mutex mutex_;
  std::shared_ptr<VerifierHost> host_;
};

class ServingRemoteTest : public PrefixFixture {
 protected:
  void SetUp() override {
    PrefixFixture::SetUp();
    alone_ = Load(Options());
    for (const auto& verifier : verifiers_) verifier->Start(NewHost());
  }
  std::unique_ptr<VerifierHost> NewHost() {
    EngineOptions options = WithStore();
    options.prefix_memory_bytes = 64 << 20;
    auto host = StartVerifier(Load(options), {});
    EXPECT_TRUE(host.ok()) << host.status();
    return *std::move(host);
  }
  void Push(const std::vector<std::string>& specs) {
    const std::unique_ptr<Engine> engine = Load(WithStore());
    PrefixPushOptions options;
    options.drafts = specs;
    const auto pushed = engine->PushPrefix(Ask(TestPrompt(kPrefix, 1)), options);
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  std::unique_ptr<CompletionService> Serve(ServiceOptions options = {}) {
    EngineOptions engine = WithStore();
    engine.prefix_store_mode = "ro";
    engine.prefix_plan = plan_;
    engine.prefix_memory_bytes = prefix_memory_;
    engine.kv_memory = kv_memory_;
    engine.kv_dir = testing::TempDir();
    for (const auto& verifier : verifiers_) options.verifiers.push_back(verifier);
    options.verifier_pause_s = 0.002;
    auto service = StartService(Load(engine), options);
    EXPECT_TRUE(service.ok()) << service.status();
    return *std::move(service);
  }
  static ServeRequest Question(const std::string& draft, uint64_t seed, int64_t max_tokens = 40) {
    ServeRequest request = Ask(TestPrompt(kPrefix, 1) + TestPrompt(11, seed), max_tokens);
    request.request.draft = draft;
    request.request.ignore_eos = true;
    return request;
  }
  // Of all kinds: specs, sampling, penalties, stop strings, choices, logprobs, salts.
  std::vector<ServeRequest> MixedQuestions(int count) {
    std::vector<ServeRequest> requests;
    for (int i = 0; i < count; ++i) {
      ServeRequest request = Question(kSpecs[i % std::size(kSpecs)], 100 + i, 20 + 3 * (i % 9));
      Request& r = request.request;
      r.ignore_eos = i % 4 != 0 && i % 3 != 1;  // the oracle of stop strings knows no end tokens
      r.draft_len = i % 3 == 0 ? 5 : 0;
      if (i % 2 == 1) {
        r.sampling.temperature = 0.9f;
        r.sampling.seed = i;
        r.sampling.frequency_penalty = 0.3f;
        r.sampling.repetition_penalty = 1.1f;
        r.sampling.logit_bias = {{5, 1.5f}};
      }
      request.num_choices = i % 5 == 4 ? 3 : 1;
      request.logprobs = i % 8 == 7;
      if (i % 6 == 2) r.prefix_salt = "tenant";
      if (i % 3 == 1) {
        const std::string text = Oracle(alone_.get(), request).text;
        if (const std::string stop = PieceOf(text, text.size() / 2, 5); !stop.empty())
          request.stop.push_back(stop);
      }
      requests.push_back(request);
    }
    return requests;
  }
  // One verifier, whose questions stay away until the gate is open.
  void HoldQuestions(Gate* gate, std::atomic<bool>* asked) {
    verifiers_.resize(1);
    verifiers_[0]->on_verify = [=](int, const RemoteVerify&) {
      *asked = true;
      gate->Wait();
    };
  }
  // A client leaves while the question of its request is away.
  void ExpectLeavingClosesItsSession(ServiceOptions options = {}) {
    Gate gate;
    std::atomic<bool> asked{false};
    HoldQuestions(&gate, &asked);
    const auto service = Serve(options);
    auto sink = std::make_shared<Collector>();
    const auto id = service->Submit(Question("h2o:0.3", 1), sink);
    ASSERT_TRUE(id.ok()) << id.status();
    while (!asked) std::this_thread::yield();
    service->Cancel(*id);
    // At once, although its question is still away.
    EXPECT_TRUE(absl::IsCancelled(sink->Wait().end->status));
    while (verifiers_[0]->stats().sessions > 0) std::this_thread::yield();
    gate.Open();
    service->Stop(0);
    EXPECT_EQ(service->stats().cancelled, 1);
  }

  std::vector<std::shared_ptr<Collector>> SubmitAll(CompletionService* service,
                                                    const std::vector<ServeRequest>& requests) {
    std::vector<std::shared_ptr<Collector>> sinks;
    for (const ServeRequest& request : requests) {
      sinks.push_back(std::make_shared<Collector>(request.num_choices));
      EXPECT_TRUE(service->Submit(request, sinks.back()).ok());
    }
    return sinks;
  }
  void ExpectAll(const std::vector<ServeRequest>& requests,
                 const std::vector<std::shared_ptr<Collector>>& sinks) {
    for (size_t i = 0; i < requests.size(); ++i)
      for (int choice = 0; choice < requests[i].num_choices; ++choice)
        ExpectAnswer(sinks[i]->Wait(choice), Oracle(alone_.get(), requests[i], choice),
                     requests[i].request.draft + " " + std::to_string(i) + " choice " +
                         std::to_string(choice));
  }
  // Answers that one of the verifiers has had the last word on.
  static int CountRemote(const std::vector<std::shared_ptr<Collector>>& sinks,
                         const std::vector<ServeRequest>& requests) {
    int count = 0;
    for (size_t i = 0; i < sinks.size(); ++i)
      for (int choice = 0; choice < requests[i].num_choices; ++choice)
        count += !sinks[i]->Wait(choice).end->completion.stats.remote.verifier.empty();
    return count;
  }

  std::string plan_ = "auto";
  uint64_t kv_memory_ = 0, prefix_memory_ = 0;
  std::unique_ptr<Engine> alone_;
  std::vector<std::shared_ptr<SwitchedVerifier>> verifiers_{
      std::make_shared<SwitchedVerifier>("first"), std::make_shared<SwitchedVerifier>("second")};
};

TEST_F(ServingRemoteTest, MixedRequestsOverTwoVerifiers) {
  Push({kSpecs, kSpecs + std::size(kSpecs) - 1});
  const std::vector<ServeRequest> requests = MixedQuestions(24);
  const auto service = Serve();
  const auto sinks = SubmitAll(service.get(), requests);
  ExpectAll(requests, sinks);
  int num_choices = 0, num_logits = 0;
  for (const ServeRequest& request : requests) {
    num_choices += request.num_choices;
    if (request.logprobs) num_logits += request.num_choices;
  }
  EXPECT_EQ(CountRemote(sinks, requests), num_choices - num_logits);
  service->Stop(1e9);
  const ServiceStats stats = service->stats();
  EXPECT_EQ(stats.finished, num_choices);
  EXPECT_EQ(stats.remote.requests, num_choices - num_logits);
  EXPECT_EQ(stats.remote.fallbacks + stats.remote.failed_calls, 0);
  EXPECT_GT(stats.remote.accepted_tokens, 0);
  EXPECT_GT(stats.remote.rows_bytes, 0u);
  EXPECT_EQ(stats.remote.verifiers_up, 2);
  for (const auto& verifier : verifiers_) EXPECT_GT(verifier->stats().opened, 0);
}

// One is killed in the middle of its questions, then the other, while the first comes back.
TEST_F(ServingRemoteTest, VerifiersAreKilledAndRestartedInBetween) {
  Push({kSpecs, kSpecs + std::size(kSpecs) - 1});
  for (const uint64_t budget : {uint64_t{0}, uint64_t{4} << 20}) {
    kv_memory_ = budget;
    for (const auto& verifier : verifiers_) verifier->Start(NewHost());
    const std::vector<ServeRequest> requests = MixedQuestions(24);
    const auto service = Serve();
    std::atomic<int> calls{0};
    const auto on_verify = [&](int, const RemoteVerify&) {
      const int call = calls++;
      if (call == 12) verifiers_[0]->Kill();
      if (call == 24) verifiers_[0]->Start(NewHost());
      if (call == 36) verifiers_[1]->Kill();
    };
    for (const auto& verifier : verifiers_) verifier->on_verify = on_verify;
    const auto sinks = SubmitAll(service.get(), requests);
    ExpectAll(requests, sinks);
    EXPECT_GT(service->stats().remote.failed_calls, 0);
    // How much of them the verifiers came to say before they were killed is chance.
    // All dead: what comes now is computed here.
    verifiers_[0]->Kill();
    verifiers_[1]->Kill();
    const std::vector<ServeRequest> later = MixedQuestions(5);
    const auto later_sinks = SubmitAll(service.get(), later);
    ExpectAll(later, later_sinks);
    EXPECT_EQ(CountRemote(later_sinks, later), 0);
    // A restarted one is used again, by later requests.
    verifiers_[1]->Start(NewHost());
    for (int used = 0; used == 0;) {
      const std::vector<ServeRequest> last = MixedQuestions(3);
      const auto last_sinks = SubmitAll(service.get(), last);
      ExpectAll(last, last_sinks);
      used = CountRemote(last_sinks, last);
    }
    service->Stop(1e9);
    EXPECT_EQ(service->stats().failed, 0);
  }
}

TEST_F(ServingRemoteTest, OthersGetTokensWhileAQuestionIsHeldBack) {
  Push({"h2o:0.3"});
  verifiers_.resize(1);
  Gate gate;
  std::mutex mutex;
  std::string held;  // the session of the first question
  verifiers_[0]->on_verify = [&](int, const RemoteVerify& question) {
    bool is_held;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (held.empty()) held = question.session;
      is_held = held == question.session;
    }
    if (is_held) gate.Wait();
  };
  const auto service = Serve();
  const auto all = {Question("h2o:0.3", 1), Question("h2o:0.3", 2), Question("off", 3)};
  const std::vector<ServeRequest> requests(all);
  const std::vector<ServeRequest> first(requests.begin(), requests.begin() + 1);
  const auto first_sinks = SubmitAll(service.get(), first);
  for (bool asked = false; !asked;) {
    const std::lock_guard<std::mutex> lock(mutex);
    asked = !held.empty();
  }
  const std::vector<ServeRequest> others(requests.begin() + 1, requests.end());
  // They are whole although the first one's question has not come back.
  ExpectAll(others, SubmitAll(service.get(), others));
  EXPECT_FALSE(first_sinks[0]->ended());
  EXPECT_EQ(first_sinks[0]->num_deltas(), 0);
  gate.Open();
  ExpectAll(first, first_sinks);
}

TEST_F(ServingRemoteTest, AClientThatLeavesClosesItsSession) {
  Push({"h2o:0.3"});
  ExpectLeavingClosesItsSession();
}

TEST_F(ServingRemoteTest, AStopDoesNotWaitForAVerifier) {
  Gate gate;
  std::atomic<bool> asked{false};
  HoldQuestions(&gate, &asked);
  const auto service = Serve();
  auto sink = std::make_shared<Collector>();
  ASSERT_TRUE(service->Submit(Question("off", 1), sink).ok());
  while (!asked) std::this_thread::yield();
  service->Stop(0.01);
  EXPECT_TRUE(sink->ended());
  gate.Open();
}

TEST_F(ServingRemoteTest, WhatAllShareCrossesTheLinkOnce) {
  Push({"h2o:0.3"});
  ServiceOptions options;
  options.remote.early_tokens = 0;
  const auto service = Serve(options);
  std::vector<ServeRequest> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(Question("h2o:0.3", 200 + i));
  const auto sinks = SubmitAll(service.get(), requests);
  ExpectAll(requests, sinks);
  for (const auto& sink : sinks)
    EXPECT_EQ(sink->Wait().end->completion.stats.remote.draft_tokens, kPrefix);
  const RemoteServiceStats stats = service->stats().remote;
  EXPECT_EQ(stats.fetched_drafts, 1);
  EXPECT_EQ(stats.shared_drafts, 7);
  EXPECT_GT(stats.draft_bytes, 0u);
}

// By each way, with and without a budget, at once and in the middle of an answer.
TEST_F(ServingRemoteTest, EveryWayAndEveryHandOverGivesTheSameAnswers) {
  Push({kSpecs, kSpecs + std::size(kSpecs) - 1});
  for (const char* plan : {"remote", "remote-plain", "load", "recompute"}) {
    for (const uint64_t budget : {uint64_t{0}, uint64_t{64} << 20}) {
      for (const int64_t least : {0, 7}) {
        plan_ = plan;
        kv_memory_ = budget;
        prefix_memory_ = uint64_t{16} << 20;
        ServiceOptions options;
        options.remote.least_tokens_for_tests = least;
        const std::vector<ServeRequest> requests = MixedQuestions(16);
        const auto service = Serve(options);
        const auto sinks = SubmitAll(service.get(), requests);
        ExpectAll(requests, sinks);
        service->Stop(1e9);
        const ServiceStats stats = service->stats();
        const std::string what =
            std::string(plan) + " " + std::to_string(budget) + " " + std::to_string(least);
        EXPECT_EQ(stats.failed + stats.remote.fallbacks + stats.remote.failed_calls, 0) << what;
        std::map<std::string, int64_t> ways;
        for (const auto& [way, count] : stats.remote.ways) ways[way] = count;
        const bool here = plan_ == "load" || plan_ == "recompute";
        EXPECT_EQ(CountRemote(sinks, requests) < stats.remote.requests, here) << what;
        EXPECT_EQ(ways[plan_] > 0, here || plan_ == "remote" || plan_ == "remote-plain") << what;
        // All begin alike: what one has loaded the others find in RAM.
        EXPECT_EQ(stats.remote.full_bytes > 0, plan_ == "load") << what;
        EXPECT_TRUE(plan_ != "remote-plain" || stats.remote.drafted_tokens == 0) << what;
        for (const auto& verifier : verifiers_)
          while (verifier->stats().sessions > 0) std::this_thread::yield();
      }
    }
  }
}

// By itself: what this node's RAM has need not be asked for far away.
TEST_F(ServingRemoteTest, ASlowVerifierIsLeftForWhatIsInRam) {
  Push({"h2o:0.3"});
  verifiers_.resize(1);
  verifiers_[0]->on_verify = [](int, const RemoteVerify&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  prefix_memory_ = uint64_t{64} << 20;
  const auto service = Serve();
  ServeRequest here = Question("h2o:0.3", 1);
  here.logprobs = true;  // computed here, and kept
  ExpectAll({here}, SubmitAll(service.get(), {here}));
  EXPECT_EQ(service->stats().remote.requests, 0);
  const std::vector<ServeRequest> next = {Question("h2o:0.3", 2, 100)};
  const auto sinks = SubmitAll(service.get(), next);
  ExpectAll(next, sinks);
  const RemoteStats stats = sinks[0]->Wait().end->completion.stats.remote;
  EXPECT_EQ(stats.plan, "recompute") << stats.reason;
  EXPECT_EQ(stats.fallback, "");
  EXPECT_GT(stats.local_tokens, 0);
  EXPECT_FALSE(stats.estimates.empty());
  EXPECT_GT(stats.handed_over_s, 0);
  EXPECT_EQ(service->stats().remote.full_bytes, 0u);
}

// One link: who begins like one that is loading waits for that, at the verifier.
TEST_F(ServingRemoteTest, AlikeRequestsLoadTheirBlocksOnce) {
  Push({"h2o:0.3"});
  plan_ = "load";
  prefix_memory_ = uint64_t{64} << 20;
  const auto service = Serve();
  std::vector<ServeRequest> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(Question("h2o:0.3", 400 + i, 60));
  ExpectAll(requests, SubmitAll(service.get(), requests));
  const ServiceStats stats = service->stats();
  EXPECT_EQ(stats.remote.full_bytes, kPrefix * alone_->info().kv_bytes_per_token);
}

TEST_F(ServingRemoteTest, AClientThatLeavesWhileItsBlocksArrive) {
  Push({"h2o:0.3"});
  plan_ = "load";
  ServiceOptions options;
  options.remote.least_tokens_for_tests = 5;  // its blocks are here, and it is not let go
  ExpectLeavingClosesItsSession(options);
}

// Without room for draft KV the verifier decodes.
TEST_F(ServingRemoteTest, DraftKvIsBounded) {
  Push({"f16"});
  ServiceOptions options;
  options.remote_draft_memory = 1000;
  const auto service = Serve(options);
  std::vector<ServeRequest> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(Question("f16", 300 + i));
    requests.back().request.propose = "off";
  }
  ExpectAll(requests, SubmitAll(service.get(), requests));
  const RemoteServiceStats stats = service->stats().remote;
  EXPECT_EQ(stats.drafted_tokens, 0);
  EXPECT_EQ(stats.draft_bytes, 0u);
  EXPECT_EQ(stats.fallbacks, 0);
}

TEST_F(ServingRemoteTest, SenselessOptionsAreRefused) {
  for (int kind = 0; kind < 3; ++kind) {
    ServiceOptions options;
    if (kind == 0) options.verifiers.push_back(nullptr);
    if (kind == 1) options.verifier_pause_s = 0;
    if (kind == 2) options.remote.tries = 0;
    EXPECT_TRUE(absl::IsInvalidArgument(StartService(Load(Options()), options).status())) << kind;
  }
}

}  // namespace
}  // namespace vericache
