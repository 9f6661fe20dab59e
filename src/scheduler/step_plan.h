// The scheduler's plain data: what a request needs, what a step does, what a step measured.
//
// A *step* is one forward pass. The executor does what a StepPlan says, in this order: drop
// (`release`, `preempt`), shrink caches (`hot`, `prefix_cache_bytes`), admit, start fetches, run
// `work` in one pass; then it reports back with one StepReport. Nothing here runs a model or owns
// KV. Times are seconds, sizes are bytes, counts are tokens of one sequence unless said otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"
#include "scheduler/cost_model.h"

namespace vericache {

using RequestId = int64_t;

// Where a round's draft comes from. The last two are speculation on speculation: proposals are
// checked by the draft KV first, several rows a pass, and the full KV settles.
enum class DraftMode : uint8_t {
  kPlain,         // no draft: full-KV decoding, one token a step
  kDraftKv,       // one draft row a step on the draft KV
  kNgram,         // prompt and output lookup, verified by the full KV at once
  kDraftModel,    // a small model proposes, verified by the full KV at once
  kNgramDraftKv,  // lookup, checked by the draft KV
  kModelDraftKv,  // small model, checked by the draft KV
};
inline constexpr int kNumDraftModes = 6;
constexpr uint32_t ModeBit(DraftMode mode) { return 1u << static_cast<int>(mode); }
constexpr bool UsesDraftKv(DraftMode mode) {
  return mode == DraftMode::kDraftKv || mode == DraftMode::kNgramDraftKv ||
         mode == DraftMode::kModelDraftKv;
}
const char* DraftModeName(DraftMode mode);  // "plain", "draft-kv", ...: stable, used in --json

inline constexpr int kAutoDraftLen = -1;

// What a client asked, in sizes. All bounds are upper bounds: the budget rests on them.
struct RequestInfo {
  RequestId id = 0;
  int priority = 0;           // higher goes first; one level is worth Limits::aging_s of waiting
  int64_t prompt_tokens = 0;  // >= 1
  int64_t cached_tokens = 0;  // prompt rows whose full KV is there already, in [0, prompt_tokens)
  int64_t cached_hot_bytes = 0;  // of their full blocks: in RAM already when it is admitted
  int64_t max_tokens = 0;        // emitted at most, >= 1
  int64_t emitted_tokens = 0;    // of them, those that are there already, < max_tokens
  int64_t full_bytes_per_token = 0;
  int64_t draft_bytes_per_token = 0;  // a committed token's share (KvCompressor::MaxBytes)
  int64_t tail_bytes_per_token = 0;   // a provisional draft row: f16, all layers
  bool reselects = false;             // a round with the draft KV chooses it anew
  int64_t fixed_bytes = 0;            // whatever its length, open blocks of spilled full KV apart
  int64_t min_staging_bytes = 0;      // to stream a verification at its longest: a KV head
  uint32_t modes = ModeBit(DraftMode::kPlain) | ModeBit(DraftMode::kDraftKv);  // plain: always on
  int max_draft_len = kMaxDraftLen;     // the controller's longest draft
  int fixed_draft_len = kAutoDraftLen;  // in [0, kMaxDraftLen], or the controller decides
  double max_burst_s = 0;               // time to the next verified token is capped; 0: no cap
  // Its drafts come from outside. Behind its prompt, and behind each verification, it is parked
  // until Scheduler::Ask(); its verifications are kPlain, whatever they check.
  bool remote = false;
};

struct Limits {
  int64_t kv_bytes = 0;  // the budget: draft KV, open blocks, hot blocks, prefix cache, staging
  int64_t staging_bytes = 0;  // of kv_bytes: the staging ring, allocated once; 0: nothing streams
  int64_t spill_bytes = 0;    // room for spilled full KV; 0: all full KV must stay in kv_bytes
  // Of kv_bytes: new blocks that the prompt rows of one pass may begin, over all requests. Kept
  // free while a prompt is being computed. Only where full KV is spilled.
  int64_t prefill_bytes = 0;
  int64_t max_pass_rows = 512;
  int max_running = 64;  // requests admitted at the same time; at most max_pass_rows - 1 are
  double prefill_chunk_s = 0.1;   // a prefill chunk lengthens a step by at most this, if others run
  double aging_s = 10.0;          // seconds of waiting that one priority level is worth
  double link_bytes_per_s = 1e9;  // first guess; measured from the first fetch on
  PassGuess pass = PassGuess::Of(0.02);  // first guess
};

enum class StaggerPolicy : uint8_t {
  kStaggered,  // each verification reserves link and staging ahead
  kLockStep,   // all draft, then all verify; transfers begin with the verification
};

enum class WorkKind : uint8_t { kPrefill, kDraft, kVerify };

struct Work {
  RequestId id = 0;
  WorkKind kind = WorkKind::kPrefill;
  DraftMode mode = DraftMode::kPlain;
  // kPrefill: rows of known tokens to compute. kDraft: rows on the draft KV, 1, or 1 + proposals
  // for the two-level modes. kVerify: draft_len + 1, the most rows it can take.
  int rows = 0;
  // kVerify: drafted tokens to check. In kNgram and kDraftModel nothing is drafted yet: propose up
  // to this many now. 0 is one plain decode step. Remote: the first of the question's, or all.
  int draft_len = 0;
  int64_t streamed_bytes = 0;  // kVerify: full KV expected to come over the link, 0 if all is hot
  int64_t staging_bytes = 0;   // kVerify: staging it holds during the pass
};

// Start bringing in `id`'s spilled full KV, layer 0 first, at most `staging_bytes` ahead of use.
struct FetchStart {
  RequestId id = 0;
  int64_t staging_bytes = 0;
};

struct Admission {
  RequestId id = 0;
  bool with_draft_kv = false;  // false: its draft KV does not fit; it decodes plainly
  bool resumed = false;        // true: was preempted; rebuild the draft KV from the full KV
};

// Give up draft KV, hot blocks and staging; keep text, sampler state, usage, and spilled full KV.
struct Preemption {
  RequestId id = 0;
  bool drop_full_kv =
      false;  // nothing is spilled: the full KV goes as well, and is prefilled again
};

// Full blocks of `id` that may stay in RAM from now on (a cache: dropping them loses only time).
struct HotGrant {
  RequestId id = 0;
  int64_t bytes = 0;
};

struct Failure {
  RequestId id = 0;
  std::string message;
};

struct StepPlan {
  int64_t step_idx = 0;
  std::vector<RequestId> release;  // cancelled or failed: free everything; do not report on them
  std::vector<Failure> fail;       // end these with an error; each is in `release` too
  std::vector<Preemption> preempt;
  std::vector<HotGrant> hot;       // changed grants only
  int64_t prefix_cache_bytes = 0;  // the prefix cache may hold at most this in RAM
  std::vector<Admission> admit;
  std::vector<FetchStart> fetch;
  std::vector<Work> work;  // one pass; at most one entry a request
  double predicted_s = 0;  // cost model: compute and stall of this pass

