// The verifier's side of remote drafting: sessions of many serving nodes in shared passes.
//
// Callers' threads check questions and wait; one thread computes. A session's sequence belongs to
// that thread while the session has work, and to whoever holds the lock otherwise.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/engine_impl.h"
#include "engine/logits_chain.h"
#include "engine/prompt_job.h"
#include "engine/step.h"
#include "vericache/remote.h"

namespace vericache {

// What is wrong with `theirs`; OK where both are the same.
absl::Status CheckIdentity(const RemoteIdentity& ours, const RemoteIdentity& theirs);
// REQUIRES: impl->digest is computed.
RemoteIdentity RemoteIdentityOf(const EngineAccess::Impl& impl);

// THREADS: safe. The lock is held for moments only: never in a pass or while rows are copied.
class PassVerifier : public VerifierHost {
 public:
  // REQUIRES: the engine's digest is computed, and it has no KV budget of its own.
  PassVerifier(std::unique_ptr<Engine> engine, const VerifierOptions& options);
  ~PassVerifier() override;  // Stop()

  absl::StatusOr<std::string> Open(const RemoteOpen& request) override;
  absl::StatusOr<RemoteVerified> Verify(const RemoteVerify& request) override;
  void Close(const std::string& session) override;
  std::string name() const override { return "this process"; }
  VerifierStats stats() const override;
  void Stop() override;

 private:
  using Time = std::chrono::steady_clock::time_point;
  enum class Work : uint8_t { kNone, kPrompt, kVerify };
  struct Session {
    Request request;
    std::unique_ptr<Sequence> sequence;
    std::vector<TokenId> emitted_before;  // by another verifier; until the prompt begins
    int64_t num_before = 0;
    std::optional<PromptJob> prompt;
    Work work = Work::kPrompt;
    bool begun = false;    // its prefix has been looked up
    bool copying = false;  // somebody reads its K/V without the lock
    bool closed = false;
    int plain_left = 0;  // passes of one token that the question still asks for
    int64_t cached_tokens = 0, prompt_done = 0, prompt_total = 0;
    std::vector<LogitsChain::RowHash> row_hashes;  // of tokens emitted here
    uint64_t kv_bytes = 0;                         // at most
    uint64_t turn = 0;                             // who waits longest has the least
    Time used;
    int num_waiting = 0;  // callers

    bool idle() const { return work == Work::kNone && !copying; }
  };
  using Sessions = std::vector<std::shared_ptr<Session>>;
  using Lock = std::unique_lock<std::mutex>;

  absl::Status CheckQuestion(const RemoteVerify& request) const;
  absl::Status CheckRoom(uint64_t kv_bytes) const;
  absl::Status WaitUntilIdle(Session* session, Time deadline, Lock* lock);
  absl::StatusOr<RemoteVerified> AskIdle(const RemoteVerify& request,
                                         const std::shared_ptr<Session>& session, Time deadline,
                                         Lock* lock);
  static int64_t CountSettled(const Session& session, const RemoteVerify& request,
                              bool* has_answer);
  void BeginWork(const RemoteVerify& request, int64_t num_settled, Session* session);
  absl::StatusOr<RemoteVerified> MakeAnswer(const RemoteVerify& request, Session* session,
                                            Lock* lock);
  void EraseIfClosed(const std::string& name, const Session& session);

  void Run();
  void CloseForgotten();
  Sessions TakeWork();
  void RunPass(const Sessions& sessions);
  void BeginPrompt(Session* session);
  void Settle(Session* session);

  const std::unique_ptr<Engine> engine_;
  EngineAccess::Impl* const impl_;
  const VerifierOptions options_;
  const RemoteIdentity identity_;
  const size_t row_bytes_;
  Prefill prefill_;
  StepRunner runner_;
  std::vector<StepItem> items_;  // of the pass

  mutable std::mutex mutex_;  // of all below
  std::condition_variable wake_, settled_;
  std::map<std::string, std::shared_ptr<Session>> sessions_;
  uint64_t next_turn_ = 1;
  uint64_t kv_bytes_ = 0;  // of all sessions, at most
  VerifierStats stats_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace vericache
