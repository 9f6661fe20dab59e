// One answer in the making: its tokens, full KV, draft KV and what decides the next token.
//
// Invariant between calls, once prefilled: full.num_tokens() == tokens.size() - 1. The last token
// has no K/V yet; it is the first row of the next verification.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/types.h"
#include "engine/acceptance.h"
#include "engine/draft_length.h"
#include "engine/draft_vocab.h"
#include "engine/logits_chain.h"
#include "engine/ngram_proposer.h"
#include "engine/query_window.h"
#include "engine/sampler.h"
#include "kv/draft_kv.h"
#include "kv/draft_spec.h"
#include "kv/full_kv.h"
#include "kv/memory_plan.h"
#include "kv/selectors/selector.h"

namespace vericache {

// What one round did, for statistics and traces.
struct RoundStats {
  int drafted = 0;
  int accepted = 0;
  int emitted = 0;
  int64_t draft_ns = 0;  // of the whole pass this sequence took part in
  int64_t verify_ns = 0;
  size_t draft_bytes = 0;  // at the start of the round
  size_t full_bytes = 0;
  const char* mode = "";  // DraftModeName(), where a scheduler chose it
};

// How the model is asked to repeat its prompt, for kvzip: instruction, start of the answer.
struct RepeatPrompt {
  std::vector<TokenId> first;   // "repeat the context": before the answer with the first chunk
  std::vector<TokenId> next;    // "repeat the part that starts with": for later chunks
  std::vector<TokenId> answer;  // end of the user's turn and head of the assistant's
};

struct Sequence {
  std::vector<TokenId> tokens;
  int64_t num_prompt = 0;  // tokens[0, num_prompt) are the prompt
  int64_t max_tokens = 0;  // most tokens to emit
  FullKv full;
  DraftSpec spec;
  std::optional<DraftKv> draft;        // set by prefill unless spec is off
  std::optional<QueryWindow> queries;  // set by prefill if spec.reselects()
  // What selectors need besides the K/V and the newest queries (engine/scorers.h).
  std::shared_ptr<const KeyScores> scores;   // of spec.score_key(); set by prefill if needed
  std::shared_ptr<const KeptSet> floor;      // follows from scores: verify with a floor
  std::shared_ptr<const KeptSet> kept_file;  // set by the owner: kept
  RepeatPrompt repeat_prompt;                // set by the owner: kvzip
  std::optional<MemoryPlan> memory;          // set by the owner under a KV budget
  Sampler sampler;
  DraftLength draft_length = DraftLength::Auto();
  std::function<bool(TokenId)> ends_generation;  // EOS and its kin
  LogitsChain chain;                             // over emitted tokens
  FinishReason finish = FinishReason::kNone;
  absl::Status error;              // why finish is kError
  std::vector<RoundStats> rounds;  // prefill's own token is not a round

  int64_t num_unchosen = 0;  // tokens since the draft KV was last chosen anew

  DraftVocab draft_vocab;  // what the drafter chooses from

  // The drafter's proposal of the current round (empty between rounds). With a prompt: what was
  // drafted while its K/V were on their way (engine/prompt_job.h).
  std::vector<DraftToken> drafted;
  bool proposed = false;  // by something else, without the draft KV
  // What else proposes tokens: look-up, and a smaller model with K/V of its own over the same
  // tokens (engine/model_proposer.h). Made when first asked.
  std::optional<NgramProposer> ngrams;
  std::unique_ptr<Sequence> small;
  int64_t small_bytes = 0;  // of its K/V at most; 0: no model may propose

  // Called once for each emitted token, in order, with the full KV's logits that chose it. True
  // ends the answer with this token (a stop string): nothing behind it is emitted. May be empty.
  std::function<bool(TokenId, const float* logits)> on_verified;
  // Called for each row of the prompt but the last with the logits that would choose token pos + 1;
  // once more for a row that is computed again. An error fails the sequence. May be empty.
  // REQUIRES: the sequence begins with nothing computed.
  std::function<absl::Status(int64_t pos, const float* logits)> on_prompt_row;
  // Called after each drafted token, for live views. May be empty.
  std::function<void(const Sequence&)> on_drafted;
  // Test hook: replaces the drafter's choice; gets the choice and its position.
  std::function<DraftToken(DraftToken, int64_t pos)> adversary;
  // Test hook: changes what was proposed.
  std::function<void(const Sequence&, int64_t max_tokens, std::vector<TokenId>*)> heckler;

  Sequence(FullKv full_kv, Sampler token_sampler)
      : full(std::move(full_kv)), sampler(std::move(token_sampler)) {}

  int64_t num_emitted() const { return static_cast<int64_t>(tokens.size()) - num_prompt; }
  bool done() const { return finish != FinishReason::kNone; }
  void Fail(absl::Status status) {
    error = std::move(status);
    finish = FinishReason::kError;
  }
};

// What a row with a NaN or an infinity turns into when it would be emitted.
absl::Status NonFiniteLogits(int64_t pos);

}  // namespace vericache
