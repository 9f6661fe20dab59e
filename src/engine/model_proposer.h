// A small model proposes what a larger one of the same tokenizer will say.
//
// Its part of a request is a Sequence of its own (Sequence::small): K/V over the same tokens and
// the same sampling noise. It trusts nothing: before it proposes it goes back to the tokens that
// are known now and computes those it lacks. Its tokens are drafts like any other.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/prefill.h"
#include "engine/sequence.h"
#include "engine/verifier.h"
#include "model/forward.h"

namespace vericache {

struct ModelProposal {
  Sequence* target = nullptr;  // proposes behind its tokens and drafted
  int64_t max_tokens = 0;
  std::vector<TokenId>* proposal = nullptr;  // out; empty if the small model cannot
};

class ModelProposer {
 public:
  // num_ids: ids of the tokenizer. Both pointers outlive *this.
  ModelProposer(const Model* model, int64_t num_ids, ThreadPool* pool);

  // K/V of a sequence of `num_tokens`, drafts included.
  int64_t BytesFor(int64_t num_tokens) const;

  // Computes its K/V of the first `num_tokens` tokens of *target, so that later proposals need not.
  // ERRORS: kResourceExhausted: no memory.
  absl::Status CatchUp(Sequence* target, int64_t num_tokens);

  // All at once, a pass for each further token of the longest.
  void Propose(absl::Span<const ModelProposal> jobs);

 private:
  // Leaves what agrees with `tokens` and computes the K/V of all but the newest `num_left`.
  absl::Status GoTo(Sequence* target, absl::Span<const TokenId> tokens, int64_t num_left);

  const Model* model_;
  const int64_t num_ids_;
  Forward forward_;
  Prefill prefill_;
  Verifier verifier_;
};

}  // namespace vericache
