#include "scheduler/draft_controller.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace vericache {
namespace {

constexpr double kFactorRate = 0.2;        // how fast measured draft seconds are learned
constexpr double kProbeGain = 1.1;         // a probe must be able to show this much
constexpr double kFirstProbeGapSteps = 8;  // plain steps between the first probes of a mode
constexpr double kAgeBeforeProbe = 0.7;
// The first rounds ever in a mode measure its costs, which until then are guesses. Where the
// transfer is what takes time, a longer draft costs next to nothing.
constexpr int kFirstRoundLength = 2, kFirstStreamedLength = 16;
// Rounds of a streamed request before it tries what else proposes.
constexpr int kRoundsBeforeOthers = 6;
// A round is charged at most this many times what it should have taken.
constexpr double kMostCharged = 2;
// Look-ups that find something, before any was made; it takes about twenty rounds to change.
constexpr double kFoundGuess = 0.5, kFoundStrength = 2, kFoundDecay = 0.95;
constexpr double kNegligible = 1e-4;  // survival below which a longer draft adds nothing

DraftMode ModeAt(int index) { return static_cast<DraftMode>(index); }
bool Allowed(const RoundLimits& limits, int index) {
  return (limits.modes & ModeBit(ModeAt(index))) != 0;
}

}  // namespace

const char* ChoiceReasonName(ChoiceReason reason) {
  switch (reason) {
    case ChoiceReason::kFixed:
      return "fixed";
    case ChoiceReason::kFastest:
      return "fastest";
    case ChoiceReason::kStay:
      return "stay";
    case ChoiceReason::kProbe:
      return "probe";
    case ChoiceReason::kLossBound:
      return "loss-bound";
    case ChoiceReason::kNoDraft:
      return "no-draft";
  }
  return "unknown";
}

double RoundCosts::RoundSeconds(DraftMode mode, double draft_len) const {
  const double draft = token_s[static_cast<int>(mode)] * draft_len;
  const double verify = verify_s + row_s * draft_len + (UsesDraftKv(mode) ? choose_s : 0);
  if (!alone) return std::max(draft + verify, fetch_s);
  return draft + std::max(verify, fetch_s - std::min(staging_s, draft));
}

DraftController::DraftController(const ControllerOptions& options, SharedAcceptance* shared)
    : options_(options), shared_(shared) {
  VC_CHECK(shared != nullptr);
}

double DraftController::RoundSeconds(DraftMode mode, double draft_len) const {
  RoundCosts costs = costs_;
  costs.token_s[static_cast<int>(mode)] *= modes_[static_cast<int>(mode)].draft_s_factor;
  return std::max(costs.RoundSeconds(mode, draft_len), 1e-12);
}

// The share of rounds that have a draft. A look-up that finds nothing leaves a plain step.
double DraftController::FoundShare(DraftMode mode) const {
  if (mode != DraftMode::kNgram) return 1;
  return modes_[static_cast<int>(mode)].found.Mean(kFoundGuess, kFoundStrength);
}

// `emitted`: expected of a round that has a draft.
DraftController::Best DraftController::Expect(DraftMode mode, int draft_len, double emitted) const {
  const double found = FoundShare(mode);
  const double seconds =
      found * RoundSeconds(mode, draft_len) + (1 - found) * costs_.PlainSeconds();
  const double all_emitted = found * emitted + (1 - found);
  return {draft_len, all_emitted / std::max(seconds, 1e-12), all_emitted};
}

DraftController::Best DraftController::AtLength(DraftMode mode, int draft_len) const {
  const double prior = shared_->Mean(mode);
  const AcceptanceEstimate& estimate = modes_[static_cast<int>(mode)].estimate;
  double survival = 1, emitted = 1;
  for (int pos = 0; pos < draft_len && survival > kNegligible; ++pos) {
    survival *= estimate.AtPosition(pos, prior);
    emitted += survival;
  }
  return Expect(mode, draft_len, emitted);
}

DraftController::Best DraftController::BestLength(DraftMode mode, int max_len) const {
  const double prior = shared_->Mean(mode);
  const AcceptanceEstimate& estimate = modes_[static_cast<int>(mode)].estimate;
  Best best;
  double survival = 1, emitted = 1;
  for (int len = 1; len <= max_len && survival > kNegligible; ++len) {
    survival *= estimate.AtPosition(len - 1, prior);
    emitted += survival;
    const Best at = Expect(mode, len, emitted);
    if (at.rate > best.rate) best = at;
  }
  return best;
}

