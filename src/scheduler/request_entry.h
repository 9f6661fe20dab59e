// One request as the scheduler knows it, and the memory it is charged.
#pragma once

#include <cstdint>

#include "scheduler/draft_controller.h"
#include "scheduler/step_plan.h"

namespace vericache {

enum class Phase : uint8_t {
  kWaiting,   // not admitted yet, or preempted
  kPrefill,   // known tokens are being computed
  kStart,     // a round is to be chosen
  kDrafting,  // draft rows are being added
  kReady,     // the draft is complete; waiting for its slot
  kParked,    // remote: its prompt is computed; a question is to come, or has come
};

struct RequestEntry {
  RequestEntry(const RequestInfo& request, const ControllerOptions& options,
               SharedAcceptance* shared)
      : info(request), controller(options, shared) {}

  RequestInfo info;
  DraftController controller;
  int64_t serial = 0;            // tells a re-used id from the one before it
  double virtual_arrival_s = 0;  // the order of everything; ties by serial
  Phase phase = Phase::kWaiting;
  bool spillable = false;      // its full KV may leave RAM; else all of it is charged
  bool draft_kv_fits = false;  // even at its longest, alone
  bool was_preempted = false;
  bool holds_spill = false;  // charged in Limits::spill_bytes
  bool has_choice = false;   // the controller has planned a round

  int64_t computed_rows = 0;  // full KV
  int64_t num_emitted = 0;
  int64_t draft_bytes = 0;  // as last reported
  int64_t hot_bytes = 0;    // the same, but never more than the grants since have left
  int64_t hot_grant_bytes = 0;
  int num_retries = 0;
  double last_emit_s = 0;
  double burst_s = 0;  // the next token is due so long after the last; 0: no cap

  int round_len = 0;  // draft tokens this round is charged for
  int max_slot = 0;   // latest slot of its verification: the charge and the burst cap
  double round_s = 0, draft_s = 0, plain_step_s = 0;
  int64_t num_draft_steps = 0, num_draft_tokens = 0;  // two-level modes: tokens a step
  int prefill_rows = 0;                               // of the chunk that holds a reservation

  // Remote requests.
  bool prompt_done = false;
  int question_len = -1;  // drafted tokens of the question that is asked; < 0: none is
  double parked_s = 0;    // since when none is
  double added_s = 0;     // virtual arrival of the request itself; a question moves the other

  bool admitted() const { return phase != Phase::kWaiting; }
  bool asked() const { return question_len >= 0; }
  // Nothing is to be done for it until a question comes.
  bool idle() const { return info.remote && prompt_done && !asked(); }
  bool decoding() const { return admitted() && phase != Phase::kPrefill && !idle(); }
  int64_t num_tokens() const { return info.prompt_tokens + num_emitted; }
  // Rows that must be there before decoding: the last emitted token has no K/V yet, but before the
  // first one the prompt's last row gives its logits.
  int64_t target_rows() const { return num_emitted == 0 ? info.prompt_tokens : num_tokens() - 1; }
  int64_t tokens_left() const { return info.max_tokens - num_emitted; }
  uint32_t allowed_modes() const;

  int64_t block_bytes() const { return kBlockTokens * info.full_bytes_per_token; }
  // Full KV at its longest, in whole blocks.
  int64_t MaxFullBytes() const;
  // Full KV in closed blocks: what can be hot or spilled.
  int64_t ClosedBytes() const;
  // What has to come over the link to read all of the full KV.
  int64_t StreamedBytes() const;
  // Promised of the budget (caches and staging apart) in a round of `draft_len` drafted tokens.
  int64_t ChargedBytes(int draft_len) const;
  // Blocks that are being written, where whole ones may be spilled: those that a round's rows
  // touch, or the one that a prompt has got to.
  int64_t OpenBytes(int draft_len) const;
  // The least it can be run with at its longest, and the same with draft KV. prefill_bytes:
  // Limits::prefill_bytes.
  int64_t MinBytesAtLongest(bool with_draft_kv, int64_t prefill_bytes) const;
  // At its longest with draft KV, in a round of `draft_len`.
  int64_t BytesBesideOthers(int draft_len) const;
};

}  // namespace vericache
