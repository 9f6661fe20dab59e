#include "scheduler/cost_model.h"

#include <algorithm>
#include <cmath>

namespace vericache {
namespace {

// Knots of the rows term. A pass reads all weights once: the first rows hide behind that, more of
// them do not. Where the bend is depends on the machine; these three bracket it.
constexpr double kKnots[] = {0, 8, 32};
// Units that bring every term near one, so that one ridge serves all.
constexpr double kMega = 1e-6;
// Forgetting: a pass counts half after about 350 more.
constexpr double kDecay = 0.998;
constexpr double kRidge = 3e-2;  // towards the guess, on the scale of a term's contribution
constexpr double kUnseenRidge = 1e-9;
constexpr double kHuber = 0.25;  // relative error from which on a pass counts less
constexpr int kPolishSweeps = 4;
constexpr double kLinkDecay = 0.9;
constexpr double kCold = 2;  // times the guess: a first pass that is not believed
constexpr int kWarmUp = 8;   // passes before outliers are told from bad first guesses

}  // namespace

void PassShape::Add(const PassShape& other) {
  num_rows += other.num_rows;
  logit_rows += other.logit_rows;
  full_logits = std::max(full_logits, other.full_logits);
  full_tokens += other.full_tokens;
  attention += other.attention;
  draft_bytes += other.draft_bytes;
  chosen_tokens += other.chosen_tokens;
}

void PassShape::AddFull(int64_t rows, int64_t context, int64_t logits) {
  num_rows += static_cast<double>(rows);
  logit_rows += static_cast<double>(logits);
  if (logits > 0) full_logits = 1;
  full_tokens += static_cast<double>(context);
  attention += static_cast<double>(rows) * static_cast<double>(context);
}

void PassShape::AddDraft(int64_t rows, int64_t draft_kv_bytes) {
  num_rows += static_cast<double>(rows);
  logit_rows += static_cast<double>(rows);
  draft_bytes += static_cast<double>(rows) * static_cast<double>(draft_kv_bytes);
}

PassGuess PassGuess::Of(double pass_s) {
  PassGuess guess;
  guess.pass_s = std::max(pass_s, 1e-9);
  guess.output_s = 0.1 * guess.pass_s;
  guess.row_s = 0.05 * guess.pass_s;
  guess.logit_row_s = 0.02 * guess.pass_s;
  guess.full_token_s = 1e-7 * guess.pass_s;
  guess.attention_s = 2e-6 * guess.pass_s;
  guess.draft_byte_s = 1e-8 * guess.pass_s;
  guess.chosen_token_s = 2e-6 * guess.pass_s;
  return guess;
}

CostModel::CostModel(const PassGuess& guess, double link_bytes_per_s)
    : link_s_per_byte_(1.0 / std::max(link_bytes_per_s, 1.0)) {
  prior_ = {std::max(guess.pass_s, 1e-9),
            guess.row_s,
            0,
            0,
            guess.logit_row_s,
            guess.full_token_s / kMega,
            guess.attention_s / kMega,
            guess.draft_byte_s / kMega,
            guess.output_s,
            guess.chosen_token_s / kMega};
  weight_ = prior_;
}

CostModel::Terms CostModel::TermsOf(const PassShape& s) {
  return {1.0,
          s.num_rows,
          std::max(0.0, s.num_rows - kKnots[1]),
          std::max(0.0, s.num_rows - kKnots[2]),
          s.logit_rows,
          s.full_tokens * kMega,
          s.attention * kMega,
          s.draft_bytes * kMega,
          std::min(1.0, s.full_logits),
          s.chosen_tokens * kMega};
}

double CostModel::PassSeconds(const PassShape& shape) const {
  if (shape.num_rows <= 0) return 0;
  const Terms terms = TermsOf(shape);
  double sum = 0;
  for (int i = 0; i < kTerms; ++i) sum += terms[i] * weight_[i];
  return sum;
}

double CostModel::ExtraSeconds(const PassShape& base, const PassShape& added) const {
  PassShape both = base;
  both.Add(added);
  return std::max(0.0, PassSeconds(both) - PassSeconds(base));
}

double CostModel::FetchSeconds(int64_t bytes) const {
  return bytes > 0 ? static_cast<double>(bytes) * link_s_per_byte_ : 0.0;
}

void CostModel::ObservePass(const PassShape& shape, double compute_s) {
  if (!(compute_s > 0) || !std::isfinite(compute_s) || shape.num_rows <= 0) return;
  const double predicted = PassSeconds(shape);
  const double error = std::abs(predicted / compute_s - 1);
  // The first pass may find cold caches and memory that was never touched: up to ten times as long.
  if (++num_passes_ == 1 && compute_s > kCold * predicted) return;
  const double rate = std::max(0.02, 1.0 / static_cast<double>(num_passes_));
  relative_error_ += rate * (std::min(error, 1.0) - relative_error_);

  double importance = 1;
  if (num_passes_ > kWarmUp) {
    // Seen from the prediction too: a pass measured far too long has a small relative error.
    const double off = std::max(error, std::abs(compute_s / predicted - 1));
    if (off > kHuber) importance = kHuber / off;
  }
  // Errors are relative to the longer of the two: a pass measured far too short would otherwise
  // weigh hundreds of times as much as any other.
  const double scale_s = num_passes_ > kWarmUp ? std::max(compute_s, predicted) : compute_s;
  const double weight = importance / scale_s / scale_s;
  const Terms terms = TermsOf(shape);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) {
      gram_[i][j] = gram_[i][j] * kDecay + weight * terms[i] * terms[j];
    }
    target_[i] = target_[i] * kDecay + weight * terms[i] * compute_s;
  }
  Solve();
}

