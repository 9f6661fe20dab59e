// A few timed passes when a service starts (internal to src/api).
#pragma once

#include "absl/status/status.h"
#include "api/engine_impl.h"

namespace vericache {

// Times passes over made-up K/V, so that predictions for the first requests rest on this machine
// and not on guesses (GuessPass()). Learned()->costs is all that it changes; no request sees its
// K/V, which are outside the block pool.
// COST: 0.5 s or two passes, whichever is longer, and meanwhile the K/V of 2,048 tokens, fewer
// where the context or half of the KV budget is smaller. ERRORS: kResourceExhausted.
absl::Status WarmUp(EngineAccess::Impl* impl);

// The same for an engine that has timed nothing yet; what fails is told and does no harm.
void WarmUpOnce(EngineAccess::Impl* impl);

}  // namespace vericache
