// What a completion tells of its drafts.
#pragma once

#include "engine/sequence.h"
#include "scheduler/draft_controller.h"
#include "vericache/stats.h"

namespace vericache {

// The newest choice; nothing changes where there is none.
void DescribeChoice(const DraftChoice* choice, DraftChoiceStats* stats);
// What a request had to wait for before a loop had it. What has not been is left at 0.
void AddWait(double seconds, RequestTimes* times);
// Rounds by mode. Once, at the end.
void CountRounds(const Sequence& sequence, DraftChoiceStats* stats);

}  // namespace vericache
