// How many tokens to draft before a verifier far away is asked.
//
//   one request      T(x) = x * step + round trip + E(x) * link + verify + x * row
//   many requests    others draft while a question is away, so a round costs this node only its
//                    share of the passes: T(x) = max(that, active requests * x * share of a step)
//
// The length maximises E(x) / T(x), E from measured agreement (acceptance_estimate.h). x = 0: the
// verifier decodes plainly, several tokens a question. All costs are measured, in seconds; guesses
// hold until then. It changes speed alone.
#pragma once

#include <cstdint>

#include "scheduler/acceptance_estimate.h"

namespace vericache {

// y = a + b * x with a, b >= 0 by decayed least squares, drawn to b = slope_share * a.
class LineFit {
 public:
  // a, b: the first guess.
  LineFit(double a, double b, double slope_share);
  void Observe(double x, double y);
  double a() const { return a_; }
  double b() const { return b_; }

 private:
  double a_, b_, slope_share_;
  double n_ = 0, x_ = 0, xx_ = 0, y_ = 0, xy_ = 0;
};

// What a question came to.
struct RemoteQuestion {
  int drafted = 0, emitted = 0;
  double seconds = 0;  // until its reply was there
  double busy_s = 0;   // of these: at the verifier
  int num_own = 1;     // requests of this node there meanwhile
};

// What the machines' passes should take, before any was measured.
struct RemoteGuess {
  double draft_step_s = 0.01;
  double verify_s = 0.02;  // one token at the verifier
  double row_share = 0.1;  // a further row there, of verify_s
  double round_trip_s = 0.02;
};

struct RemoteLength {
  int draft_len = 0;     // 0: none, the verifier decodes
  int plain_tokens = 1;  // so many tokens a question then
  double expected_emitted = 1;
  double agreement = 0;
  double tokens_per_s = 0, plain_tokens_per_s = 0;
  double round_trip_s = 0, verify_s = 0, row_s = 0, step_s = 0;
};

struct RemoteLengthLimits {
  int most = 0;          // tokens that may be drafted
  int plain_tokens = 1;  // of a question without a draft, at most
  int num_active = 1;    // requests that draft here
  bool may_be_plain = true;
  bool costs_steps = true;  // false: what is asked about is there, such as what look-up proposes
  double max_burst_s = 0;   // between two replies, as far as a single token allows; 0: any
};

// What all requests of one node have measured.
class RemoteCosts {
 public:
  explicit RemoteCosts(const RemoteGuess& guess);

  // A pass with one row on the draft KV for each of `num_rows` requests.
  void ObserveStep(double pass_s, int num_rows);
  void ObserveQuestion(const RemoteQuestion& question);
  RemoteLength Choose(const AcceptanceEstimate& acceptance, double prior_mean,
                      const RemoteLengthLimits& limits) const;
  int64_t num_questions() const { return num_questions_; }  // observed so far
  // Of this node at the verifier, on average while these were asked; 0: none was.
  double num_own() const { return own_weight_ > 0 ? own_sum_ / own_weight_ : 0; }

 private:
  int64_t num_questions_ = 0;
  double own_sum_ = 0, own_weight_ = 0;
  double step_s_;        // of one pass, as a request sees it
  double share_s_;       // of it, for one request
  LineFit link_;         // seconds away from both nodes, by tokens that came back
  LineFit verify_;       // seconds at the verifier, by drafted tokens
  double plain_s_ = -1;  // the same without a draft, of one token; < 0: never asked
};

}  // namespace vericache
