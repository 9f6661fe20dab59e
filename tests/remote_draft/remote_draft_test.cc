// Remote drafting in one process: the answer is that of Engine::Generate(), whatever goes wrong.
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "tests/prefix/prefix_fixture.h"
#include "tests/remote_draft/faulty_verifier.h"

namespace vericache {
namespace {

constexpr int64_t kPrefix = 192;
const char* const kSpecs[] = {"verify:0.25+int4", "snapkv:0.3", "h2o:0.3",   "kvzip:0.3+int4",
                              "expected:0.4",     "sink:0.25",  "quest:0.5", "off"};

class RemoteDraftTest : public PrefixFixture {
 protected:
  void SetUp() override {
    PrefixFixture::SetUp();
    plain_ = Load(Options());
    StartHost({});
  }
  void StartHost(const VerifierOptions& options) {
    EngineOptions engine = WithStore();
    engine.prefix_memory_bytes = 64 << 20;
    auto host = StartVerifier(Load(engine), options);
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
  }
  // What is far away: drafts of these specs over the common prefix.
  void Push(const std::vector<std::string>& specs) {
    std::unique_ptr<Engine> engine = Load(WithStore());
    PrefixPushOptions options;
    options.drafts = specs;
    const auto pushed = engine->PushPrefix(Ask(TestPrompt(kPrefix, 1)), options);
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  std::unique_ptr<Engine> ServingNode() {
    EngineOptions options = WithStore();
    options.prefix_store_mode = "ro";
    options.prefix_plan = plan_;
    options.kv_memory = kv_memory_;
    options.kv_dir = testing::TempDir();
    return Load(options);
  }
  static Request Question(const std::string& draft, uint64_t seed, int64_t max_tokens = 40) {
    Request request = Ask(TestPrompt(kPrefix, 1) + TestPrompt(11, seed), draft, max_tokens);
    request.draft_len = 0;
    return request;
  }
  // Runs it far away and here, and compares.
  RemoteStats ExpectSame(const Request& request, const std::vector<RemoteVerifier*>& verifiers,
                         const RemoteOptions& options = {}) {
    const std::unique_ptr<Engine> node = ServingNode();
    RemoteStats stats;
    std::string text;
    Callbacks callbacks;
    callbacks.on_text = [&](std::string_view piece) {
      text += piece;
      return true;
    };
    const auto remote = GenerateRemote(node.get(), request, verifiers, options, callbacks, &stats);
    const auto here = plain_->Generate(request);
    EXPECT_EQ(AnswerOf(remote), AnswerOf(here)) << request.draft;
    if (remote.ok() && here.ok()) {
      EXPECT_EQ(remote->finish_reason, here->finish_reason);
      EXPECT_EQ(remote->text, here->text);
      EXPECT_EQ(text, here->text);
    }
    return stats;
  }

  std::string plan_ = "auto";
  uint64_t kv_memory_ = 0;
  std::unique_ptr<Engine> plain_;
  std::unique_ptr<VerifierHost> host_;
};

TEST_F(RemoteDraftTest, EverySpecGreedyAndSampledAtOnce) {
  Push({kSpecs, kSpecs + std::size(kSpecs) - 1});
  std::vector<Request> requests;
  for (size_t i = 0; i < std::size(kSpecs); ++i) {
    Request request = Question(kSpecs[i], 100 + i);
    request.ignore_eos = i % 3 != 0;
    request.draft_len = i % 4 == 0 ? 5 : 0;
    if (i % 2 == 1) SampleWithAll(i, &request);
    requests.push_back(request);
  }
  // Each serving node has an engine of its own; all share the verifier's passes.
  std::vector<std::thread> nodes;
  std::vector<RemoteStats> stats(requests.size());
  std::vector<absl::StatusOr<Completion>> remote(requests.size(), absl::UnknownError(""));
  for (size_t i = 0; i < requests.size(); ++i)
    nodes.emplace_back([&, i] {
      const std::unique_ptr<Engine> node = ServingNode();
      remote[i] = GenerateRemote(node.get(), requests[i], {host_.get()}, {}, {}, &stats[i]);
    });
  for (std::thread& node : nodes) node.join();
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto here = plain_->Generate(requests[i]);
    EXPECT_EQ(AnswerOf(remote[i]), AnswerOf(here)) << requests[i].draft;
    EXPECT_EQ(remote[i]->finish_reason, here->finish_reason);
    EXPECT_EQ(stats[i].fallback, "") << requests[i].draft;
    EXPECT_EQ(stats[i].local_tokens, 0);
    const bool drafts = requests[i].draft != "off";
    EXPECT_EQ(stats[i].draft_tokens, drafts ? kPrefix : 0) << requests[i].draft;
    EXPECT_EQ(stats[i].drafted > 0, drafts) << requests[i].draft;
  }
  EXPECT_EQ(host_->stats().sessions, 0);
  EXPECT_EQ(host_->stats().opened, static_cast<int64_t>(requests.size()));
}

// The draft KV gets the verifier's rows: with everything kept it foretells nearly every token.
TEST_F(RemoteDraftTest, AWholeDraftKvIsRightOnceTheSuffixIsExact) {
  Push({"f16"});
  const RemoteStats stats = ExpectSame(Question("f16", 7, 60), {host_.get()});
  EXPECT_EQ(stats.draft_tokens, kPrefix);
  EXPECT_EQ(stats.accepted, stats.drafted);
  EXPECT_LT(stats.rounds, 10);
  EXPECT_GT(stats.rows_bytes, 0u);
}

// A draft KV that is lossy anyway gets its rows packed; one that is whole stays whole.
TEST_F(RemoteDraftTest, RowsArePackedWhereTheDraftKvIsLossy) {
  Push({"f16", "int8", "h2o:0.3", "quest:0.5"});
  const uint64_t row = plain_->info().kv_bytes_per_token;
  for (const char* spec : {"f16", "int8", "h2o:0.3", "quest:0.5"}) {
    class Watch : public FaultyVerifier {
     public:
      using FaultyVerifier::FaultyVerifier;
      absl::StatusOr<RemoteVerified> Verify(const RemoteVerify& request) override {
        absl::StatusOr<RemoteVerified> reply = FaultyVerifier::Verify(request);
        packed += request.rows_as == RemoteRows::kPacked;
        if (reply.ok()) bytes += reply->rows.size();
        return reply;
      }
      uint64_t bytes = 0;
      int packed = 0;
    } watch(host_.get());
    const uint64_t sent_before = host_->stats().rows_bytes;
    const RemoteStats stats = ExpectSame(Question(spec, 7, 60), {&watch});
    EXPECT_EQ(stats.local_tokens, 0);
    const bool whole = std::string(spec) == "f16";
    EXPECT_EQ(watch.packed > 0, !whole) << spec;
    // Who counts them counts what crossed the link.
    EXPECT_EQ(stats.rows_bytes, watch.bytes) << spec;
    EXPECT_EQ(host_->stats().rows_bytes - sent_before, watch.bytes) << spec;
    // Rows of the rest of the prompt, and of all tokens up to where the last question begins.
    const uint64_t most = row * (11 + 60);
    if (whole) {
      EXPECT_EQ(stats.rows_bytes % row, 0u);
    } else {
      EXPECT_GT(stats.rows_bytes, 0u) << spec;
      EXPECT_LT(stats.rows_bytes, most / 2) << spec;
    }
  }
}

TEST_F(RemoteDraftTest, WithoutADraftKvTheVerifierDecodes) {
  const RemoteStats stats = ExpectSame(Question("snapkv:0.3", 3), {host_.get()});
  EXPECT_EQ(stats.draft_tokens, 0);
  EXPECT_EQ(stats.drafted, 0);
  EXPECT_EQ(stats.remote_tokens, 40);
  EXPECT_EQ(stats.rows_bytes, 0u);
}

TEST_F(RemoteDraftTest, APromptThatIsTheStoredPrefixItself) {
  Push({"snapkv:0.3"});
  Request request = Ask(TestPrompt(kPrefix, 1), "snapkv:0.3", 30);
  EXPECT_EQ(ExpectSame(request, {host_.get()}).draft_tokens, kPrefix);
  for (const int64_t max_tokens : {0, 1, 2}) {
    request.max_tokens = max_tokens;
    ExpectSame(request, {host_.get()});
  }
}

TEST_F(RemoteDraftTest, NoVerifierAtAll) {
  const RemoteStats stats = ExpectSame(Question("snapkv:0.3", 5), {});
  EXPECT_EQ(stats.local_tokens, 40);
}

TEST_F(RemoteDraftTest, AVerifierThatDiesIsReplacedByAnotherOrByThisNode) {
  Push({"h2o:0.3", "verify:0.25+int4"});
  for (const char* spec : {"h2o:0.3", "verify:0.25+int4", "sink:0.5"}) {
    for (const bool sampled : {false, true}) {
      Request request = Question(spec, 21);
      if (sampled) {
        request.sampling.temperature = 0.8f;
        request.sampling.seed = 4;
        request.sampling.presence_penalty = 0.5f;
      }
      for (const int last : {0, 1, 2}) {
        FaultyVerifier dies(host_.get());
        dies.is_dead = [last](int call) { return call >= last; };
        const RemoteStats alone = ExpectSame(request, {&dies});
        EXPECT_GT(alone.local_tokens, 0);
        EXPECT_EQ(alone.fallback, "faulty: dead");
        EXPECT_EQ(alone.remote_tokens > 0, last > 0);
        FaultyVerifier dies_too(host_.get());
        dies_too.is_dead = dies.is_dead;
        const RemoteStats other = ExpectSame(request, {&dies_too, host_.get()});
        EXPECT_EQ(other.local_tokens, 0);
        EXPECT_EQ(other.fallback, "");
        EXPECT_EQ(other.opened, last == 0 ? 1 : 2);
      }
    }
  }
}

TEST_F(RemoteDraftTest, ALostReplyIsAskedForAgain) {
  Push({"h2o:0.3"});
  FaultyVerifier loses(host_.get());
  loses.loses_reply = [](int call) { return call % 2 == 0; };
  for (const char* spec : {"h2o:0.3", "off"}) {
    const RemoteStats stats = ExpectSame(Question(spec, 31), {&loses});
    EXPECT_EQ(stats.opened, 1);
    EXPECT_EQ(stats.local_tokens, 0);
    EXPECT_GT(stats.failed_calls, 0);
  }
}

TEST_F(RemoteDraftTest, DamagedAndSenselessRepliesChangeNothing) {
  Push({"h2o:0.3"});
  using Lie = std::function<void(RemoteVerified*)>;
  const Lie lies[] = {
      [](RemoteVerified* r) { r->emitted.clear(), r->row_hashes.clear(); },
      [](RemoteVerified* r) { r->emitted[0] = -1; },
      [](RemoteVerified* r) { r->emitted[0] = 1 << 30; },
      [](RemoteVerified* r) { r->emitted.resize(500, 7), r->row_hashes.resize(500); },
      [](RemoteVerified* r) { r->row_hashes.pop_back(); },
      [](RemoteVerified* r) { r->finish = RemoteFinish::kStop; },
      [](RemoteVerified* r) { r->finish = RemoteFinish::kLength; },
      [](RemoteVerified* r) { r->rows += "x"; },
      [](RemoteVerified* r) { r->rows.assign(std::max<size_t>(1, r->rows.size()), '\xff'); },
      [](RemoteVerified* r) { r->rows += r->rows + std::string(1 << 20, '\0'); },
  };
  for (const Lie& lie : lies) {
    FaultyVerifier liar(host_.get());
    liar.lies = [&lie](int call, RemoteVerified* reply) {
      if (call > 0 && reply->ready) lie(reply);
    };
    EXPECT_EQ(ExpectSame(Question("h2o:0.3", 41), {&liar, host_.get()}).local_tokens, 0);
  }
  for (int kind = 0; kind < 4; ++kind) {
    FaultyVerifier noisy(host_.get());
    noisy.garbles = [kind](int call, std::string* bytes) {
      if (call % 2 == 0) return;
      if (kind == 0) (*bytes)[bytes->size() / 2] ^= 1;
      if (kind == 1) bytes->resize(bytes->size() / 2);
      if (kind == 2) bytes->clear();
      if (kind == 3) *bytes += "more";
    };
    const RemoteStats stats = ExpectSame(Question("h2o:0.3", 43), {&noisy});
    EXPECT_EQ(stats.local_tokens, 0);
    EXPECT_GT(stats.failed_calls, 0);
  }
}

// Rows that are not finite, or only wrong, make bad drafts and nothing else.
TEST_F(RemoteDraftTest, WrongRowsOnlyDraftBadly) {
  Push({"h2o:0.3", "f16"});
  for (const char* spec : {"h2o:0.3", "f16"}) {
    FaultyVerifier liar(host_.get());
    liar.lies = [](int, RemoteVerified* reply) {
      for (char& byte : reply->rows) byte = '\x7e';
    };
    EXPECT_EQ(ExpectSame(Question(spec, 47), {&liar}).local_tokens, 0) << spec;
  }
}

// What is drafted while a question is away begins the next round, where all of it held.
TEST_F(RemoteDraftTest, DraftsGoOnBehindAQuestionThatIsAway) {
  Push({"f16"});
  const Request request = Question("f16", 7, 60);
  std::atomic<size_t> num_drafted{0};
  // Gives its answer once more is drafted than was asked.
  class Late : public FaultyVerifier {
   public:
    Late(RemoteVerifier* inner, std::atomic<size_t>* num_drafted)
        : FaultyVerifier(inner), num_drafted_(num_drafted) {}
    absl::StatusOr<RemoteVerified> Verify(const RemoteVerify& request) override {
      const size_t asked = request.drafted.size();
      absl::StatusOr<RemoteVerified> reply = FaultyVerifier::Verify(request);
      const bool goes_on = asked > 0 && request.num_known + static_cast<int64_t>(asked) + 1 < 60;
      while (goes_on && *num_drafted_ <= asked) std::this_thread::yield();
      return reply;
    }

   private:
    std::atomic<size_t>* num_drafted_;
  } late(host_.get(), &num_drafted);
  const std::unique_ptr<Engine> node = ServingNode();
  Callbacks callbacks;
  callbacks.on_round = [&](const RoundView& view) {
    if (!view.verified) num_drafted = view.drafted.size();
  };
  RemoteStats stats;
  const auto remote = GenerateRemote(node.get(), request, {&late}, {}, callbacks, &stats);
  EXPECT_EQ(AnswerOf(remote), AnswerOf(plain_->Generate(request)));
  EXPECT_GT(stats.ahead_tokens, 0);
  EXPECT_EQ(stats.accepted, stats.drafted);
  RemoteOptions options;
  options.drafts_ahead = false;
  EXPECT_EQ(ExpectSame(request, {host_.get()}, options).ahead_tokens, 0);
}

// Lengths by measurement, plain questions among them, tokens before the draft KV is there.
TEST_F(RemoteDraftTest, MeasuredLengthsGiveTheSameAnswers) {
  Push({"f16", "h2o:0.3", "sink:0.25", "verify:0.25+int4"});
  const double kTimes[] = {-1, 1e300, std::numeric_limits<double>::quiet_NaN()};
  int64_t num_drafted = 0;
  for (const char* spec : {"f16", "h2o:0.3", "sink:0.25", "verify:0.25+int4", "off"}) {
    for (const bool lies : {false, true}) {
      FaultyVerifier verifier(host_.get());
      verifier.lies = [&](int call, RemoteVerified* reply) {
        // The first question takes long, so that the draft KV arrives before the answer is over:
        // without one there is nothing to choose a length for.
        if (call == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        if (lies) reply->busy_s = kTimes[call % 3];
      };
      RemoteOptions options;
      options.draft_len = 0;
      options.early_tokens = 3;
      Request request = Question(spec, 91, 150);
      if (spec[0] == 's') {
        request.sampling.temperature = 0.9f;
        request.sampling.seed = 8;
      }
      const RemoteStats stats = ExpectSame(request, {&verifier}, options);
      EXPECT_EQ(stats.local_tokens, 0);
      EXPECT_TRUE(std::isfinite(stats.tokens_per_s)) << spec;
      EXPECT_TRUE(std::isfinite(stats.round_trip_s)) << spec;
      if (stats.drafted > 0) {
        EXPECT_GT(stats.tokens_per_s, 0) << spec;
      }
      num_drafted += stats.drafted;
    }
  }
  EXPECT_GT(num_drafted, 0);
}

// Each way that a choice may take, and going on here in the middle of an answer.
TEST_F(RemoteDraftTest, EveryWayAndEveryHandOverGivesTheSameAnswers) {
  Push({kSpecs, kSpecs + std::size(kSpecs) - 1});
  for (const char* plan : {"remote", "remote-plain", "load", "draft-first", "recompute"}) {
    plan_ = plan;
    const bool here = plan_ == "load" || plan_ == "draft-first" || plan_ == "recompute";
    int num_handed_over = 0, num_chosen = 0;
    for (size_t i = 0; i < std::size(kSpecs); ++i) {
      for (const int64_t least : {0, 1, 17}) {
        Request request = Question(kSpecs[i], 200 + i, 50);
        request.ignore_eos = true;
        if ((i + least) % 2 == 1) {
          request.sampling.temperature = 0.9f;
          request.sampling.seed = i;
          request.sampling.frequency_penalty = 0.3f;
          request.sampling.repetition_penalty = 1.1f;
        }
        RemoteOptions options;
        options.early_tokens = static_cast<int>(i % 3);
        options.least_tokens_for_tests = least;
        // So slow that blocks are here before the answer is over, nearly always.
        FaultyVerifier slow(host_.get());
        slow.lies = [&](int, RemoteVerified*) {
          if (here) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        };
        const RemoteStats stats = ExpectSame(request, {&slow}, options);
        const std::string what = std::string(plan) + " " + kSpecs[i] + " " + std::to_string(least);
        EXPECT_EQ(stats.fallback, "") << what;
        EXPECT_EQ(stats.remote_tokens + stats.local_tokens, 50) << what;
        const bool stored = request.draft != "off" || plan_ == "recompute";
        num_handed_over += stats.local_tokens > 0;
        EXPECT_TRUE(stats.local_tokens == 0 || (here && stored)) << what;
        EXPECT_TRUE(stats.full_bytes == 0 || (here && stored && plan_ != "recompute")) << what;
        EXPECT_GE(stats.remote_tokens, least) << what;
        EXPECT_TRUE(plan_ != "remote-plain" || stats.drafted == 0) << what;
        // Early tokens may be a whole answer: then the store was slower, and nothing was chosen.
        const bool chosen = stats.chosen_s > 0;
        num_chosen += chosen;
        EXPECT_EQ(stats.reason.starts_with("asked for"), chosen) << what << ": " << stats.reason;
        EXPECT_EQ(stats.reason.starts_with("the answer was over"), !chosen) << what;
        EXPECT_TRUE(chosen || options.early_tokens > 0) << what;
      }
    }
    EXPECT_EQ(num_handed_over > 0, here) << plan;
    EXPECT_GT(num_chosen, 0) << plan;
  }
  EXPECT_EQ(host_->stats().sessions, 0);
}

// By itself a node whose store may be anywhere leaves the answer to the verifier.
TEST_F(RemoteDraftTest, WithoutAMeasuredLinkTheVerifierAnswers) {
  Push({"h2o:0.3"});
  const RemoteStats stats = ExpectSame(Question("h2o:0.3", 3), {host_.get()});
  EXPECT_EQ(stats.local_tokens, 0);
  EXPECT_TRUE(stats.estimates.empty());
}

TEST_F(RemoteDraftTest, WithoutRoomForTheFullKvTheVerifierAnswers) {
  Push({"h2o:0.3"});
  plan_ = "load";
  Request request = Ask(TestPrompt(kPrefix, 1) + TestPrompt(700, 3), "h2o:0.3", 40);
  request.ignore_eos = true;
  kv_memory_ = uint64_t{64} << 20;
  EXPECT_EQ(ExpectSame(request, {host_.get()}).reason.find("no room here"), std::string::npos);
  kv_memory_ = uint64_t{96} << 10;  // less than the prompt's K/V
  ASSERT_LT(kv_memory_, plain_->info().kv_bytes_per_token * 892);
  const RemoteStats stats = ExpectSame(request, {host_.get()});
  EXPECT_EQ(stats.local_tokens, 0);
  EXPECT_NE(stats.reason.find("no room here"), std::string::npos) << stats.reason;
}

// What is on its way when the last verifier is lost is not waited for; the answer goes on here.
TEST_F(RemoteDraftTest, AVerifierLostWhileBlocksArrive) {
  Push({"h2o:0.3"});
  plan_ = "load";
  for (const int last : {1, 2, 3}) {
    FaultyVerifier dies(host_.get());
    dies.is_dead = [last](int call) { return call >= last; };
    RemoteOptions options;
    options.least_tokens_for_tests = 30;
    const RemoteStats stats = ExpectSame(Question("h2o:0.3", 21), {&dies}, options);
    EXPECT_EQ(stats.fallback, "faulty: dead");
    EXPECT_EQ(stats.remote_tokens + stats.local_tokens, 40);
  }
}

// Small models repeat themselves: what look-up proposes is asked about, too, with and without a
// draft KV at hand, and never where the request does not want it.
TEST_F(RemoteDraftTest, LookUpProposesWithoutAPass) {
  Push({"h2o:0.3"});
  RemoteOptions options;
  options.draft_len = 0;
  int64_t looked_up = 0, accepted = 0;
  for (const char* spec : {"h2o:0.3", "sink:0.25"}) {  // the second one is not stored
    for (const float temperature : {0.0f, 0.7f}) {
      Request request = Question(spec, 95, 200);
      request.sampling.temperature = temperature;
      request.sampling.seed = 5;
      request.ignore_eos = true;
      const RemoteStats stats = ExpectSame(request, {host_.get()}, options);
      EXPECT_LE(stats.looked_up, stats.drafted);
      if (spec[0] == 's') {  // nothing else proposes
        EXPECT_EQ(stats.looked_up, stats.drafted);
        looked_up += stats.looked_up;
        accepted += stats.accepted;
      }
      request.propose = "off";
      EXPECT_EQ(ExpectSame(request, {host_.get()}, options).looked_up, 0);
    }
  }
  EXPECT_GT(looked_up, 0);
  EXPECT_GT(4 * accepted, looked_up);  // wrong proposals would hold by chance alone
}

TEST_F(RemoteDraftTest, AVerifierOfAnotherModelIsRefused) {
  Push({"h2o:0.3"});
  EngineOptions other = Options();
  other.model_path = "tests/golden/model/qwen2_untied.gguf";
  auto wrong = StartVerifier(Load(other), {});
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  RemoteStats stats = ExpectSame(Question("h2o:0.3", 51), {wrong->get()});
  EXPECT_NE(stats.fallback.find("has another model file"), std::string::npos) << stats.fallback;
  EXPECT_EQ(stats.failed_calls, 1);
  stats = ExpectSame(Question("h2o:0.3", 51), {wrong->get(), host_.get()});
  EXPECT_EQ(stats.fallback, "");
  EXPECT_EQ(stats.local_tokens, 0);
}

TEST_F(RemoteDraftTest, ASessionThatIsGoneIsOpenedAgain) {
  Push({"h2o:0.3"});
  class Forgetful : public RemoteVerifier {
   public:
    explicit Forgetful(RemoteVerifier* inner) : inner_(inner) {}
    absl::StatusOr<std::string> Open(const RemoteOpen& request) override {
      return inner_->Open(request);
    }
    absl::StatusOr<RemoteVerified> Verify(const RemoteVerify& request) override {
      if (++calls_ % 2 == 0) inner_->Close(request.session);
      return inner_->Verify(request);
    }
    void Close(const std::string& session) override { inner_->Close(session); }
    std::string name() const override { return "forgetful"; }

   private:
    RemoteVerifier* inner_;
    int calls_ = 0;
  };
  Forgetful forgetful(host_.get());
  const RemoteStats stats = ExpectSame(Question("h2o:0.3", 61), {&forgetful});
  EXPECT_GT(stats.opened, 1);
  EXPECT_EQ(stats.local_tokens, 0);
}

TEST_F(RemoteDraftTest, SessionsAreBounded) {
  host_.reset();
  VerifierOptions options;
  options.max_sessions = 1;
  StartHost(options);
  RemoteOpen open;
  const auto refused = host_->Open(open);
  ASSERT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  class Peek : public FaultyVerifier {
   public:
    using FaultyVerifier::FaultyVerifier;
    absl::StatusOr<std::string> Open(const RemoteOpen& request) override {
      last = request;
      return FaultyVerifier::Open(request);
    }
    RemoteOpen last;
  } peek(host_.get());
  ExpectSame(Question("off", 71), {&peek});
  open = peek.last;
  const auto first = host_->Open(open);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(absl::IsResourceExhausted(host_->Open(open).status()));
  EXPECT_EQ(host_->stats().refused, 1);
  RemoteVerify question;
  question.session = *first;
  question.num_known = 1000;
  EXPECT_TRUE(absl::IsInvalidArgument(host_->Verify(question).status()));
  question.num_known = 0;
  question.drafted = {-5};
  EXPECT_TRUE(absl::IsInvalidArgument(host_->Verify(question).status()));
  question.drafted.assign(5000, 3);
  EXPECT_TRUE(absl::IsInvalidArgument(host_->Verify(question).status()));
  question.drafted.clear();
  question.rows_begin = 1 << 20;
  EXPECT_TRUE(absl::IsInvalidArgument(host_->Verify(question).status()));
  open.emitted_ids.assign(open.max_tokens, 3);
  EXPECT_TRUE(absl::IsInvalidArgument(host_->Open(open).status()));
  host_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(host_->Open(peek.last).status()));
  // One that nobody asks ends by itself.
  options.idle_s = 0.05;
  host_.reset();
  StartHost(options);
  const auto forgotten = host_->Open(peek.last);
  ASSERT_TRUE(forgotten.ok()) << forgotten.status();
  while (host_->stats().sessions > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(host_->stats().expired, 1);
  question = {};
  question.session = *forgotten;
  EXPECT_TRUE(absl::IsNotFound(host_->Verify(question).status()));
}

TEST_F(RemoteDraftTest, KvMemoryIsPromisedBeforeItIsUsed) {
  host_.reset();
  VerifierOptions options;
  options.kv_memory = 1 << 10;
  StartHost(options);
  const RemoteStats stats = ExpectSame(Question("off", 81), {host_.get()});
  EXPECT_EQ(stats.local_tokens, 40);
  EXPECT_NE(stats.fallback.find("bytes of K/V"), std::string::npos) << stats.fallback;
}

}  // namespace
}  // namespace vericache
