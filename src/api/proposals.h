// Gets the tokens that a step wants proposed: by look-up, or by the small model for all requests
// in shared passes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model_proposer.h"
#include "engine/sequence.h"
#include "scheduler/step_plan.h"

namespace vericache {

constexpr uint32_t kNgramModes = ModeBit(DraftMode::kNgram) | ModeBit(DraftMode::kNgramDraftKv);
constexpr uint32_t kModelModes =
    ModeBit(DraftMode::kDraftModel) | ModeBit(DraftMode::kModelDraftKv);
constexpr uint32_t kDraftKvModes = ModeBit(DraftMode::kDraftKv) |
                                   ModeBit(DraftMode::kNgramDraftKv) |
                                   ModeBit(DraftMode::kModelDraftKv);

// The modes that Request::propose (include/vericache/options.h) allows.
// auto_len: no draft length is given. ERRORS: kInvalidArgument: none of its words; "model" where
// there is none.
absl::StatusOr<uint32_t> ModesOf(const std::string& propose, bool with_draft_kv, bool auto_len,
                                 bool has_model);

struct ProposalWish {
  Sequence* sequence = nullptr;
  DraftMode mode = DraftMode::kNgram;
  int64_t max_tokens = 0;
  // Out: ids within the vocabulary; ends with the first one that ends the generation.
  std::vector<TokenId>* proposal = nullptr;
  double seconds = 0;  // its share of the time it took
};

// model: may be null where no wish is for it.
void MakeProposals(absl::Span<ProposalWish> wishes, int64_t vocab_size, ModelProposer* model);

}  // namespace vericache
