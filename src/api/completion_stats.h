// What a completion tells of its drafts.
#pragma once

#include "engine/sequence.h"
#include "scheduler/draft_controller.h"
#include "vericache/stats.h"

namespace vericache {

// The newest choice; nothing changes where there is none.
void DescribeChoice(const DraftChoice* choice, DraftChoiceStats* stats);
// Rounds by mode. Once, at the end.
void CountRounds(const Sequence& sequence, DraftChoiceStats* stats);

}  // namespace vericache
