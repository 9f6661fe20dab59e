// One answer whose full KV a verifier elsewhere has: what is drafted for it, what is asked, and
// what a reply may say. Knows no network and runs no pass.
//
// Nothing here can make an answer wrong: every token comes from a verifier's full KV. What a reply
// says is checked for what it can be, not for what it must be.
//
// The draft of a round may go on behind the question that is away, as if all of it held and the
// next drafted token were the verifier's own; where that comes true, the next round has begun.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "api/engine_impl.h"
#include "engine/ngram_proposer.h"
#include "kv/kv_rows.h"
#include "model/forward.h"
#include "scheduler/acceptance_estimate.h"
#include "vericache/remote.h"

namespace vericache {

class RemoteJob {
 public:
  // The sequence's full KV stays empty.
  RemoteJob(const EngineAccess::Impl* impl, std::unique_ptr<Sequence> sequence, Request request);

  Sequence& sequence() { return *s_; }
  const Sequence& sequence() const { return *s_; }
  const Request& request() const { return request_; }
  RemoteStats& stats() { return stats_; }
  const RemoteStats& stats() const { return stats_; }
  const AcceptanceEstimate& acceptance() const { return acceptance_; }

  // --- The draft ---
  void TakeDraftKv(DraftKv draft);
  // Without it the verifier decodes plainly.
  void DropDraftKv();
  size_t draft_bytes() const { return s_->draft.has_value() ? s_->draft->num_bytes() : 0; }
  // Tokens that are worth drafting: a reply has one more than it accepts. 0: none, or there is
  // nothing to draft with.
  int64_t most_drafted() const;
  bool has_round() const { return length_ >= 0; }
  // Tokens that look-up proposes now, at most `most`; 0: nothing, or other ones than are drafted
  // already. The proposal is kept for StartLookup().
  int LookUp(int most);
  // Begins a round with the first `length` >= 1 of them. No pass is run, and no rows are wanted.
  void StartLookup(int length);
  bool looks_up() const { return looks_up_; }  // this round
  const AcceptanceEstimate& lookup_acceptance() const { return lookup_acceptance_; }
  // Begins a round, in which `length` tokens are to be drafted, or what the last one has left
  // behind is taken over. plain: the verifier shall decode, nothing is drafted.
  void StartRound(int length, int plain_tokens);
  bool DraftIsWhole() const;
  // What is drafted behind the question that is away, at most once more as much as was asked.
  bool MayDraftAhead() const;
  // Rows of the draft KV that must be computed before the next token can be drafted: approximate,
  // thrown away with the round, and as good as drafted ones.
  int64_t rows_behind() const;
  // The next of them. The group is valid until the next call on *this.
  RowGroup PlanRows(int64_t max_rows);
  void TakeRows(int64_t num_rows, double seconds);
  // After a step of the drafter. seconds, here and above: of the pass.
  void TakeStep(double seconds);

  // --- The verifier ---
  RemoteOpen MakeOpen() const;
  // What is asked holds for the replies that follow.
  RemoteVerify MakeQuestion(const std::string& session, double wait_s);
  int num_asked() const { return num_asked_; }
  // Tokens, hashes, K/V rows of a reply that is ready. seconds: since the question.
  // ERRORS: kDataLoss: it cannot be one to what was asked; nothing has changed.
  absl::Status Take(const RemoteVerified& reply, double seconds);

  // Ends the remote part: what another part of the engine goes on with has no draft any more.
  std::unique_ptr<Sequence> Release();

 private:
  absl::Status Check(const RemoteVerified& reply) const;
  absl::StatusOr<KvRows> ParseRows(const std::string& rows, int64_t max_rows) const;
  absl::Status CheckRows(const RemoteVerified& reply, std::optional<KvRows>* rows) const;
  int64_t most_useful() const;
  int CountAccepted(const RemoteVerified& reply) const;
  void TakeTokens(const RemoteVerified& reply);
  void KeepDraftedBehind(int64_t num_emitted, const RemoteVerified& reply);
  void Record(const RemoteVerified& reply, int num_emitted, double seconds);
  TokenId TokenAt(int64_t pos) const;

  const EngineAccess::Impl* const impl_;
  std::unique_ptr<Sequence> s_;
  const Request request_;
  RemoteStats stats_;
  AcceptanceEstimate acceptance_, lookup_acceptance_;
  std::optional<NgramProposer> lookup_;  // none: the request does not want it
  std::vector<TokenId> proposal_;
  bool looks_up_ = false;
  int length_ = -1;           // of the round; < 0: none has begun
  int plain_tokens_ = 1;      // of a question without a draft
  bool draft_ended_ = false;  // nothing sensible can follow the last drafted token
  int64_t rows_ = 0;          // that the draft KV has, provisional ones included
  double draft_s_ = 0;        // of the round
  int num_asked_ = 0;         // drafted tokens of the question
  bool wants_rows_ = false;   // the question asks for K/V rows
  const RemoteRows rows_as_;  // in this form
  std::vector<TokenId> planned_;
};

}  // namespace vericache
