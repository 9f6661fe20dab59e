#include "scheduler/acceptance_estimate.h"

#include <algorithm>
#include <bit>

namespace vericache {
namespace {

// Memory of about 170 drafted tokens for a request: text changes its nature within an answer.
constexpr double kDecay = 0.994;
constexpr double kSharedDecay = 0.999;
constexpr double kMeanStrength = 4;
constexpr double kPositionStrength = 16;
constexpr double kConfidenceStrength = 8;
constexpr double kSharedStrength = 10;
// What a mode is believed to do before anything was seen: draft KV from ../shared measurements of
// small models (0.9 and more with selectors), look-up and small models are often wrong.
constexpr double kFirstGuess[kNumDraftModes] = {0, 0.9, 0.5, 0.7, 0.9, 0.9};

constexpr double kMost = 0.9995;  // nothing is certain; keeps expected run lengths finite

double DecayFor(double base, int trials) {
  double decay = 1;
  for (int i = 0; i < trials; ++i) decay *= base;
  return decay;
}

}  // namespace

int AcceptanceEstimate::PositionBin(int pos) {
  const int bin = std::bit_width(static_cast<unsigned>(std::max(pos, 0)));
  return std::min(bin, kPositionBins - 1);
}

void AcceptanceEstimate::Observe(int drafted, int accepted) {
  accepted = std::clamp(accepted, 0, std::max(drafted, 0));
  const int trials = std::min(drafted, accepted + 1);
  if (trials <= 0) return;
  all_.Add(accepted, trials, DecayFor(kDecay, trials));
  for (int pos = 0; pos < trials; ++pos) {
    position_[PositionBin(pos)].Add(pos < accepted ? 1 : 0, 1, kDecay);
  }
}

void AcceptanceEstimate::Age(double factor) {
  all_.hits *= factor;
  all_.trials *= factor;
  for (DecayedCount& count : position_) {
    count.hits *= factor;
    count.trials *= factor;
  }
}

double AcceptanceEstimate::Mean(double prior_mean) const {
  return std::min(all_.Mean(prior_mean, kMeanStrength), kMost);
}

double AcceptanceEstimate::AtPosition(int pos, double prior_mean) const {
  return std::min(position_[PositionBin(pos)].Mean(Mean(prior_mean), kPositionStrength), kMost);
}

void SharedAcceptance::Observe(DraftMode mode, int drafted, int accepted) {
  accepted = std::clamp(accepted, 0, std::max(drafted, 0));
  const int trials = std::min(drafted, accepted + 1);
  if (trials <= 0) return;
  counts_[static_cast<int>(mode)].Add(accepted, trials, DecayFor(kSharedDecay, trials));
}

bool SharedAcceptance::Tried(DraftMode mode) const {
  return counts_[static_cast<int>(mode)].trials > 0;
}

double SharedAcceptance::Mean(DraftMode mode) const {
  const int i = static_cast<int>(mode);
  return counts_[i].Mean(kFirstGuess[i], kSharedStrength);
}

int SharedAcceptance::ConfidenceBin(double confidence) {
  return std::min(static_cast<int>(std::min(confidence, 1.0) * kConfidenceBins),
                  kConfidenceBins - 1);
}

void SharedAcceptance::ObserveConfidence(DraftMode mode, double confidence, bool agreed) {
  if (!(confidence >= 0)) return;
  confidence_[static_cast<int>(mode)][ConfidenceBin(confidence)].Add(agreed ? 1 : 0, 1,
                                                                     kSharedDecay);
}

double SharedAcceptance::AtConfidence(DraftMode mode, double confidence, double mean) const {
  if (!(confidence >= 0)) return mean;
  // Before anything was seen: a drafter that gives its token more than one half agrees as often as
  // the request's tokens do on the whole; below that, less and less.
  const double guess = mean * std::min(1.0, 0.5 + confidence);
  const DecayedCount& bin = confidence_[static_cast<int>(mode)][ConfidenceBin(confidence)];
  return std::min(bin.Mean(guess, kConfidenceStrength), kMost);
}

}  // namespace vericache