// The shortest draft that could show the mode to be faster than `rate`; 0 if none could, were it
// accepted whole: then its costs alone rule the mode out and a probe would teach nothing.
int DraftController::ProbeLength(DraftMode mode, double rate, int max_len) const {
  for (int len = 1; len <= max_len; ++len) {
    if ((len + 1) / RoundSeconds(mode, len) > kProbeGain * rate) {
      return std::min(max_len, std::max(len, 2));
    }
  }
  return 0;
}

// The longest draft, at most `wanted`, which the account stands even if no token of it is accepted.
int DraftController::LossBoundLength(DraftMode mode, int wanted) const {
  const double allowed = (1 + options_.max_loss) * (plain_s_ + costs_.PlainSeconds()) + credit_s_;
  int lo = 0, hi = wanted;  // seconds grow with the length
  while (lo < hi) {
    const int mid = (lo + hi + 1) / 2;
    if (spent_s_ + RoundSeconds(mode, mid) <= allowed) {
      lo = mid;
    } else {
      hi = mid - 1;
    }
  }
  return lo;
}

DraftMode DraftController::PickFixed(const RoundLimits& limits, BestByMode* best) const {
  DraftMode picked = DraftMode::kPlain;
  const int len = std::min(limits.fixed_draft_len, limits.max_draft_len);
  if (len <= 0) return picked;
  double rate = 0;
  for (int i = 1; i < kNumDraftModes; ++i) {
    if (!Allowed(limits, i)) continue;
    (*best)[i] = AtLength(ModeAt(i), len);
    if ((*best)[i].rate > rate) {
      rate = (*best)[i].rate;
      picked = ModeAt(i);
    }
  }
  return picked;
}

// Plain decoding is left only for a gain that shows, and gone back to as soon as it is the faster
// one: hysteresis must not cost what the controller exists to guard.
DraftMode DraftController::PickMode(const RoundLimits& limits, const BestByMode& best,
                                    ChoiceReason* reason) {
  int fastest = 0;
  for (int i = 1; i < kNumDraftModes; ++i) {
    if (Allowed(limits, i) && best[i].rate > best[fastest].rate) fastest = i;
  }
  const int current = static_cast<int>(mode_);
  const bool current_allowed = current == 0 || Allowed(limits, current);
  *reason = ChoiceReason::kFastest;
  if (current_allowed && fastest != current && fastest != 0 &&
      best[fastest].rate < options_.switch_gain * best[current].rate) {
    // Between two drafting modes stay; but never stay in one that plain decoding beats.
    const bool plain_beats = current != 0 && best[0].rate > best[current].rate;
    if (!plain_beats) {
      *reason = ChoiceReason::kStay;
      return mode_;
    }
  }
  return ModeAt(fastest);
}

// A mode nobody has tried: what plain decoding has measured cannot tell a weight's cost from a
// row's or a KV byte's, so the predicted costs can neither rule the mode out nor bound its loss.
// What does: a draft token takes no longer than a plain step, nor does a further row.
bool DraftController::PickUntried(const RoundLimits& limits, DraftMode* mode, int* len) const {
  const double plain_s = costs_.PlainSeconds();
  const double allowed = (1 + options_.max_loss) * (plain_s_ + plain_s) + credit_s_;
  const bool streamed = costs_.fetch_s > 2 * costs_.verify_s;
  *len = std::min(streamed ? kFirstStreamedLength : kFirstRoundLength, limits.max_draft_len);
  if (*len < 1 || spent_s_ + plain_s + 2 * *len * costs_.verify_s > allowed) return false;
  for (int i = 1; i < kNumDraftModes; ++i) {
    if (!Allowed(limits, i) || ModeAt(i) == mode_ || shared_->Tried(ModeAt(i))) continue;
    // A round costs a whole transfer: rather make few long ones in a mode that is known.
    if (streamed && num_rounds_ < kRoundsBeforeOthers && shared_->Tried(DraftMode::kDraftKv))
      continue;
    // It had nothing to show a moment ago.
    if (modes_[i].found.trials > 0 && spent_s_ < modes_[i].next_probe_s) continue;
    *mode = ModeAt(i);
    return true;
  }
  return false;
}