// Minimises |sum w f / T - 1|^2 + ridge |w - factor prior|^2 with w >= 0. The terms of similar
// passes are nearly proportional, where coordinate descent crawls: so solve the equations exactly,
// put the most negative weight to zero, solve again; a few sweeps then let a weight back in that
// was dropped too soon.
void CostModel::Solve() {
  // The guess as a whole may be off by any factor: a slow machine, or one that others use. How its
  // terms compare is worth more, above all where the passes seen cannot tell them apart: while all
  // rounds are long, what a plain step would cost.
  double guessed = 0, measured = 0;
  for (int i = 0; i < kTerms; ++i) {
    measured += prior_[i] * target_[i];
    for (int j = 0; j < kTerms; ++j) guessed += prior_[i] * gram_[i][j] * prior_[j];
  }
  const double factor = guessed > 0 && measured > 0 ? measured / guessed : 1;
  Terms ridge{}, target{};
  for (int i = 0; i < kTerms; ++i) {
    // On the scale of what the term contributes to the passes seen, not of the guess, which may be
    // wrong by orders of magnitude; the guess's own scale rules only until the term is seen. The
    // hinge terms have no guess: they are pulled to zero on the rows' scale.
    const double scale = prior_[i] > 0 ? prior_[i] : std::max(prior_[1], 1e-3 * prior_[0]);
    ridge[i] = kRidge * gram_[i][i] + kUnseenRidge / scale / scale;
    target[i] = target_[i] + ridge[i] * factor * prior_[i];
  }
  std::array<bool, kTerms> dropped{};
  for (int round = 0; round < kTerms; ++round) {
    weight_ = SolveWithout(dropped, ridge, target);
    const auto worst = std::min_element(weight_.begin(), weight_.end());
    if (*worst >= 0) break;
    dropped[worst - weight_.begin()] = true;
    *worst = 0;
  }
  for (int sweep = 0; sweep < kPolishSweeps; ++sweep) {
    for (int i = 0; i < kTerms; ++i) {
      double rest = target[i];
      for (int j = 0; j < kTerms; ++j) {
        if (j != i) rest -= gram_[i][j] * weight_[j];
      }
      weight_[i] = std::max(0.0, rest / (gram_[i][i] + ridge[i]));
    }
  }
}

// Gaussian elimination without pivoting: positive definite by the ridge. Scaled, because the terms'
// units are far apart.
CostModel::Terms CostModel::SolveWithout(const std::array<bool, kTerms>& dropped,
                                         const Terms& ridge, const Terms& target) const {
  std::array<Terms, kTerms> a = gram_;
  Terms scale{}, x{};
  for (int i = 0; i < kTerms; ++i) scale[i] = 1 / std::sqrt(gram_[i][i] + ridge[i]);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) {
      a[i][j] = (gram_[i][j] + (i == j ? ridge[i] : 0)) * scale[i] * scale[j];
      if (dropped[i] || dropped[j]) a[i][j] = i == j ? 1 : 0;
    }
    x[i] = dropped[i] ? 0 : target[i] * scale[i];
  }
  for (int k = 0; k < kTerms; ++k) {
    for (int i = k + 1; i < kTerms; ++i) {
      const double factor = a[i][k] / std::max(a[k][k], 1e-300);
      for (int j = k; j < kTerms; ++j) a[i][j] -= factor * a[k][j];
      x[i] -= factor * x[k];
    }
  }
  for (int k = kTerms - 1; k >= 0; --k) {
    for (int j = k + 1; j < kTerms; ++j) x[k] -= a[k][j] * x[j];
    x[k] /= std::max(a[k][k], 1e-300);
  }
  for (int i = 0; i < kTerms; ++i) x[i] *= scale[i];
  return x;
}

void CostModel::ObserveFetch(int64_t bytes, double seconds) {
  if (bytes <= 0 || !(seconds > 0) || !std::isfinite(seconds)) return;
  link_bytes_seen_ = link_bytes_seen_ * kLinkDecay + static_cast<double>(bytes);
  link_s_seen_ = link_s_seen_ * kLinkDecay + seconds;
  link_s_per_byte_ = link_s_seen_ / link_bytes_seen_;
}

}  // namespace vericache
