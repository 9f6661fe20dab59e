// The rounds that a draft KV would have had along a known answer, at prefill speed.
//
// A round's outcome depends on the answer's tokens, its exact K/V and queries, and the draft KV,
// all of which are known once the answer is. So a draft is checked many rows at a time instead of
// token by token, and no verification runs at all. The run lengths are those of real rounds, one by
// one (tests/exactness/replay_test.cc), but for `verify`, which really chooses in a round's own
// pass, where wrongly drafted rows have a vote. What takes minutes a compressor takes seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/prefill.h"
#include "engine/sequence.h"
#include "model/forward.h"

namespace vericache {

// An answer of full-KV decoding and what it left behind.
struct RecordedAnswer {
  std::vector<TokenId> tokens;  // prompt and answer
  int64_t num_prompt = 0;
  int64_t max_tokens = 0;  // that the answer was allowed
  FullKv full;             // rows of all tokens but the last
  QueryWindow queries;     // of the answer and the end of the prompt
  std::vector<float>
      logits;  // [num_logits][vocab_size], rows that chose tokens from num_prompt + 1

  RecordedAnswer(FullKv full_kv, QueryWindow window)
      : full(std::move(full_kv)), queries(std::move(window)) {}
};

struct ReplayedRounds {
  std::vector<int> run_lengths;  // emitted by each round
  int64_t num_compared = 0;      // drafted tokens up to and including a round's first mismatch
  int64_t num_agreed = 0;        // of these, those that equal the answer's
  int64_t num_kl = 0;            // compared tokens whose full-KV logits were recorded
  double kl_sum = 0;             // KL(full KV || draft KV) over these, in nats
  double kept_sum = 0;           // over rounds: draft bytes / full bytes at its start
  double read_sum = 0;           // over rounds: bytes a draft step reads / full bytes
};

class DraftReplay {
 public:
  DraftReplay(const Model* model, Forward* forward, ThreadPool* pool)
      : model_(model), forward_(forward), pool_(pool) {}

  // Most logits rows of an answer that a record keeps (vocab_size floats each).
  static constexpr int64_t kMaxLogits = 512;
  // Computes the record of `tokens`, whose prompt is in sequence.full: one pass over the answer and
  // the last `window` tokens of the prompt. ERRORS: those of Prefill.
  absl::StatusOr<RecordedAnswer> Record(const Sequence& sequence, std::vector<TokenId> tokens,
                                        int window, const PrefillOptions& options);

  // Rounds of at most draft_len drafted tokens. `setup` gives spec, scores and sampler; its draft
  // KV is made here. `keep_going` is asked between passes.
  // ERRORS: kCancelled.
  absl::StatusOr<ReplayedRounds> Run(const RecordedAnswer& answer, int draft_len, Sequence* setup,
                                     const std::function<bool()>& keep_going);

 private:
  int DraftAlong(const RecordedAnswer& answer, int64_t pending, int64_t max_rows, Sequence* setup,
                 ReplayedRounds* rounds);
  absl::Status Commit(const RecordedAnswer& answer, int64_t begin, int64_t end, Sequence* setup);
  double KlOf(const float* full, const float* draft);

  const Model* model_;
  Forward* forward_;
  ThreadPool* pool_;
  HiddenRows hidden_;
  std::vector<float> logits_, exps_;
};

}  // namespace vericache
