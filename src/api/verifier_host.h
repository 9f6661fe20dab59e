// The verifier's side of remote drafting: sessions of many serving nodes in shared passes.
//
// Callers' threads check questions and wait; one thread computes. Sequences belong to that thread
// alone: what callers read of an answer is copied into its session when it is settled.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "api/engine_impl.h"
#include "api/request_loop.h"
#include "engine/logits_chain.h"
#include "engine/prefix_loader.h"
#include "vericache/remote.h"

namespace vericache {

// What is wrong with `theirs`; OK where both are the same.
absl::Status CheckIdentity(const RemoteIdentity& ours, const RemoteIdentity& theirs);
// REQUIRES: impl->digest is computed.
RemoteIdentity RemoteIdentityOf(const EngineAccess::Impl& impl);

// THREADS: safe. The lock is held for moments only: never in a pass or while rows are copied.
class PassVerifier : public VerifierHost {
 public:
  // REQUIRES: the engine's digest is computed.
  PassVerifier(std::unique_ptr<Engine> engine, const VerifierOptions& options);
  ~PassVerifier() override;  // Stop()

  absl::StatusOr<std::string> Open(const RemoteOpen& request) override;
  absl::StatusOr<RemoteVerified> Verify(const RemoteVerify& request) override;
  void Close(const std::string& session) override;
  std::string name() const override { return "this process"; }
  VerifierStats stats() const override;
  std::vector<TimelineEvent> TakeTimeline() override;
  void Stop() override;

 private:
  using Time = std::chrono::steady_clock::time_point;
  enum class Work : uint8_t { kNone, kPrompt, kQuestion, kRows };
  struct Session {
    // Until the prompt begins the sequence is here, then in the request loop.
    Request request;
    std::unique_ptr<Sequence> sequence;
    int64_t num_prompt = 0, max_tokens = 0;
    int64_t num_before = 0;  // tokens that another verifier has emitted
    int64_t serial = 0;      // in the order in which they were opened

    // Of the computing thread.
    RequestId id = 0;  // in the request loop; 0: not there (any more)
    int64_t cached_tokens = 0;
    bool begun = false;  // its prompt is over
    size_t rounds_counted = 0;
    std::vector<LogitsChain::RowHash> new_hashes;
    std::shared_ptr<PrefixLoad> load;  // its prefix is on its way; null: it is not

    // Guarded by the lock.
    Work work = Work::kPrompt;
    bool taken = false;            // the computing thread is at it
    std::vector<TokenId> drafted;  // kQuestion
    int plain_tokens = 1;          // kQuestion
    int64_t rows_wanted = -1;      // kQuestion, kRows: from this position on; < 0: none
    std::vector<TokenId> emitted;  // of the answer, those before included
    std::vector<LogitsChain::RowHash> row_hashes;  // of tokens emitted here
    FinishReason finish = FinishReason::kNone;
    absl::Status status;   // why it cannot go on
    int64_t num_rows = 0;  // positions whose exact K/V are there
    int64_t rows_at = -1;  // what `rows` begin with; < 0: there are none
    std::string rows;
    int64_t prompt_done = 0, prompt_total = 0;
    uint64_t kv_bytes = 0;  // at most
    bool closed = false;
    Time used;
    int num_waiting = 0;  // callers
  };
  using SessionPtr = std::shared_ptr<Session>;
  using Lock = std::unique_lock<std::mutex>;

  // --- On callers' threads
  absl::Status CheckQuestion(const RemoteVerify& request) const;
  absl::Status CheckRoom(uint64_t kv_bytes) const;
  absl::Status WaitUntilIdle(Session* session, Time deadline, Lock* lock);
  absl::StatusOr<RemoteVerified> AskIdle(const RemoteVerify& request, Session* session,
                                         Time deadline, Lock* lock);
  static int64_t CountSettled(const Session& session, const RemoteVerify& request,
                              bool* has_answer);
  void Begin(Work work, Session* session);
  RemoteVerified MakeAnswer(const RemoteVerify& request, Session* session);
  void FinishRows(const RemoteVerify& request, RemoteVerified* answer, Lock* lock);
  void CountOthers(const Session& asking, RemoteVerified* answer) const;
  void Erase(std::map<std::string, SessionPtr>::iterator at);

  // --- On the computing thread
  void Run();
  void CloseForgotten();
  std::vector<SessionPtr> TakeWork();
  bool AwaitsPrompt(const Session& session) const;
  static int64_t CommonPrompt(const Session& a, const Session& b);
  void DoWork(const SessionPtr& session);
  void BorrowPrefix(const Request& request, Sequence* sequence) const;
  void LoadPrefix(const SessionPtr& session);
  void TakeLoaded();
  void UsePrefix(std::unique_ptr<PrefixLookup> lookup, const SessionPtr& session);
  void BeginPrompt(const SessionPtr& session);
  void PromptIsOver(const Sequence& sequence, Session* session);
  void CopyRows(const Sequence& sequence, int64_t begin, std::string* rows) const;
  void Settle(absl::Status status, const Sequence* sequence, Session* session);
  void CountRounds(const Sequence& sequence, Session* session);
  void PublishStats();

  const std::unique_ptr<Engine> engine_;
  EngineAccess::Impl* const impl_;
  const VerifierOptions options_;
  const RemoteIdentity identity_;
  const size_t row_bytes_;
  RequestLoop loop_;                         // of the computing thread
  std::map<RequestId, SessionPtr> in_loop_;  // the same
  std::vector<SessionPtr> loading_;          // the same: in the order in which they began

  mutable std::mutex mutex_;  // of all below
  std::condition_variable wake_, settled_;
  std::map<std::string, SessionPtr> sessions_;
  uint64_t kv_bytes_ = 0;  // of all sessions, at most
  VerifierStats stats_;
  std::deque<TimelineEvent> timeline_;
  int64_t next_serial_ = 0;
  bool changed_ = false;  // something is to be taken up
  bool stopping_ = false;
  PrefixLoader loader_;  // goes before what it tells
  std::thread thread_;
};

}  // namespace vericache
