// A service with verifiers that a test can kill, start again, hold back and falsify, and a store
// that it can move away.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/prefix/far_store.h"
#include "tests/prefix/prefix_fixture.h"
#include "tests/serving/serving_test_util.h"
#include "vericache/remote.h"

namespace vericache {

inline constexpr int64_t kPrefix = 192;
inline const char* const kSpecs[] = {"verify:0.25+int4", "snapkv:0.3", "kvzip:0.3+int4",
                                     "sink:0.25",        "quest:0.5",  "off"};

// A verifier that can be killed and started again, and whose questions can be held back.
class SwitchedVerifier : public RemoteVerifier {
 public:
  explicit SwitchedVerifier(std::string name) : name_(std::move(name)) {}

  // Called within each call of Verify() from another thread than the service's; its number.
  std::function<void(int call, const RemoteVerify&)> on_verify;
  // May change what it has answered; called as on_verify.
  std::function<void(RemoteVerified*)> on_reply;

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
    if (host == nullptr) return absl::UnavailableError("dead");
    absl::StatusOr<RemoteVerified> reply = host->Verify(request);
    if (reply.ok() && on_reply) on_reply(&*reply);
    return reply;
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
    std::unique_ptr<Engine> loaded = Load(engine);
    engine_ = EngineAccess::Of(loaded.get());
    if (link_.is_remote) MoveStoreAway(store_, link_, before_, loaded.get());
    auto service = StartService(std::move(loaded), options);
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
      if (i % 2 == 1) SampleWithAll(i, &r);
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
  StoreLink link_;  // of the store, where it is far away
  FarStore::Before before_;
  EngineAccess::Impl* engine_ = nullptr;  // of the last service
  std::unique_ptr<Engine> alone_;
  std::vector<std::shared_ptr<SwitchedVerifier>> verifiers_{
      std::make_shared<SwitchedVerifier>("first"), std::make_shared<SwitchedVerifier>("second")};
};

}  // namespace vericache
