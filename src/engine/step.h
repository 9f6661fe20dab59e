// One forward pass for many sequences at different places: prompts, drafts and verifications.
//
// What a pass holds is decided elsewhere (scheduler/step_plan.h); here it is run, and each sequence
// takes its rows. There is no prefill or decode phase: a pass is whatever rows it is given.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/drafter.h"
#include "engine/prompt_job.h"
#include "engine/sequence.h"
#include "engine/verifier.h"
#include "model/forward.h"

namespace vericache {

enum class StepKind : uint8_t {
  kPrompt,  // rows of the prompt
  kDraft,   // one row on the draft KV and one for each proposal: drafted tokens
  kVerify,  // sequence->drafted on the full KV; without any, one plain decode step
};

struct StepItem {
  Sequence* sequence = nullptr;
  StepKind kind = StepKind::kVerify;
  int64_t rows = 1;                     // kPrompt: at most
  PromptJob* prompt = nullptr;          // kPrompt
  absl::Span<const TokenId> proposals;  // kDraft; they outlive the step
  // Out:
  int64_t rows_run = 0;
  int num_drafted = 0;            // kDraft
  std::vector<float> confidence;  // kDraft: the drafter's probability of each token
  int64_t num_emitted = 0;
  int64_t wait_ns = 0;   // of the pass: for K/V from the tier
  int64_t fetched = 0;   // bytes
  int64_t fetch_ns = 0;  // in which they came
};

class StepRunner {
 public:
  StepRunner(const Model* model, Forward* forward, ThreadPool* pool)
      : forward_(forward), drafter_(model, forward), verifier_(model, forward, pool) {}

  // Runs all items in one pass. A sequence that cannot go on fails alone (Sequence::error).
  // REQUIRES: no sequence twice; at most kMaxPassRows rows.
  void Run(absl::Span<StepItem> items, bool with_confidence);

 private:
  Forward* forward_;
  Drafter drafter_;
  Verifier verifier_;
  // Scratch.
  HiddenRows hidden_;
  std::vector<RowGroup> batch_;
  std::vector<DraftRows> drafting_;
  std::vector<Sequence*> verifying_;
};

}  // namespace vericache
