// How well draft KVs do on a prompt, without waiting for the answer to be made once for each.
//
// The answer is decoded once on the full KV. A replay then tells the rounds that a spec would have
// had: the same run lengths, one by one, as Engine::Generate() with that spec, at prefill speed.
//
//   auto study = vericache::PromptStudy::Create(engine.get(), request, &document, options);
//   auto replay = study->Replay("verify:0.25+int4", /*draft_len=*/64);
//   ... replay->run_lengths, replay->mean_kl ...
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "vericache/engine.h"

namespace vericache {

struct StudyOptions {
  std::vector<std::string> specs;  // those to come: the queries that they want are recorded
  // Prompt tokens done and in all, whatever computes them; false cancels.
  std::function<bool(int64_t done, int64_t total)> on_prefill;
  std::function<bool()> keep_going;  // asked between passes; false ends with kCancelled
};

// What a spec would have done along an answer.
struct DraftReplayReport {
  std::vector<int> run_lengths;  // tokens emitted by each round, in order
  int64_t num_compared = 0;      // drafted tokens up to and including a round's first mismatch
  double agreement = 1;          // share of these that equal the answer's
  double mean_kl = 0;            // mean KL(full KV || draft KV) of these, in nats
  double kept_fraction = 1;      // mean over rounds: draft bytes / full bytes
  double read_fraction = 1;      // the same for the bytes that one draft step reads
};

// What look-up proposes behind `prompt` and the answer's tokens before this one.
struct LookupHit {
  int proposed = 0;
  int accepted = 0;  // of them, those that begin the rest of the answer
};
// One entry for each token of `answer`; at most draft_len proposals each. An end of three tokens is
// looked up, or of two, or one (engine/ngram_proposer.h).
std::vector<LookupHit> NgramHits(absl::Span<const int32_t> prompt, absl::Span<const int32_t> answer,
                                 int draft_len);

// Where a model's greedy choice, after `prompt` and the answer's tokens before it, is the answer's
// next token: one entry for each token of `answer`. One pass; a prefix that `start` shares with the
// prompt is not computed again. What a smaller model would draft right for a larger one.
// ERRORS: those of Engine::Generate (a token id that this model lacks among them).
absl::StatusOr<std::vector<bool>> NextTokenHits(Engine* engine, absl::Span<const int32_t> prompt,
                                                absl::Span<const int32_t> answer,
                                                const Session* start);

class PromptStudy {
 public:
  // Decodes the answer of `request` (its draft is not used) on the full KV and records what replays
  // need. `start`, if not null, is not changed; a prefix that it shares with the prompt is not
  // computed again.
  // COST: queries of the answer (num_layers * num_heads * head_dim floats a token) and its logits
  // (vocab_size floats a token, 512 tokens at most).
  // ERRORS: those of Engine::Generate.
  static absl::StatusOr<PromptStudy> Create(Engine* engine, const Request& request,
                                            const Session* start, const StudyOptions& options);
  ~PromptStudy();
  PromptStudy(PromptStudy&&) noexcept;
  PromptStudy& operator=(PromptStudy&&) noexcept;

  // The answer, and the wall time of its decoding (all tokens but the first).
  const Completion& full() const;
  double full_decode_s() const;

  // draft_len: most tokens drafted a round, 1 to 256.
  absl::StatusOr<DraftReplayReport> Replay(const std::string& spec, int draft_len);
  // Real decoding with the spec, from the same prefill. ERRORS: those of Engine.
  struct Timed {
    Completion completion;
    double decode_s = 0;  // of all tokens but the first
  };
  absl::StatusOr<Timed> Verified(const std::string& spec, int draft_len);
  absl::StatusOr<Timed> Unverified(const std::string& spec);

 private:
  struct Impl;
  explicit PromptStudy(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace vericache
