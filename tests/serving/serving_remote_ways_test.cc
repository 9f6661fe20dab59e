// What a service with a verifier knows when it chooses a request's way: blocks that have come, who
// else is there, what a step takes. The answers stay those of Engine::Generate().
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "scheduler/remote_length.h"
#include "tests/serving/serving_remote_fixture.h"

namespace vericache {
namespace {

using std::chrono::milliseconds;

class ServingRemoteWaysTest : public ServingRemoteTest {
 protected:
  void SetUp() override {
    ServingRemoteTest::SetUp();
    verifiers_.resize(1);
    prefix_memory_ = uint64_t{64} << 20;
    link_ = {true, 1e6, 0.001};
    before_ = [this](int64_t number, Deadline) {
      num_reads_ = number + 1;
      return number < fails_from_ ? absl::OkStatus() : absl::UnavailableError("gone");
    };
  }
  // Predictions that no machine is fast enough to change: a pass takes a second.
  void MakePassesSlow(double row_s = 0.05) {
    PassGuess guess = PassGuess::Of(1);
    guess.row_s = row_s;
    engine_->Learned()->costs = CostModel(guess, 1e9);
  }
  static ServeRequest Here(ServeRequest request) {
    request.logprobs = true;  // no verifier has them
    return request;
  }
  const Collector::Choice& Answer(CompletionService* service, const ServeRequest& request) {
    sinks_.push_back(SubmitAll(service, {request})[0]);
    ExpectAll({request}, {sinks_.back()});
    return sinks_.back()->Wait();
  }
  static const RemoteStats& StatsOf(const Collector::Choice& choice) {
    return choice.end->completion.stats.remote;
  }
  // Not for ever.
  static bool Await(const std::function<bool()>& is_so) {
    for (int i = 0; i < 1000; ++i) {
      if (is_so()) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }
  // Answered while its questions wait for the blocks that it loads.
  const Collector::Choice& AnswerAfterItsLoad(CompletionService* service, Gate* gate,
                                              const ServeRequest& request) {
    sinks_.push_back(SubmitAll(service, {request})[0]);
    EXPECT_TRUE(Await([&] { return service->stats().remote.full_bytes > 0; }));
    gate->Open();
    ExpectAll({request}, {sinks_.back()});
    return sinks_.back()->Wait();
  }

  std::atomic<int64_t> num_reads_{0}, fails_from_{int64_t{1} << 40};  // blobs
  std::vector<std::shared_ptr<Collector>> sinks_;
};

// They were asked for in case it leaves. It does not, but others may.
TEST_F(ServingRemoteWaysTest, BlocksOfOneThatStaysAreForAll) {
  Push({"h2o:0.3"});
  link_.bytes_per_s = 5e3;  // too slow to leave for by guess, fast enough to begin
  Gate gate;
  std::atomic<bool> asked{false};
  const auto service = Serve();
  Answer(service.get(), Here(Ask(TestPrompt(30, 77), 1)));  // its warm-up is over
  MakePassesSlow();
  HoldQuestions(&gate, &asked);
  const ServeRequest stays = Question("h2o:0.3", 1, 4);  // over before a choice is measured
  const RemoteStats stats = StatsOf(AnswerAfterItsLoad(service.get(), &gate, stays));
  EXPECT_EQ(stats.plan.substr(0, 6), "remote") << stats.reason;
  EXPECT_EQ(stats.local_tokens, 0) << stats.reason;
  EXPECT_EQ(stats.full_bytes, kPrefix * alone_->info().kv_bytes_per_token);
  const int64_t before = num_reads_;
  EXPECT_EQ(Answer(service.get(), Here(Question("off", 2))).end->completion.usage.cached_tokens,
            kPrefix);
  EXPECT_EQ(num_reads_, before);
  EXPECT_EQ(service->stats().remote.full_bytes, stats.full_bytes);
}

// Its verifier has all that it would have to compute here. The store fails at each of its reads.
TEST_F(ServingRemoteWaysTest, OneWhoseBlocksDoNotAllComeStays) {
  Push({"sink:0.25"});
  plan_ = "load";
  constexpr int64_t kBlocks = kPrefix / kBlockTokens;
  int64_t stayed = 0, part = 0;
  for (int64_t fails_from = 1; fails_from <= 1 + kBlocks; ++fails_from) {  // the draft KV is first
    fails_from_ = fails_from;
    num_reads_ = 0;
    Gate gate;
    std::atomic<bool> asked{false};
    HoldQuestions(&gate, &asked);
    const auto service = Serve();
    const ServeRequest question = Question("sink:0.25", 1, 120);
    sinks_ = SubmitAll(service.get(), {question});
    ASSERT_TRUE(Await([&] { return num_reads_ >= std::min(1 + kBlocks, fails_from + 1); }));
    std::this_thread::sleep_for(milliseconds(200));  // then the load is over
    gate.Open();
    ExpectAll({question}, sinks_);
    const RemoteStats& stats = StatsOf(sinks_[0]->Wait());
    EXPECT_EQ(stats.fallback, "");
    EXPECT_EQ(stats.local_tokens > 0, stats.plan == "load") << stats.reason;
    const bool all = stats.full_bytes == kPrefix * alone_->info().kv_bytes_per_token;
    EXPECT_EQ(stats.plan, all ? "load" : "remote") << stats.reason;
    EXPECT_EQ(stats.reason.find(" of 192 tokens came") == std::string::npos, all) << stats.reason;
    stayed += stats.plan == "remote" ? 1 : 0;
    if (stats.reason.find("only 64 of") == std::string::npos) continue;
    ++part;  // and is in RAM
    EXPECT_EQ(Answer(service.get(), Here(Question("off", 2))).end->completion.usage.cached_tokens,
              64);
  }
  EXPECT_EQ(stayed, kBlocks);
  EXPECT_EQ(part, 1);
}

// Rows in RAM, kept by a request that chose no draft KV: the scores are read, not computed.
TEST_F(ServingRemoteWaysTest, ScoresThatRamLacksComeFromTheStore) {
  Push({"kvzip:0.3+int4"});
  plan_ = "load";
  std::map<std::string, int64_t> reads;
  for (const char* first : {"off", "kvzip:0.3+int4"}) {
    const auto service = Serve();
    Answer(service.get(), Here(Question(first, 1)));
    const int64_t before = num_reads_;
    const RemoteStats stats = StatsOf(Answer(service.get(), Question("kvzip:0.3+int4", 2)));
    EXPECT_EQ(stats.plan, "load") << stats.reason;
    EXPECT_GT(stats.local_tokens, 0);
    reads[first] = num_reads_ - before;
  }
  EXPECT_EQ(reads["off"], reads["kvzip:0.3+int4"] + kPrefix / kBlockTokens);
}

// What the verifier tells of other nodes' requests makes it slower to one that is yet to choose;
// their prompts come first.
TEST_F(ServingRemoteWaysTest, RequestsOfOtherNodesCount) {
  Push({"h2o:0.3"});
  std::vector<double> last_s;
  for (const auto& [num_answering, num_prompts] : {std::pair(0, 0), {200, 0}, {0, 200}}) {
    verifiers_[0]->on_reply = [=](RemoteVerified* reply) {
      reply->num_answering += num_answering;
      reply->num_prompts += num_prompts;
    };
    const auto service = Serve();
    Answer(service.get(), Here(Question("off", 1)));
    Answer(service.get(), Ask(TestPrompt(30, 77), 1));  // hears it: nobody else has its prompt
    MakePassesSlow();
    ServeRequest question = Question("off", 3);
    question.request.propose = "off";
    const RemoteStats stats = StatsOf(Answer(service.get(), question));
    for (const auto& estimate : stats.estimates)
      if (estimate.way == "remote-plain") last_s.push_back(estimate.last_s);
    EXPECT_TRUE(last_s.size() == 1 || stats.local_tokens > 0) << stats.reason;
  }
  ASSERT_EQ(last_s.size(), 3);
  EXPECT_GT(last_s[0], 0);
  EXPECT_GT(last_s[1], 5 * last_s[0]);
  EXPECT_GT(last_s[2], last_s[1] + last_s[0]);
}

// They say what the verifier takes while it computes the prompts, not what it takes behind them;
// where prompts never end, they count.
TEST_F(ServingRemoteWaysTest, QuestionsAmongPromptsMeasureNothing) {
  plan_ = "remote";
  verifiers_[0]->on_verify = [](int, const RemoteVerify&) {
    std::this_thread::sleep_for(milliseconds(50));
  };
  const double guess_s = RemoteGuess().round_trip_s;
  for (const auto& [num_prompts, num_questions] : {std::pair(0, 3), {1, 3}, {1, 20}, {1, 30}}) {
    verifiers_[0]->on_reply = [=](RemoteVerified* reply) { reply->num_prompts += num_prompts; };
    const auto service = Serve();
    ServeRequest question = Question("off", 1, 16 * num_questions);
    question.request.propose = "off";
    const double round_trip_s = StatsOf(Answer(service.get(), question)).round_trip_s;
    if (num_prompts == 1 && num_questions < 24)
      EXPECT_EQ(round_trip_s, guess_s) << num_questions;
    else
      EXPECT_GT(round_trip_s, 1.5 * guess_s) << num_questions;
  }
}

// Rates that were measured among many are scaled for one that is alone. No question takes less
// than the pause here.
TEST_F(ServingRemoteWaysTest, WhatWasMeasuredAmongManyIsScaled) {
  Push({"h2o:0.3"});
  plan_ = "remote-plain";
  constexpr milliseconds kPause(100);
  verifiers_[0]->on_verify = [=](int, const RemoteVerify&) { std::this_thread::sleep_for(kPause); };
  const auto service = Serve();
  std::vector<ServeRequest> many;
  for (int i = 0; i < 12; ++i) {
    many.push_back(Question("off", i, 64));
    many.back().request.propose = "off";
  }
  ExpectAll(many, SubmitAll(service.get(), many));
  MakePassesSlow(1);  // twelve rows take six times as long as one
  ServeRequest alone = Question("off", 20, 16);
  alone.request.propose = "off";
  const RemoteStats stats = StatsOf(Answer(service.get(), alone));
  const double most_per_s = 16 / std::chrono::duration<double>(kPause).count();
  bool found = false;
  for (const auto& estimate : stats.estimates) {
    if (estimate.way != "remote-plain") continue;
    found = true;
    EXPECT_GT(estimate.tokens_per_s, 2 * most_per_s) << stats.reason;
  }
  EXPECT_TRUE(found) << stats.reason;
}

// A node that computes for others in between drafts more slowly than its passes take.
TEST_F(ServingRemoteWaysTest, AStepTakesWhatItsRequestWaits) {
  Push({"h2o:0.3"});
  plan_ = "remote";
  const auto service = Serve();
  constexpr milliseconds kPause(10);
  std::atomic<bool> begun{false};
  auto other = std::make_shared<Collector>();
  other->on_delta = [&](const ServeDelta&) {
    begun = true;
    std::this_thread::sleep_for(kPause);
  };
  const auto id = service->Submit(Here(Question("off", 1, 2000)), other);
  ASSERT_TRUE(id.ok()) << id.status();
  ASSERT_TRUE(Await([&] { return begun.load(); }));
  ServeRequest drafts = Question("h2o:0.3", 2);
  drafts.request.propose = "off";
  const RemoteStats stats = StatsOf(Answer(service.get(), drafts));
  EXPECT_FALSE(other->ended());
  EXPECT_GT(stats.drafted, 0);
  EXPECT_GT(stats.draft_token_s, std::chrono::duration<double>(kPause).count() / 4);
  service->Cancel(*id);
  other->Wait();
}

}  // namespace
}  // namespace vericache