  bool idle() const { return work.empty(); }  // nothing to run until Add()
};

enum class WorkOutcome : uint8_t {
  kDone,
  kFinished,  // end token, stop string or max_tokens: the request has ended well
  kFailed,    // the request has ended with an error
  kRetry,     // a tier did not deliver: nothing has changed, it will be planned again
};

struct WorkResult {
  RequestId id = 0;
  WorkKind kind = WorkKind::kPrefill;
  WorkOutcome outcome = WorkOutcome::kDone;
  int rows = 0;         // rows really run
  int num_drafted = 0;  // kDraft: tokens added to the draft. Else: draft tokens checked
  // kDraft: for each token added, the drafter's probability of it, or < 0 if unknown.
  std::vector<float> confidence;
  int num_accepted = 0;       // kVerify; kPrefill: of a draft that came with the prompt
  int num_emitted = 0;        // kVerify, and kPrefill when the last prompt row gave the first token
  double proposal_s = 0;      // spent outside the pass on look-up or the small model
  int64_t fetched_bytes = 0;  // over the link, for this verification
  double fetch_s = 0;         // time the link was busy with them
  int64_t draft_bytes = 0;    // now
  int64_t hot_bytes = 0;      // full blocks in RAM now
};

struct StepReport {
  int64_t step_idx = 0;
  double end_s = 0;    // the clock when the step was over
  double pass_s = 0;   // the pass alone, stalls included
  double stall_s = 0;  // of pass_s: waiting for the link
  int64_t prefix_cache_bytes = 0;
  std::vector<WorkResult> results;  // one for each Work
};

}  // namespace vericache
