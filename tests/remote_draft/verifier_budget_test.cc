// A verifier whose sessions share a KV budget: each has the bits that it has alone, staggered or
// not, whoever is preempted, and whatever the disk does to another one.
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "api/verifier_host.h"
#include "engine/logits_chain.h"
#include "engine/prefix_test_util.h"
#include "storage/fault_plan.h"
#include "tests/prefix/prefix_fixture.h"
#include "tests/remote_draft/faulty_verifier.h"

namespace vericache {
namespace {

constexpr int kSessions = 9;
constexpr int64_t kPromptTokens = 900, kAnswerTokens = 60;
// A slot of staging, and blocks that four sessions write.
constexpr uint64_t kHardlyAny = 112 << 10;

class VerifierBudgetTest : public PrefixFixture {
 protected:
  void SetUp() override {
    PrefixFixture::SetUp();
    plain_ = Load(Options());
    ASSERT_TRUE(plain_->ModelDigest().ok());
    for (int i = 0; i < kSessions; ++i) {
      Request request = Ask(TestPrompt(kPromptTokens - 37 * i, 100 + i), "off", kAnswerTokens + i);
      if (i % 2 == 1) {
        request.sampling.temperature = 0.8f;
        request.sampling.seed = i;
        request.sampling.frequency_penalty = 0.2f;
      }
      want_.push_back(*plain_->Generate(request));
      requests_.push_back(std::move(request));
    }
  }
  uint64_t AllKv() const {
    uint64_t tokens = 0;
    for (const Request& r : requests_) tokens += r.prompt_token_ids.size() + r.max_tokens;
    return tokens * plain_->info().kv_bytes_per_token;
  }
  EngineOptions Budget(uint64_t kv_memory) const {
    EngineOptions options = Options();
    options.kv_memory = kv_memory;
    options.kv_dir = testing::TempDir();
    return options;
  }
  static std::unique_ptr<VerifierHost> Start(std::unique_ptr<Engine> engine,
                                             const VerifierOptions& options = {}) {
    auto host = StartVerifier(std::move(engine), options);
    EXPECT_TRUE(host.ok()) << host.status();
    return *std::move(host);
  }
  RemoteOpen OpenOf(int i, int64_t num_before = 0) const {
    const Request& request = requests_[i];
    RemoteOpen open;
    open.identity = RemoteIdentityOf(*EngineAccess::Of(plain_.get()));
    open.prompt_ids = request.prompt_token_ids;
    open.emitted_ids.assign(want_[i].token_ids.begin(), want_[i].token_ids.begin() + num_before);
    open.max_tokens = request.max_tokens;
    open.sampling = request.sampling;
    open.ignore_eos = request.ignore_eos;
    return open;
  }
  // Some right tokens behind the first `known`, most often with a wrong one among them.
  std::vector<int32_t> Draft(int i, int64_t known, Picks* pick) const {
    const std::vector<int32_t>& ids = want_[i].token_ids;
    const int64_t left = std::ssize(ids) - known;
    const int64_t length = std::min<int64_t>(left, (*pick)(14));
    std::vector<int32_t> draft(ids.begin() + known, ids.begin() + known + length);
    if (length > 0 && (*pick)(3) > 0) {
      int32_t& id = draft[(*pick)(length)];
      id = id == 5 ? 6 : 5;
    }
    return draft;
  }
  // A whole session. Its first error, or what differs from the answer alone.
  absl::Status Run(int i, VerifierHost* host, uint64_t seed, int64_t num_before = 0) {
    Picks pick(seed);
    const auto name = host->Open(OpenOf(i, num_before));
    if (!name.ok()) return name.status();
    LogitsChain chain;
    std::vector<int32_t> ids(want_[i].token_ids.begin(), want_[i].token_ids.begin() + num_before);
    RemoteVerified reply;
    while (reply.finish == RemoteFinish::kNone) {
      RemoteVerify question;
      question.session = *name;
      question.num_known = std::ssize(ids);
      question.drafted = Draft(i, question.num_known, &pick);
      question.plain_tokens = 1 + static_cast<int>(pick(4));
      question.wait_s = pick(4) == 0 ? 0.001 : 10;
      const bool rows = pick(3) == 0;
      question.rows_begin = rows ? pick(requests_[i].prompt_token_ids.size()) : -1;
      // Before the prompt is done there are no rows to ask for.
      if (std::ssize(ids) == num_before) question.rows_begin = -1;
      const auto got = host->Verify(question);
      if (!got.ok()) return got.status();
      if (!got->ready) continue;
      reply = *got;
      for (const auto& hash : reply.row_hashes) chain.Push(hash);
      ids.insert(ids.end(), reply.emitted.begin(), reply.emitted.end());
      CheckRows(i, question.rows_begin, reply);
      if (pick(3) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(pick(5)));
    }
    host->Close(*name);
    const bool same = num_before > 0 || chain.Hex() == want_[i].logits_hash;
    return ids == want_[i].token_ids && same ? absl::OkStatus()
                                             : absl::InternalError("another answer");
  }
  // Of a session that ends with it.
  RemoteVerified FirstReply(int i, VerifierHost* host) const {
    RemoteVerify question;
    question.session = *host->Open(OpenOf(i));
    const auto reply = host->Verify(question);
    EXPECT_TRUE(reply.ok() && reply->ready) << reply.status();
    host->Close(question.session);
    return reply.ok() ? *reply : RemoteVerified();
  }
  void CheckRows(int i, int64_t begin, const RemoteVerified& reply) {
    if (begin < 0 || reply.finish != RemoteFinish::kNone) {
      EXPECT_EQ(reply.rows, "");
      return;
    }
    if (disk_fails_ && reply.rows.empty()) return;
    const size_t row = plain_->info().kv_bytes_per_token;
    EXPECT_GE(reply.rows.size(), row * reply.emitted.size());
    if (rows_.empty()) return;
    const std::string& all = rows_[i];
    EXPECT_EQ(reply.rows.compare(0, std::string::npos, all, begin * row,
                                 std::min(reply.rows.size(), all.size() - begin * row)),
              0)
        << "session " << i << ", rows from " << begin;
    ++rows_checked_;
  }
  // The rows of all answers but their last ones, by a verifier that has all K/V in RAM.
  void ComputeRows() {
    const std::unique_ptr<VerifierHost> host = Start(Load(Options()));
    std::vector<std::string> rows;
    for (int i = 0; i < kSessions; ++i) {
      const int64_t known = std::ssize(want_[i].token_ids) - 1;
      RemoteVerify question;
      question.session = *host->Open(OpenOf(i, known - 1));
      question.num_known = known - 1;
      question.rows_begin = 0;
      const auto reply = host->Verify(question);
      ASSERT_TRUE(reply.ok() && reply->ready) << reply.status();
      rows.push_back(reply->rows);
    }
    rows_ = std::move(rows);
  }

