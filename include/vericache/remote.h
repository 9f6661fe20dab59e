// Remote drafting: a node far from a store of prefixes drafts on compressed KV, a node next to it
// has the full KV and says which tokens hold (arXiv 2605.17613, its second setting).
//
// The node next to the store is the *verifier*, the far one the *serving node*. Everything that is
// emitted is chosen by the verifier's full KV, so an answer is bit for bit that of
// Engine::Generate, whatever the serving node drafts. A verifier that is lost is replaced by
// another one, or by the serving node itself: what has been emitted stays. docs/remote_drafting.md
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "vericache/batch.h"
#include "vericache/engine.h"

namespace vericache {

// Messages between the two have this version; another one is refused.
inline constexpr uint32_t kRemoteProtocol = 4;

// What K/V and logits depend on besides tokens. Both sides must have the same.
struct RemoteIdentity {
  std::string model_digest, tokenizer_digest;  // hex SHA-256
  std::string rope, kv_format;
  std::string contract;  // the numeric contract (docs/exactness.md)

  bool operator==(const RemoteIdentity&) const = default;
};

// Begins an answer, or goes on with one that another verifier has begun.
struct RemoteOpen {
  RemoteIdentity identity;
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> emitted_ids;  // tokens of the answer that are settled already
  int64_t max_tokens = 0;            // of the answer, emitted_ids included
  SamplingOptions sampling;
  bool ignore_eos = false;
  bool use_prefix_cache = true;
  std::string prefix_salt;
};

// What exact K/V rows cross the link as: f16, or packed, lossy and less than a third of it.
enum class RemoteRows : uint8_t { kF16 = 0, kPacked = 1 };

// Asks which of `drafted` hold behind the first `num_known` tokens of the answer. The answer's
// state is the verifier's; a question that is asked again gets the same tokens, and only then does
// a lost reply not matter.
struct RemoteVerify {
  std::string session;
  int64_t num_known = 0;         // tokens of the answer that the serving node has
  std::vector<int32_t> drafted;  // its proposal for those behind
  int plain_tokens = 1;          // without a draft: tokens to decode, one pass each
  int64_t rows_begin = -1;       // exact K/V rows wanted from this position on; < 0: none
  RemoteRows rows_as = RemoteRows::kF16;
  double wait_s = 10;  // then "not ready yet"

  bool operator==(const RemoteVerify&) const = default;
};

enum class RemoteFinish : uint8_t { kNone = 0, kStop = 1, kLength = 2 };

struct RemoteVerified {
  bool ready = false;                         // false: only what is above `emitted` is set
  int64_t prompt_done = 0, prompt_total = 0;  // rows
  // Answers of all nodes that the verifier has in hand, this one included, and prompts of others
  // that it has yet to compute: what a choice between it and another way reckons with.
  int32_t num_answering = 0, num_prompts = 0;
  std::vector<int32_t> emitted;  // tokens behind num_known, final
  // Of each: XXH3-128 of the row of logits that chose it: the links of Completion::logits_hash.
  std::vector<std::array<uint8_t, 16>> row_hashes;
  RemoteFinish finish = RemoteFinish::kNone;  // behind the last of them
  double busy_s = 0;                          // that the question spent at the verifier
  // Exact K/V of positions from RemoteVerify::rows_begin on, as many as a reply may hold. In f16:
  // position by position, layer by layer, KV head by KV head, K then V. Packed:
  // kv/codecs/row_codec.
  std::string rows;

  bool operator==(const RemoteVerified&) const = default;
};

// A verifier, wherever it is. THREADS: safe.
class RemoteVerifier {
 public:
  virtual ~RemoteVerifier() = default;

