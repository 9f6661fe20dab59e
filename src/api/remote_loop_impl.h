// A request as the loop knows it, a verifier, and what a worker brings back (internal to
// remote_loop*.cc).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/remote_loop.h"
#include "engine/prefix_loader.h"

namespace vericache {

struct RemoteLoop::Peer {
  RemoteVerifier* verifier = nullptr;
  CircuitBreaker breaker;
  int num_jobs = 0;
  bool is_lost = false;  // to some request, since it was last of use
  int num_own = 1;       // requests of this node there, as of its last reply
  // Requests of other nodes that it has in hand, as its last reply told, and how many of these have
  // their prompts yet to be computed.
  int num_others = 0, num_other_prompts = 0;
  // Prompts of all nodes, and questions in a row that prompts came in between of.
  int num_prompts = 0, num_disturbed = 0;
  static constexpr int kMostDisturbed = 24;  // of each request of this node
  bool disturbed() const { return num_disturbed > 0 && num_disturbed <= kMostDisturbed * num_own; }
  explicit Peer(RemoteVerifier* v, const BreakerOptions& options) : verifier(v), breaker(options) {}
};

struct RemoteLoop::Job {
  RemoteId id = 0;
  RemoteJob state;
  RemoteHooks hooks;
  bool cancelled = false;
  Fetch fetch = Fetch::kWanted;
  bool calling = false;     // a call is under way
  int64_t peer = -1;        // < 0: none is chosen
  std::vector<bool> lost;   // [peers]
  int failures = 0;         // of the current one, since it was last of use
  std::string session;      // "": none is open
  bool first_reply = true;  // of the session: its question waited for the prompt
  std::string why;          // the last thing that failed
  double progress_s = 0;    // when the verifier last was seen to compute the prompt
  int64_t prompt_done = -1;
  double added_s = 0, ask_s = 0;
  // Which way it goes (remote_loop_ways.cc).
  int64_t stored_tokens = 0;  // that the store has full blocks of, as far as is known
  // An earlier request began like it: its verifier has loaded that, and may still have it in RAM.
  bool begins_like_earlier = false;
  bool looked_at = false, settled = false;
  PrefixWay way = PrefixWay::kRemote;
  bool plain = false;                // asked for: the verifier decodes
  bool leaves = false;               // it goes on here as soon as nothing is loading
  std::shared_ptr<PrefixLoad> load;  // of its full blocks
  bool has_loaded = false;           // all of them
  RequestTimes times;

  Job(const EngineAccess::Impl* impl, std::unique_ptr<Sequence> s, const Request& request)
      : state(impl, std::move(s), request) {}
  bool asking() const { return calling && !session.empty(); }
  // Rows that have to be computed wherever its answer begins.
  int64_t prompt_rows() const { return std::ssize(state.sequence().tokens) - stored_tokens; }
};

// What a worker has brought back.
struct RemoteLoop::Event {
  enum class Kind : uint8_t { kDraft, kOpened, kReply } kind = Kind::kDraft;
  RemoteId id = 0;
  size_t peer = 0;
  PrefixCache::StoredDraft draft;
  absl::StatusOr<std::string> session = absl::UnknownError("");
  absl::StatusOr<RemoteVerified> reply = absl::UnknownError("");
  double seconds = 0;
};

}  // namespace vericache