  std::unique_ptr<Engine> plain_;
  std::vector<Request> requests_;
  std::vector<Completion> want_;
  std::vector<std::string> rows_;
  std::atomic<int> rows_checked_{0};
  bool disk_fails_ = false;
};

TEST_F(VerifierBudgetTest, SessionsAtOnceInAQuarterOfTheirMemoryAndInHardlyAny) {
  ComputeRows();
  int64_t preempted = 0;
  for (const uint64_t budget : {AllKv() / 4, kHardlyAny}) {
    for (const bool lock_step : {false, true}) {
      VerifierOptions options;
      options.lock_step = lock_step;
      const auto host = Start(Load(Budget(budget)), options);
      std::vector<std::thread> clients;
      std::vector<absl::Status> ended(kSessions);
      for (int i = 0; i < kSessions; ++i)
        clients.emplace_back(
            [&, i] { ended[i] = Run(i, host.get(), 7 * i + lock_step, i % 4 == 3 ? 11 : 0); });
      for (std::thread& client : clients) client.join();
      for (int i = 0; i < kSessions; ++i) EXPECT_TRUE(ended[i].ok()) << i << ": " << ended[i];
      const VerifierStats stats = host->stats();
      EXPECT_EQ(stats.sessions, 0);
      EXPECT_EQ(stats.failed, 0);
      EXPECT_GT(stats.fetched_bytes, 0u);
      EXPECT_LE(stats.peak_kv_bytes, budget);
      preempted += stats.preempted;
    }
  }
  EXPECT_GT(rows_checked_, 30);
  EXPECT_GT(preempted, 0);
}

// Each read and each write of the spill files that may fail, fails once: the session that met it
// ends, the others go on, and a serving node that asked goes elsewhere.
TEST_F(VerifierBudgetTest, AFailingDiskEndsItsSessionAlone) {
  int failed = 0, survived = 0, fell_back = 0;
  disk_fails_ = true;
  for (int64_t nth = 2; nth < 400; nth = nth * 2 + 1) {
    for (const bool writes : {false, true}) {
      FaultOptions faults;
      faults.seed = nth;
      faults.short_reads_per_1000 = faults.short_writes_per_1000 = 100;
      (writes ? faults.eio_at_write : faults.eio_at_read) = nth;
      std::unique_ptr<Engine> engine = Load(Budget(AllKv() / 4));
      EngineAccess::Impl* impl = EngineAccess::Of(engine.get());
      KvTierOptions tier;
      tier.folder = testing::TempDir();
      tier.max_tokens = impl->info.context_length + kMaxDraftLen;
      tier.staging_bytes = impl->options.kv_memory;
      tier.faults = std::make_shared<FaultPlan>(faults);
      impl->tier = *KvTier::Create(impl->model->config.kv_shape(), tier);
      const auto host = Start(std::move(engine));
      std::vector<absl::Status> ended(kSessions);
      std::vector<std::thread> clients;
      for (int i = 1; i < kSessions; ++i)
        clients.emplace_back([&, i] { ended[i] = Run(i, host.get(), nth + i); });
      RemoteStats stats;
      absl::StatusOr<Completion> remote;
      clients.emplace_back([&] {
        const std::unique_ptr<Engine> node = Load(Options());
        remote = GenerateRemote(node.get(), requests_[0], {host.get()}, {}, {}, &stats);
      });
      for (std::thread& client : clients) client.join();
      int ended_badly = 0;
      for (int i = 1; i < kSessions; ++i) {
        ended_badly += !ended[i].ok();
        EXPECT_NE(ended[i].message(), "another answer") << i;
      }
      EXPECT_LE(ended_badly + (stats.failed_calls > 0 ? 1 : 0), 1);
      EXPECT_EQ(AnswerOf(remote), AnswerOf(want_[0]));
      failed += ended_badly;
      survived += kSessions - 1 - ended_badly;
      fell_back += stats.failed_calls > 0;
    }
  }
  EXPECT_GT(failed + fell_back, 3);
  EXPECT_GT(survived, 20);
}

TEST_F(VerifierBudgetTest, WhatNeverFitsIsRefusedWithNumbers) {
  const auto host = Start(Load(Budget(kHardlyAny)));
  RemoteOpen open = OpenOf(0);
  open.prompt_ids = TestPrompt(1800, 3);
  open.max_tokens = 200;
  const absl::Status refused = host->Open(open).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find("1"), std::string_view::npos) << refused;
  // Others are not touched.
  const absl::Status other = Run(1, host.get(), 1);
  EXPECT_TRUE(other.ok()) << other;
}

// Sessions that come at once and begin alike: the first one reads the prefix from the store, the
// others have it from there.
TEST_F(VerifierBudgetTest, APrefixThatSeveralShareIsReadOnce) {
  const std::vector<int32_t> prefix = TestPrompt(640, 1);
  {
    const std::unique_ptr<Engine> engine = Load(WithStore());
    ASSERT_TRUE(engine->PushPrefix(Ask(prefix), {}).ok());
  }
  for (const bool budget : {false, true}) {
    EngineOptions options = WithStore();
    options.prefix_store_mode = "ro";
    options.prefix_memory_bytes = 64 << 20;
    if (budget) options.kv_memory = 512 << 10;
    options.kv_dir = testing::TempDir();
    std::unique_ptr<Engine> engine = Load(options);
    Engine* raw = engine.get();
    const auto host = Start(std::move(engine));
    for (int i = 0; i < kSessions; ++i) {
      requests_[i].prompt_token_ids = prefix + TestPrompt(20 + i, 50 + i);
      want_[i] = *plain_->Generate(requests_[i]);
    }
    std::vector<std::thread> clients;
    std::vector<absl::Status> ended(kSessions);
    for (int i = 0; i < kSessions; ++i)
      clients.emplace_back([&, i] { ended[i] = Run(i, host.get(), i); });
    for (std::thread& client : clients) client.join();
    for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
    host->Stop();
    EXPECT_EQ(raw->prefix_stats().store_hits, 1);
  }
}

// While one session's prefix is on its way from a store, others are answered.
TEST_F(VerifierBudgetTest, ASlowStoreHoldsUpItsOwnSessionAlone) {
  Backing backing;
  const auto with_store = [&backing](std::unique_ptr<Engine> engine) {
    EXPECT_TRUE(engine->ModelDigest().ok());
    EngineAccess::Impl* impl = EngineAccess::Of(engine.get());
    PrefixCacheOptions options;
    options.identity = impl->Identity();
    options.store = std::make_unique<SharedStore>(&backing);
    impl->prefixes =
        std::make_unique<PrefixCache>(std::move(options), impl->model->config.kv_shape(),
                                      impl->model->kernels, [impl] { return impl->NewFullKv(); });
    return engine;
  };
  {
    const std::unique_ptr<Engine> engine = with_store(Load(Options()));
    ASSERT_TRUE(engine->Generate(requests_[0]).ok());
    engine->WaitForPrefixWrites();
  }
  std::promise<void> gate;
  std::atomic<bool> reached{false};
  backing.before_get = [&reached, open = gate.get_future().share()] {
    reached = true;
    open.wait();
  };
  const auto host = Start(with_store(Load(Budget(AllKv() / 4))));
  absl::Status slow;
  std::thread waits([&] { slow = Run(0, host.get(), 1); });
  while (!reached) std::this_thread::yield();
  const RemoteVerified told = FirstReply(1, host.get());
  EXPECT_EQ(told.num_prompts, 1);  // its own is over
  EXPECT_EQ(told.num_answering, 1);
  for (int i = 2; i < 4; ++i) {  // what has been asked for once may be in the store by now
    const absl::Status other = Run(i, host.get(), i);
    EXPECT_TRUE(other.ok()) << other;
  }
  EXPECT_EQ(host->stats().sessions, 1);
  // One that is closed meanwhile, and one that is left when the verifier goes, hurt nobody.
  const auto closed = host->Open(OpenOf(0));
  host->Close(*closed);
  gate.set_value();
  waits.join();
  EXPECT_TRUE(slow.ok()) << slow;
}

// Who else is answered is told with each reply: sessions that are over do not count.
TEST_F(VerifierBudgetTest, RepliesTellOfOtherSessions) {
  const auto host = Start(Load(Options()));
  std::vector<std::string> names;
  for (int i = 0; i < 3; ++i) {
    RemoteVerify question;
    question.session = *host->Open(OpenOf(i));
    names.push_back(question.session);
    const auto reply = host->Verify(question);
    ASSERT_TRUE(reply.ok() && reply->ready) << reply.status();
    EXPECT_EQ(reply->num_answering, i + 1);
    EXPECT_EQ(reply->num_prompts, 0);
  }
  host->Close(names[0]);
  EXPECT_EQ(FirstReply(3, host.get()).num_answering, 3);
  RemoteVerify last;  // the whole answer at once: its session is over before it is closed
  last.session = names[1];
  last.drafted = {want_[1].token_ids.begin(), want_[1].token_ids.end() - 1};
  const auto whole = host->Verify(last);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->finish, RemoteFinish::kLength);
  EXPECT_EQ(FirstReply(3, host.get()).num_answering, 2);
}