bool DraftController::PickProbe(const RoundLimits& limits, const BestByMode& best, DraftMode* mode,
                                int* len) {
  if (num_rounds_ > 0 && PickUntried(limits, mode, len)) return true;
  int picked = -1;
  for (int i = 1; i < kNumDraftModes; ++i) {
    if (!Allowed(limits, i) || ModeAt(i) == mode_) continue;
    ModeState& state = modes_[i];
    if (state.probe_gap_s <= 0) {
      state.probe_gap_s = kFirstProbeGapSteps * costs_.PlainSeconds();
      state.next_probe_s = spent_s_ + state.probe_gap_s;
    }
    if (spent_s_ < state.next_probe_s) continue;
    if (picked < 0 || state.next_probe_s < modes_[picked].next_probe_s) picked = i;
  }
  if (picked < 0) return false;
  const double rate = best[static_cast<int>(mode_)].rate;
  *mode = ModeAt(picked);
  *len = ProbeLength(*mode, rate, limits.max_draft_len);
  if (*len == 0) {
    modes_[picked].next_probe_s = spent_s_ + modes_[picked].probe_gap_s;
    return false;
  }
  // If nothing is accepted the round yields one token, which the mode in force makes in 1 / rate.
  // A look-up that finds nothing costs a plain step.
  const double found = FoundShare(*mode);
  const double worst_s =
      found * RoundSeconds(*mode, *len) + (1 - found) * costs_.PlainSeconds() - 1 / rate;
  if (worst_s > options_.probe_share * spent_s_ - probe_loss_s_) return false;
  return LossBoundLength(*mode, *len) == *len;
}

void DraftController::Describe(DraftMode mode, int draft_len, ChoiceReason reason,
                               const BestByMode& best) {
  const int index = static_cast<int>(mode);
  const Best at = AtLength(mode, draft_len);
  choice_ = DraftChoice{};
  choice_.mode = mode;
  choice_.draft_len = draft_len;
  choice_.reason = reason;
  choice_.agreement = modes_[index].estimate.Mean(shared_->Mean(mode));
  if (mode == DraftMode::kPlain) choice_.agreement = 0;
  choice_.expected_emitted = at.emitted;
  choice_.round_s = RoundSeconds(mode, draft_len);
  choice_.tokens_per_s = at.rate;
  choice_.plain_tokens_per_s = 1 / std::max(costs_.PlainSeconds(), 1e-12);
  choice_.draft_token_s = costs_.token_s[index] * modes_[index].draft_s_factor;
  choice_.verify_s = costs_.verify_s;
  choice_.row_s = costs_.row_s;
  choice_.fetch_s = costs_.fetch_s;
  choice_.loss_s = spent_s_ - plain_s_;
  for (int i = 0; i < kNumDraftModes; ++i) choice_.mode_tokens_per_s[i] = best[i].rate;
}

const DraftChoice& DraftController::Choose(const RoundCosts& costs, const RoundLimits& limits) {
  costs_ = costs;
  num_drafted_ = 0;
  survival_ = 1;
  credit_s_ = options_.credit_tokens * costs.PlainSeconds();
  const int max_len = std::clamp(limits.max_draft_len, 0, kMaxDraftLen);
  RoundLimits bounded = limits;
  bounded.max_draft_len = max_len;

  BestByMode best{};
  best[0] = {0, 1 / std::max(costs.PlainSeconds(), 1e-12), 1};
  if (limits.fixed_draft_len != kAutoDraftLen) {
    const DraftMode mode = PickFixed(bounded, &best);
    const int len = mode == DraftMode::kPlain ? 0 : std::min(limits.fixed_draft_len, max_len);
    Describe(mode, len, ChoiceReason::kFixed, best);
    mode_ = mode;
    rate_ = choice_.tokens_per_s;
    return choice_;
  }
  bool any = false;
  for (int i = 1; i < kNumDraftModes && max_len > 0; ++i) {
    if (!Allowed(limits, i)) continue;
    best[i] = BestLength(ModeAt(i), max_len);
    any = true;
  }
  ChoiceReason reason = ChoiceReason::kNoDraft;
  DraftMode mode = any ? PickMode(bounded, best, &reason) : DraftMode::kPlain;
  mode_ = mode;
  rate_ = best[static_cast<int>(mode)].rate;
  int len = best[static_cast<int>(mode)].draft_len;
  DraftMode probe;
  int probe_len = 0;
  if (any && PickProbe(bounded, best, &probe, &probe_len)) {
    mode = probe;
    len = probe_len;
    reason = ChoiceReason::kProbe;
    modes_[static_cast<int>(probe)].estimate.Age(kAgeBeforeProbe);
  } else if (len > 0) {
    const int bound = LossBoundLength(mode, len);
    if (bound < len) {
      len = bound;
      reason = ChoiceReason::kLossBound;
    }
  }
  if (len == 0) mode = DraftMode::kPlain;
  Describe(mode, len, reason, best);
  return choice_;
}

