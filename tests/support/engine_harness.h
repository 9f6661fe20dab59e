// Runs the engine under every knob that must not change its output, for tests that compare bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/prefill.h"
#include "engine/round.h"
#include "engine/sequence.h"
#include "model/forward.h"

namespace vericache {

// How an answer is computed; none of this may show in it.
struct RunKnobs {
  std::string draft = "off";
  int draft_len = 0;  // 0: auto
  int64_t chunk = 512;
  std::function<DraftToken(DraftToken, int64_t pos)> adversary;
  std::shared_ptr<KvTier> tier;  // full KV beyond `hot_blocks` is spilled; null: all in RAM
  int64_t hot_blocks = 0;
};

// What the answer is.
struct RunTask {
  std::vector<TokenId> prompt;
  int64_t max_tokens = 32;
  SamplingParams sampling;
  TokenId eos = -1;  // ends the generation; -1: none
};

struct RunResult {
  std::vector<TokenId> tokens;
  std::string hash;
  FinishReason finish = FinishReason::kNone;
  int64_t rounds = 0, drafted = 0, accepted = 0;
  int64_t bytes_read = 0;  // from the tier
  absl::Status error;

  bool operator==(const RunResult& other) const {
    return tokens == other.tokens && hash == other.hash && finish == other.finish;
  }
};

class Harness {
 public:
  // isa: a table's name ("scalar", "avx2"); "" is the fastest.
  Harness(std::shared_ptr<const GgufFile> file, const std::string& isa, int num_threads);

  RunResult Run(const RunTask& task, const RunKnobs& knobs);
  // A tier in the folder of temporary files. staging_layers: of a sequence of max_tokens.
  std::shared_ptr<KvTier> MakeTier(int64_t max_tokens, double staging_layers,
                                   ReadBackend backend = ReadBackend::kAuto,
                                   std::shared_ptr<FaultPlan> faults = nullptr) const;
  // All tasks in shared rounds, each with its own knobs.
  std::vector<RunResult> RunBatch(const std::vector<RunTask>& tasks,
                                  const std::vector<RunKnobs>& knobs);
  // Logits of all positions, [tokens.size()][vocab_size], by passes of `chunk` rows.
  std::vector<float> AllLogits(const std::vector<TokenId>& tokens, int64_t chunk);

  const Model& model() const { return *model_; }
  Forward& forward() { return *forward_; }
  ThreadPool& pool() { return pool_; }
  std::unique_ptr<Sequence> MakeSequence(const RunTask& task, const RunKnobs& knobs);

 private:
  ThreadPool pool_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Forward> forward_;
};

// `n` pseudo-random token ids below `vocab_size`, with repeats that make drafting worthwhile.
std::vector<TokenId> RandomPrompt(int64_t n, int64_t vocab_size, uint64_t seed);

}  // namespace vericache