  // The name of a session. Waits for nothing: the prompt is computed until the first Verify().
  // ERRORS: kFailedPrecondition (another model, contract, K/V format or protocol: says which),
  //         kUnauthenticated, kInvalidArgument, kOutOfRange: asking again is of no use;
  //         kResourceExhausted (too many sessions, no memory), kUnavailable: later, or elsewhere.
  virtual absl::StatusOr<std::string> Open(const RemoteOpen& request) = 0;
  // ERRORS: kNotFound: no such session (any more); kInvalidArgument; kDataLoss: the reply is
  //         damaged; kUnavailable, kDeadlineExceeded; what a pass ran into.
  virtual absl::StatusOr<RemoteVerified> Verify(const RemoteVerify& request) = 0;
  virtual void Close(const std::string& session) = 0;
  // The owner of this end goes: its calls, now and later, may give kUnavailable instead of waiting.
  virtual void Interrupt() {}
  // For messages, without secrets.
  virtual std::string name() const = 0;
};

// --- On the verifier -------------------------------------------------------------------------

struct VerifierOptions {
  int max_sessions = 64;
  // Where the engine has no KV budget: bytes of K/V that all sessions may come to; 0: no limit. A
  // budget of the engine is shared out among them: what does not fit is spilled.
  uint64_t kv_memory = 0;
  double idle_s = 120;                 // a session that nobody asks for so long is closed
  int max_drafted = 256;               // ids of one question
  uint64_t max_rows_bytes = 16 << 20;  // of one reply, in f16
  bool lock_step = false;              // nothing is read ahead: to be measured against
  bool timeline = false;               // keep what the newest passes did
};

struct VerifierStats {
  int64_t sessions = 0;                // now
  int64_t prompts = 0, questions = 0;  // of them: being computed, being answered
  int64_t opened = 0, refused = 0, expired = 0, failed = 0, preempted = 0;
  int64_t passes = 0, verifications = 0;
  int64_t drafted = 0, accepted = 0, emitted = 0;
  uint64_t rows_bytes = 0;  // as they were sent
  // Of passes: all of it; waiting for spilled K/V. Of their transfers: 1 - stall_s / fetch_s of the
  // time was hidden behind computing.
  double pass_s = 0, stall_s = 0, fetch_s = 0;
  uint64_t fetched_bytes = 0;
  uint64_t kv_ram_bytes = 0, kv_spilled_bytes = 0;  // of the sessions, now
  uint64_t peak_kv_bytes = 0;  // with a budget: the most in RAM, staging included
};

class VerifierHost : public RemoteVerifier {
 public:
  virtual VerifierStats stats() const = 0;
  // With VerifierOptions::timeline: some 100,000 of the newest events, which are then forgotten.
  // TimelineEvent::request counts sessions in the order in which they were opened.
  virtual std::vector<TimelineEvent> TakeTimeline() = 0;
  // All that wait get kUnavailable. Once.
  virtual void Stop() = 0;
};

// The engine is the host's from here on; it shares passes between all sessions.
// ERRORS: kInvalidArgument: senseless options; those of Engine::ModelDigest().
absl::StatusOr<std::unique_ptr<VerifierHost>> StartVerifier(std::unique_ptr<Engine> engine,
                                                            const VerifierOptions& options);

// --- On the serving node ---------------------------------------------------------------------

struct ConnectOptions {
  std::string api_key;
  std::string ca_file;    // PEM; "": the system's
  double timeout_s = 30;  // of one question, beyond what it may wait for
  uint64_t max_reply_bytes = uint64_t{64} << 20;
};

// A verifier at "http://host:port" or "https://host:port". Nothing is sent before the first call.
// ERRORS: kInvalidArgument: not such a URL.
absl::StatusOr<std::unique_ptr<RemoteVerifier>> ConnectVerifier(const std::string& url,
                                                                const ConnectOptions& options);

struct RemoteOptions {
  int draft_len = 16;  // where the request says 0; 0: by measured times and acceptance
  // Tokens that the verifier decodes a question while the draft KV still comes; 0: it is waited
  // for.
  int early_tokens = 0;
  bool drafts_ahead = true;  // while a question is away, as if all of it held
  int plain_tokens = 16;     // of one question where there is no draft KV
  double wait_s = 10;        // a question waits so long at the verifier, and is asked again
  double stall_s = 120;      // a verifier that computes nothing for so long is lost
  int tries = 2;             // calls in a row that may fail before a verifier counts as lost
  // Tokens that verifiers emit at least before this node goes on because it is faster.
  int64_t least_tokens_for_tests = 0;
};

// Like Engine::Generate(). The engine needs a prefix store for its draft KV; without one, or
// without a draft KV there, the verifier decodes plainly. `verifiers` are tried in order.
// stats: null, or filled in. THREADS, ERRORS: as Generate(); no error of a verifier is one.
absl::StatusOr<Completion> GenerateRemote(Engine* engine, const Request& request,
                                          const std::vector<RemoteVerifier*>& verifiers,
                                          const RemoteOptions& options = {},
                                          const Callbacks& callbacks = {},
                                          RemoteStats* stats = nullptr);

}  // namespace vericache