void DraftController::SetDraftLen(int draft_len) {
  VC_CHECK(draft_len >= 0 && draft_len <= kMaxDraftLen);
  choice_.draft_len = draft_len;
}

void DraftController::OnDrafted(double confidence) {
  if (num_drafted_ >= kMaxDraftLen) return;
  const double prior = shared_->Mean(choice_.mode);
  const AcceptanceEstimate& estimate = modes_[static_cast<int>(choice_.mode)].estimate;
  const double known = confidence >= 0
                           ? shared_->AtConfidence(choice_.mode, confidence, estimate.Mean(prior))
                           : estimate.AtPosition(num_drafted_, prior);
  survival_ *= known;
  confidence_[num_drafted_++] = static_cast<float>(confidence);
}

bool DraftController::KeepDrafting() const {
  if (num_drafted_ >= choice_.draft_len) return false;
  if (num_drafted_ == 0) return true;
  if (choice_.reason == ChoiceReason::kFixed || choice_.reason == ChoiceReason::kProbe) return true;
  const double next = modes_[static_cast<int>(choice_.mode)].estimate.AtPosition(
      num_drafted_, shared_->Mean(choice_.mode));
  const double cost =
      RoundSeconds(choice_.mode, num_drafted_ + 1) - RoundSeconds(choice_.mode, num_drafted_);
  // On a plateau of the costs (the transfer is what takes time) a token is worth anything.
  return survival_ * next > choice_.tokens_per_s * cost;
}

void DraftController::EndProbe(const RoundOutcome& outcome) {
  ModeState& state = modes_[static_cast<int>(choice_.mode)];
  probe_loss_s_ += std::max(0.0, outcome.seconds - outcome.num_emitted / std::max(rate_, 1e-12));
  const bool promising = outcome.num_drafted > 0 && outcome.num_accepted == outcome.num_drafted;
  const bool for_nothing = mode_ == DraftMode::kPlain && outcome.num_drafted == 0;
  const double widen = promising ? 0.5 : for_nothing ? 1 : 2;
  state.probe_gap_s = std::max(state.probe_gap_s * widen, costs_.PlainSeconds());
  state.next_probe_s = spent_s_ + state.probe_gap_s;
}

void DraftController::OnRound(const RoundOutcome& outcome) {
  const int index = static_cast<int>(choice_.mode);
  ++num_rounds_;
  if (choice_.mode == DraftMode::kPlain) {  // it is what the account compares with
    spent_s_ += outcome.seconds;
    plain_s_ += outcome.seconds;
  } else {
    // A pass that was held up, by another process say, tells nothing about drafting: one of them
    // must not forbid it for the rest of an answer.
    const double most_s = kMostCharged * (RoundSeconds(choice_.mode, outcome.num_drafted) +
                                          outcome.num_drafted * outcome.plain_step_s);
    spent_s_ += std::min(outcome.seconds, most_s);
    plain_s_ += outcome.num_emitted * outcome.plain_step_s;
  }
  if (choice_.mode != DraftMode::kPlain) {
    modes_[index].found.Add(outcome.num_drafted > 0 ? 1 : 0, 1, kFoundDecay);
    // A model that proposes nothing cannot (no memory, beyond its context): as good as wrong.
    const bool silent = choice_.mode == DraftMode::kDraftModel && outcome.num_drafted == 0;
    const int drafted = silent ? 1 : outcome.num_drafted;
    modes_[index].estimate.Observe(drafted, outcome.num_accepted);
    shared_->Observe(choice_.mode, drafted, outcome.num_accepted);
    const int num_known = std::min({num_drafted_, outcome.num_drafted, outcome.num_accepted + 1});
    for (int i = 0; i < num_known; ++i) {
      shared_->ObserveConfidence(choice_.mode, confidence_[i], i < outcome.num_accepted);
    }
    const double predicted = costs_.token_s[index] * outcome.num_drafted;
    if (predicted > 0 && outcome.draft_seconds > 0) {
      const double factor = std::clamp(outcome.draft_seconds / predicted, 0.05, 20.0);
      modes_[index].draft_s_factor += kFactorRate * (factor - modes_[index].draft_s_factor);
    }
  }
  if (choice_.reason == ChoiceReason::kProbe) EndProbe(outcome);
}

}  // namespace vericache