// Two nodes (or one that has lost its reply and asks again while the pass runs) with one question.
TEST_F(VerifierBudgetTest, TheSameQuestionTwiceAtOnce) {
  const auto host = Start(Load(Budget(AllKv() / 4)));
  const auto name = host->Open(OpenOf(0));
  ASSERT_TRUE(name.ok()) << name.status();
  Picks pick(5);
  int64_t known = 0;
  while (known < std::ssize(want_[0].token_ids)) {
    RemoteVerify question;
    question.session = *name;
    question.num_known = known;
    question.drafted = Draft(0, known, &pick);
    question.rows_begin = known > 0 ? 880 : -1;
    std::vector<absl::StatusOr<RemoteVerified>> replies(2, absl::UnknownError(""));
    std::thread other([&] { replies[1] = host->Verify(question); });
    replies[0] = host->Verify(question);
    other.join();
    ASSERT_TRUE(replies[0].ok() && replies[1].ok()) << replies[0].status() << replies[1].status();
    EXPECT_EQ(replies[0]->emitted, replies[1]->emitted);
    EXPECT_EQ(replies[0]->rows, replies[1]->rows);
    ASSERT_FALSE(replies[0]->emitted.empty());
    for (const int32_t id : replies[0]->emitted) EXPECT_EQ(id, want_[0].token_ids[known++]);
  }
}

}  // namespace
}  // namespace vericache
