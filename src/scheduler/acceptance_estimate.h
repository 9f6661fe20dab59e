// How often drafted tokens agree with the full KV: by position in the draft, and by confidence.
//
// Decayed counts with a prior (Beta): agreement at a position is shrunk towards the mean over all
// positions, that towards the mean over all requests (SharedAcceptance), that towards a constant.
#pragma once

#include <array>

#include "base/types.h"
#include "scheduler/step_plan.h"

namespace vericache {

// Decayed successes and trials.
struct DecayedCount {
  double hits = 0, trials = 0;
  void Add(double num_hits, double num_trials, double decay) {
    hits = hits * decay + num_hits;
    trials = trials * decay + num_trials;
  }
  // Posterior mean with a prior of `strength` trials at `mean`.
  double Mean(double mean, double strength) const {
    return (hits + mean * strength) / (trials + strength);
  }
};

class AcceptanceEstimate {
 public:
  // A draft of `drafted` tokens of which the first `accepted` agreed. The tokens behind the first
  // mismatch say nothing and are not counted.
  void Observe(int drafted, int accepted);
  // Old evidence counts `factor` of what it did: called before a probe, so that a text that has
  // changed its nature is not judged by what it was.
  void Age(double factor);

  double Mean(double prior_mean) const;
  double trials() const { return all_.trials; }  // drafted tokens that count, old ones less
  // Chance that token `pos` (0-based) agrees, given that those before it did.
  double AtPosition(int pos, double prior_mean) const;

 private:
  static constexpr int kPositionBins = 9;  // 0, 1, 2-3, 4-7, ... 128-255
  static int PositionBin(int pos);
  DecayedCount all_;
  std::array<DecayedCount, kPositionBins> position_;
};

// What all requests have shown, by mode. How far a drafter's own probability can be trusted is a
// property of the compressor or the model, not of a text: the calibration is shared.
class SharedAcceptance {
 public:
  void Observe(DraftMode mode, int drafted, int accepted);
  // A token drafted with probability `confidence` agreed or not; ignored if confidence < 0.
  void ObserveConfidence(DraftMode mode, double confidence, bool agreed);

  double Mean(DraftMode mode) const;
  bool Tried(DraftMode mode) const;  // anything observed yet
  // Chance that a token drafted with this probability agrees, where the request's mean is `mean`.
  double AtConfidence(DraftMode mode, double confidence, double mean) const;

 private:
  static constexpr int kConfidenceBins = 10;
  static int ConfidenceBin(double confidence);
  std::array<DecayedCount, kNumDraftModes> counts_;
  std::array<std::array<DecayedCount, kConfidenceBins>, kNumDraftModes> confidence_;
};

}  // namespace vericache
