// Iteration-time model: predicts the seconds of a forward pass and of a transfer, learned online.
//
//   T_pass = max(T_compute, T_link - prefetched)         (arXiv 2605.17613, iteration time)
//   T_compute = sum of terms, each >= 0: weights once + rows (convex: the first ones hide behind
//               the weights) + logits rows + KV bytes read + attention's arithmetic, which on a
//               CPU is what costs (design.md 8)
// Fitted by non-negative least squares on relative errors, with exponential forgetting; a pass far
// off the prediction counts less (Huber), so that a paused machine does not spoil the fit.
#pragma once

#include <array>
#include <cstdint>

namespace vericache {

struct PassShape {
  double num_rows = 0;
  double logit_rows = 0;
  double full_logits = 0;    // 1: some row needs logits of the whole vocabulary
  double full_tokens = 0;    // full-KV tokens read, once for each row group
  double attention = 0;      // sum over full-KV rows of the tokens each attends to
  double draft_bytes = 0;    // sum over draft rows of the draft KV's bytes
  double chosen_tokens = 0;  // full-KV tokens among which draft KVs are chosen anew

  // What both do in one pass.
  void Add(const PassShape& other);
  void AddFull(int64_t rows, int64_t context, int64_t logits);
  void AddDraft(int64_t rows, int64_t draft_kv_bytes);
};

// First guesses of what a pass is made of, in seconds.
struct PassGuess {
  double pass_s = 0.02;       // the weights, read once, but for
  double output_s = 0;        // the output matrix, which drafts hardly touch (engine/draft_vocab.h)
  double row_s = 0;           // each row's arithmetic
  double logit_row_s = 0;     // each row of logits
  double full_token_s = 0;    // each full-KV token read, beyond its arithmetic
  double attention_s = 0;     // each token a full-KV row attends to
  double draft_byte_s = 0;    // each draft-KV byte a row reads
  double chosen_token_s = 0;  // each token among which a draft KV is chosen anew

  // A CPU's proportions: a twentieth of a pass for a further row, attention over 1M tokens as much
  // as two passes. Wrong by a factor on any given machine; a few passes correct them.
  static PassGuess Of(double pass_s);
};

class CostModel {
 public:
  // The guesses are used until measurements outweigh them, and where those cannot tell terms apart.
  CostModel(const PassGuess& guess, double link_bytes_per_s);

  void ObservePass(const PassShape& shape, double compute_s);
  // Ignores empty or non-positive measurements.
  void ObserveFetch(int64_t bytes, double seconds);

  double PassSeconds(const PassShape& shape) const;
  // What `added` costs on top of `base`.
  double ExtraSeconds(const PassShape& base, const PassShape& added) const;
  double FetchSeconds(int64_t bytes) const;
  double link_bytes_per_s() const { return 1.0 / link_s_per_byte_; }
  int64_t num_passes() const { return num_passes_; }
  // Mean |predicted / measured - 1| of recent passes, predicted before they were learned.
  double relative_error() const { return relative_error_; }

 private:
  static constexpr int kTerms = 10;
  using Terms = std::array<double, kTerms>;
  static Terms TermsOf(const PassShape& shape);
  void Solve();
  Terms SolveWithout(const std::array<bool, kTerms>& dropped, const Terms& ridge,
                     const Terms& target) const;

  std::array<Terms, kTerms> gram_{};  // decayed sums of f f^T / T^2
  Terms target_{};                    // decayed sums of f / T
  Terms weight_{};                    // seconds per unit of each term
  Terms prior_{};
  double link_s_per_byte_;
  double link_bytes_seen_ = 0, link_s_seen_ = 0;
  int64_t num_passes_ = 0;
  double relative_error_ = 0;
};

}  // namespace vericache
