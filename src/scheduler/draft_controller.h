// Picks, for one request and one round, where the draft comes from and how long it is.
//
// Maximises expected emitted tokens per second, E(x) / T(x): E from measured per-token agreement
// (acceptance_estimate.h), T from measured costs. A draft stops early when one more token is worth
// less than it costs: survival * agreement < rate * cost, with the rate of the round as planned
// (renewal-reward: that is the best place to stop).
//
// NEVER SLOWER THAN PLAIN: the controller keeps an account of the seconds spent and of the seconds
// plain decoding would have spent on the tokens emitted. A round that, should nothing of it be
// accepted, would push the account beyond (1 + max_loss) * plain + a small opening credit is
// shortened or not run. So the loss is bounded whatever the acceptance does; only wrong costs can
// break it. Probes of other modes live on a budget of their own within that account.
#pragma once

#include <array>
#include <cstdint>

#include "scheduler/acceptance_estimate.h"
#include "scheduler/step_plan.h"

namespace vericache {

struct ControllerOptions {
  double max_loss = 0.02;      // share of plain decoding's time that may be lost
  double credit_tokens = 4.0;  // opening credit, in plain steps
  double probe_share = 0.01;   // of the time spent: what probing other modes may cost
  double switch_gain = 1.03;   // a mode is left for one that is faster by this factor
};

// A round's costs for this request: the seconds of the machine it uses, its share of what a pass
// costs once (the weights) included.
struct RoundCosts {
  std::array<double, kNumDraftModes> token_s{};  // for each drafted token, by mode
  double verify_s = 0;                           // verification with one row: plain decoding's step
  double row_s = 0;                              // each further row
  double choose_s = 0;   // more for a verification that chooses the draft KV anew
  double fetch_s = 0;    // link time for the streamed part of the full KV; 0 if all in RAM
  double staging_s = 0;  // how much of fetch_s staging can take in ahead of the pass
  bool alone = true;     // no other request's work can hide the transfer

  double RoundSeconds(DraftMode mode, double draft_len) const;
  double PlainSeconds() const { return RoundSeconds(DraftMode::kPlain, 0); }
};

struct RoundLimits {
  uint32_t modes = ModeBit(DraftMode::kPlain);
  int max_draft_len = kMaxDraftLen;  // by tokens left, memory, rows of a pass, and the burst cap
  int fixed_draft_len = kAutoDraftLen;
};

enum class ChoiceReason : uint8_t {
  kFixed,      // the length was given
  kFastest,    // highest expected rate
  kStay,       // another mode looks faster, by less than switch_gain
  kProbe,      // to learn about a mode
  kLossBound,  // shortened or plain: the account with plain decoding does not allow more
  kNoDraft,    // nothing to draft with, or no room for a draft
};
const char* ChoiceReasonName(ChoiceReason reason);

// The numbers behind a choice, for --json.
struct DraftChoice {
  DraftMode mode = DraftMode::kPlain;
  int draft_len = 0;
  ChoiceReason reason = ChoiceReason::kNoDraft;
  double agreement = 0;  // estimated, per drafted token, in this mode
  double expected_emitted = 1;
  double round_s = 0;
  double tokens_per_s = 0;
  double plain_tokens_per_s = 0;
  double draft_token_s = 0, verify_s = 0, row_s = 0, fetch_s = 0;
  double loss_s = 0;  // the account: seconds spent beyond plain decoding (< 0: gained)
  std::array<double, kNumDraftModes> mode_tokens_per_s{};  // best rate of each mode; 0: not allowed
};

struct RoundOutcome {
  int num_drafted = 0;
  int num_accepted = 0;
  int num_emitted = 0;
  double seconds = 0;        // this request's share of all passes of the round
  double draft_seconds = 0;  // of these: drafting
  double plain_step_s = 0;   // what a plain step would have cost
};

class DraftController {
 public:
  // `shared` (agreement of all requests by mode; the prior of this one) must outlive *this.
  DraftController(const ControllerOptions& options, SharedAcceptance* shared);

  // Starts a round. ENSURES: 0 <= draft_len <= limits.max_draft_len, mode allowed (plain always
  // is); draft_len == 0 exactly if the mode is plain.
  const DraftChoice& Choose(const RoundCosts& costs, const RoundLimits& limits);

  // The stagger policy moved the verification: the round will draft `draft_len` tokens.
  void SetDraftLen(int draft_len);

  // One more token was drafted; `confidence` is its probability, < 0 if unknown.
  void OnDrafted(double confidence);
  // Whether another token is worth drafting. False from draft_len tokens on.
  bool KeepDrafting() const;
  int num_drafted() const { return num_drafted_; }

  void OnRound(const RoundOutcome& outcome);

  const DraftChoice& choice() const { return choice_; }
  int64_t num_rounds() const { return num_rounds_; }
  double spent_s() const { return spent_s_; }
  double plain_s() const { return plain_s_; }

 private:
  struct Best {
    int draft_len = 0;
    double rate = 0, emitted = 1;
  };
  using BestByMode = std::array<Best, kNumDraftModes>;
  struct ModeState {
    AcceptanceEstimate estimate;
    DecayedCount found;         // kNgram: rounds in which there was something to propose
    double draft_s_factor = 1;  // measured draft seconds over predicted ones
    double next_probe_s = 0;    // on the scale of spent_s_
    double probe_gap_s = 0;
  };
  double RoundSeconds(DraftMode mode, double draft_len) const;
  double FoundShare(DraftMode mode) const;
  Best Expect(DraftMode mode, int draft_len, double emitted) const;
  Best AtLength(DraftMode mode, int draft_len) const;
  Best BestLength(DraftMode mode, int max_len) const;
  int ProbeLength(DraftMode mode, double rate, int max_len) const;
  int LossBoundLength(DraftMode mode, int wanted) const;
  DraftMode PickFixed(const RoundLimits& limits, BestByMode* best) const;
  DraftMode PickMode(const RoundLimits& limits, const BestByMode& best, ChoiceReason* reason);
  bool PickUntried(const RoundLimits& limits, DraftMode* mode, int* len) const;
  bool PickProbe(const RoundLimits& limits, const BestByMode& best, DraftMode* mode, int* len);
  void Describe(DraftMode mode, int draft_len, ChoiceReason reason, const BestByMode& best);
  void EndProbe(const RoundOutcome& outcome);

  ControllerOptions options_;
  SharedAcceptance* shared_;
  std::array<ModeState, kNumDraftModes> modes_;
  RoundCosts costs_;
  DraftChoice choice_;
  DraftMode mode_ = DraftMode::kPlain;  // the mode in force; a probe does not change it
  double rate_ = 0;                     // what the mode in force is expected to give
  int num_drafted_ = 0;
  double survival_ = 1;  // probability that all drafted tokens will be accepted
  std::array<float, kMaxDraftLen> confidence_{};
  int64_t num_rounds_ = 0;
  double spent_s_ = 0, plain_s_ = 0, probe_loss_s_ = 0, credit_s_ = 0;
};

}  // namespace vericache
