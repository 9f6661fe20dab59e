// One round for many sequences: draft on the draft KVs, verify on the full KVs, commit.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "engine/drafter.h"
#include "engine/sequence.h"
#include "engine/verifier.h"
#include "model/forward.h"

namespace vericache {

class RoundRunner {
 public:
  RoundRunner(const Model* model, Forward* forward, ThreadPool* pool)
      : drafter_(model, forward), verifier_(model, forward, pool) {}

  // Each sequence that is not done gains at least one token, or fails. Sequences without a draft
  // KV take one plain decode step.
  void Run(absl::Span<Sequence* const> sequences);

 private:
  struct Start {  // of one sequence's round
    size_t num_rounds, draft_bytes, full_bytes;
  };

  Drafter drafter_;
  Verifier verifier_;
  // Scratch, kept because a steady step allocates nothing.
  std::vector<Sequence*> active_, drafting_;
  std::vector<int> lengths_;   // of drafting_
  std::vector<Start> starts_;  // of active_
};

}  // namespace vericache
