#include "sim/acceptance_model.h"

#include <algorithm>
#include <cmath>

namespace vericache {

double AcceptanceModel::AgreementAt(DraftMode mode, int64_t text_pos) const {
  const bool other = stretch_tokens > 0 && (text_pos / stretch_tokens) % 2 == 1;
  return (other ? other_agreement : agreement)[static_cast<int>(mode)];
}

AcceptanceDraw::Drafted AcceptanceDraw::Draw(DraftMode mode, int64_t text_pos, int draft_pos) {
  Drafted drafted;
  if (!model_.trace_runs.empty()) {
    // The trace marks text positions at which a draft breaks off: a run of n, then a mismatch.
    int64_t total = 0;
    for (const int run : model_.trace_runs) total += run + 1;
    int64_t at = (text_pos + draft_pos) % total;
    size_t i = 0;
    while (at > model_.trace_runs[i]) at -= model_.trace_runs[i++] + 1;
    drafted.agrees = at < model_.trace_runs[i];
  } else {
    const double p =
        model_.AgreementAt(mode, text_pos + draft_pos) * std::pow(model_.position_decay, draft_pos);
    drafted.agrees = random_.Chance(p);
  }
  const double told = drafted.agrees ? random_.Between(0.5, 1.0) : random_.Between(0.0, 0.7);
  const double chance = random_.Between(0.3, 1.0);
  drafted.confidence =
      static_cast<float>(model_.confidence_skill * told + (1 - model_.confidence_skill) * chance);
  return drafted;
}

}  // namespace vericache
