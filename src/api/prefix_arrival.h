// How the prefix of one request gets here: waits for its load, and drafts meanwhile where that
// pays.
//
// Drafting first (issue 8, "fallback without a verifier"): the draft KV arrives before the full
// blocks; the prompt's rest is computed on it provisionally and tokens are drafted until the blocks
// are here. Then one pass computes the rest exactly and checks the draft (engine/prompt_job.h).
// Whatever does not arrive is computed. The answer's bits do not depend on any of it.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "api/engine_impl.h"
#include "engine/drafter.h"
#include "engine/prefix_loader.h"
#include "scheduler/prefix_plan.h"
#include "vericache/stats.h"

namespace vericache {

class PrefixArrival {
 public:
  // All outlive *this. The sequence has nothing computed but what a session lends.
  PrefixArrival(EngineAccess::Impl* impl, const Request& request, const Callbacks& callbacks,
                Sequence* sequence, PrefixArrivalStats* stats)
      : impl_(impl),
        request_(request),
        callbacks_(callbacks),
        s_(sequence),
        stats_(stats),
        drafter_(impl->model.get(), impl->forward.get()) {}

  // The sequence has its prefix, and perhaps drafted tokens. ERRORS: kCancelled, by
  // Callbacks::on_prefill; what is missing for other reasons is computed later.
  absl::Status Run();

 private:
  PrefixChoice Choose(const PrefixFacts& facts, const CostModel& costs);
  absl::Status Await(PrefixLoad* load);
  bool MayDraft() const;
  void StartDraft(DraftKv draft);
  void DraftOne();

  EngineAccess::Impl* impl_;
  const Request& request_;
  const Callbacks& callbacks_;
  Sequence* s_;
  PrefixArrivalStats* stats_;
  Drafter drafter_;
  double start_s_ = 0;
  double agreement_ = 0;
  int most_drafted_ = 0;  // as the plan says; written before the draft KV is handed over
  bool has_draft_ = false, scores_prompt_ = false;
  bool drafting_ = false;
};

}  // namespace vericache
