// Which way a prompt's stored prefix is had: computed again, loaded, drafted on meanwhile, or
// verified elsewhere. Plain data in, plain data out; times are predictions, nothing is measured.
//
//   recompute     all rows of the prompt are computed here
//   load          full blocks come over the link, then the rest is computed
//   draft-first   the draft KV comes first; while the full blocks arrive the request drafts on it,
//                 and one pass verifies that draft when they are here
//   remote        the draft KV comes alone, a verifier next to the store has the full KV
//   remote-plain  nothing comes: the verifier decodes
//
// Picked is the way with the earliest last token; none changes what the tokens are. Where there is
// a verifier it answers while full blocks arrive, so loading delays nothing; and it is left only
// for what is clearly faster.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "scheduler/cost_model.h"

namespace vericache {

enum class PrefixWay : uint8_t { kRecompute, kLoad, kDraftFirst, kRemote, kRemotePlain };
inline constexpr int kNumPrefixWays = 5;
// The time that a verifier's answer may take, of that of another way, before it is left for that.
inline constexpr double kVerifierIsLeftAt = 0.95;
// The same where several requests share a machine: those that leave together slow each other down,
// and none of them knows how many will.
inline constexpr double kCrowdIsLeftAt = 0.85;
const char* PrefixWayName(PrefixWay way);  // "recompute", "load", ...: stable, used in --json

// Tokens that look-up is taken to propose a round.
inline constexpr int kLookupDraft = 8;

struct PrefixPlanInput {
  int64_t prompt_tokens = 0;  // >= 1
  int64_t known_tokens = 0;   // rows that are here already, or in this node's RAM
  int64_t prefix_tokens = 0;  // that the store has full blocks of; 0: none
  int64_t draft_tokens = 0;   // positions of the stored draft KV; 0: there is none
  uint64_t full_bytes = 0;    // of the full blocks,
  uint64_t draft_bytes = 0;   // of the draft KV, both over the link
  int64_t max_tokens = 1;     // that the answer will have, >= 1; the prompt's are not among them

  double link_bytes_per_s = 0;  // of the store, for this request; 0: not known
  double round_trip_s = 0;      // of the store
  // Computing is no way out where loading takes no longer than this.
  double patience_s = 0;
  // Bytes that others have asked for and that come first.
  uint64_t link_queue_bytes = 0;

  double agreement = 0.8;      // expected per drafted token, in [0, 1]
  int max_draft_len = 0;       // of one draft; 0: nothing drafts
  int64_t draft_kv_bytes = 0;  // of the draft KV, as a pass reads it
  // Tokens that a verification of kLookupDraft proposed ones gives, here or there; 0: not known.
  double lookup_run = 0;

  bool verifier = false;  // one is there
  double verifier_round_trip_s = 0;
  double verifier_bytes_per_s = 0;  // of exact rows that come back; 0: as the store's
  int64_t row_bytes = 0;            // of one token's full K/V
  double verifier_ready_s = 0;      // until it has the prompt's K/V,
  double verifier_prompts_s = 0;    // and those of all prompts that it was given; 0: of no others
  int verifier_plain_tokens = 16;   // of a question without a draft
  // Tokens a second as measured; 0: predicted, as if the verifier's machine were this one.
  double remote_tokens_per_s = 0, remote_plain_tokens_per_s = 0;
  double remote_lookup_s = 0;  // of a question of kLookupDraft proposed tokens; 0: predicted
  // Of this node at the verifier when these were measured, on average; 0: as many as now.
  double num_measured = 0;

  bool fits_here = true;       // this node has room for the full KV
  int num_active = 1;          // requests that would decode here, this one included
  int num_remote = 1;          // of this node at the verifier, this one included
  int num_elsewhere = 0;       // of other nodes there, as far as it has told; they choose, too
  double prompts_ahead_s = 0;  // that this node computes for others before this one's prompt
};

struct PrefixEstimate {
  bool possible = false;
  double first_s = 0;       // until the first verified token
  double last_s = 0;        // until the last one
  int draft_len = 0;        // draft-first: tokens drafted while blocks arrive; remote: a round's
  double tokens_per_s = 0;  // behind the first ones
  uint64_t link_bytes = 0;
};

struct PrefixPlan {
  PrefixWay way = PrefixWay::kRecompute;
  std::string reason;  // one line
  std::array<PrefixEstimate, kNumPrefixWays> estimates;

  const PrefixEstimate& of(PrefixWay w) const { return estimates[static_cast<int>(w)]; }
};

// Emitted by a verification of `draft_len` drafted tokens that each agree with this chance.
double ExpectedEmitted(double agreement, int draft_len);

// Of rows [begin, end) of a prompt, in chunks as passes take them.
double PrefillSeconds(const CostModel& costs, int64_t begin, int64_t end);

PrefixPlan PlanPrefix(const PrefixPlanInput& input, const CostModel& costs);

}  // namespace vericache
