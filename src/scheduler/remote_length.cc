#include "scheduler/remote_length.h"

#include <algorithm>
#include <cmath>

namespace vericache {
namespace {

constexpr double kDecay = 0.95;  // of what was measured before, with each measurement
// How strongly a fit holds on to its guessed slope: as much as one at x = 3.
constexpr double kRidge = 8;
// A draft is preferred unless plain decoding is faster by this: drafting shows what it is worth.
constexpr double kPlainGain = 1.1;

bool IsTime(double s) { return std::isfinite(s) && s >= 0; }

}  // namespace

LineFit::LineFit(double a, double b, double slope_share)
    : a_(a), b_(b), slope_share_(slope_share) {}

void LineFit::Observe(double x, double y) {
  n_ = n_ * kDecay + 1;
  x_ = x_ * kDecay + x;
  xx_ = xx_ * kDecay + x * x;
  y_ = y_ * kDecay + y;
  xy_ = xy_ * kDecay + x * y;
  // Least squares with (b - share * a)^2 * kRidge added.
  const double k = slope_share_;
  const double aa = n_ + kRidge * k * k, ab = x_ - kRidge * k, bb = xx_ + kRidge;
  const double det = aa * bb - ab * ab;
  if (!(det > 1e-12)) {
    a_ = y_ / n_;
    b_ = 0;
    return;
  }
  a_ = (y_ * bb - xy_ * ab) / det;
  b_ = (xy_ * aa - y_ * ab) / det;
  if (a_ < 0) {
    a_ = 0;
    b_ = xx_ > 0 ? xy_ / xx_ : 0;
  } else if (b_ < 0) {
    b_ = 0;
    a_ = y_ / n_;
  }
}

RemoteCosts::RemoteCosts(const RemoteGuess& guess)
    : step_s_(guess.draft_step_s),
      share_s_(guess.draft_step_s),
      link_(guess.round_trip_s, 0, 0),
      verify_(guess.verify_s, guess.verify_s * guess.row_share, guess.row_share) {}

void RemoteCosts::ObserveStep(double pass_s, int num_rows) {
  if (!IsTime(pass_s) || num_rows < 1) return;
  constexpr double kNew = 0.1;
  step_s_ += kNew * (pass_s - step_s_);
  share_s_ += kNew * (pass_s / num_rows - share_s_);
}

void RemoteCosts::ObserveQuestion(const RemoteQuestion& q) {
  if (!IsTime(q.seconds) || q.emitted < 1) return;
  ++num_questions_;
  own_sum_ = own_sum_ * kDecay + q.num_own;
  own_weight_ = own_weight_ * kDecay + 1;
  // The verifier's word on its own time is worth what it can be.
  const double busy = IsTime(q.busy_s) ? std::min(q.busy_s, q.seconds) : 0;
  link_.Observe(q.emitted, q.seconds - busy);
  if (q.drafted > 0) {
    verify_.Observe(q.drafted, busy);
  } else {
    const double token_s = busy / q.emitted;
    plain_s_ = plain_s_ < 0 ? token_s : plain_s_ + 0.3 * (token_s - plain_s_);
  }
}

RemoteLength RemoteCosts::Choose(const AcceptanceEstimate& acceptance, double prior_mean,
                                 const RemoteLengthLimits& limits) const {
  RemoteLength best;
  best.agreement = acceptance.Mean(prior_mean);
  best.round_trip_s = link_.a();
  best.verify_s = plain_s_ >= 0 ? plain_s_ : verify_.a();
  best.row_s = verify_.b();
  best.step_s = step_s_;
  const double burst_s = limits.max_burst_s > 0 ? limits.max_burst_s : 1e18;
  const double plain_token_s = std::max(1e-9, link_.b() + best.verify_s);
  best.plain_tokens = static_cast<int>(std::clamp<double>((burst_s - link_.a()) / plain_token_s, 1,
                                                          std::max(1, limits.plain_tokens)));
  const double plain = best.plain_tokens;
  best.plain_tokens_per_s = plain / (link_.a() + plain * plain_token_s);
  const double step_s = limits.costs_steps ? step_s_ : 0;
  const double share_s = limits.costs_steps ? share_s_ : 0;
  double survival = 1, emitted = 1;
  for (int x = 1; x <= limits.most; ++x) {
    survival *= acceptance.AtPosition(x - 1, prior_mean);
    emitted += survival;
    const double alone =
        x * step_s + link_.a() + emitted * link_.b() + verify_.a() + x * verify_.b();
    if (x > 1 && alone > burst_s) break;
    const double shared = std::max(1, limits.num_active) * x * share_s;
    const double rate = emitted / std::max(1e-9, std::max(alone, shared));
    if (rate <= best.tokens_per_s) continue;
    best.tokens_per_s = rate;
    best.expected_emitted = emitted;
    best.draft_len = x;
  }
  if (best.draft_len > 0 &&
      (!limits.may_be_plain || best.plain_tokens_per_s < kPlainGain * best.tokens_per_s))
    return best;
  best.draft_len = 0;
  best.expected_emitted = plain;
  best.tokens_per_s = best.plain_tokens_per_s;
  return best;
}

}  // namespace vericache
