// A service whose requests are verified elsewhere: the answers are those of Engine::Generate(), bit
// for bit, whatever the verifiers do; requests go on while the questions of others are away.
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/serving/serving_remote_fixture.h"

namespace vericache {
namespace {

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
