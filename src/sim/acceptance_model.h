// Whether drafted tokens agree with the full KV, by chance or from a trace.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/step_plan.h"
#include "sim/sim_random.h"

namespace vericache {

struct AcceptanceModel {
  // Agreement by mode, for even and odd stretches of the text (they differ where a text changes
  // its nature: prose, then code copied from the prompt).
  std::array<double, kNumDraftModes> agreement{}, other_agreement{};
  int64_t stretch_tokens = 0;     // 0: one nature throughout
  double position_decay = 1;      // agreement at draft position i is p * decay^i
  double confidence_skill = 0.5;  // 0: confidence says nothing; 1: it knows
  double proposal_chance = 1;     // that a look-up finds something to propose
  std::vector<int> trace_runs;    // if not empty: agreeing run lengths, in turn, for every mode

  double AgreementAt(DraftMode mode, int64_t text_pos) const;
};

// One request's draws. Which drafted tokens agree is decided when they are drafted.
class AcceptanceDraw {
 public:
  AcceptanceDraw(const AcceptanceModel& model, SimRandom random) : model_(model), random_(random) {}

  struct Drafted {
    bool agrees = false;
    float confidence = -1;
  };
  // The token at `draft_pos` of a draft that starts at `text_pos`.
  Drafted Draw(DraftMode mode, int64_t text_pos, int draft_pos);
  bool FindsProposal() { return random_.Chance(model_.proposal_chance); }

 private:
  AcceptanceModel model_;
  SimRandom random_;
};

}  // namespace vericache
