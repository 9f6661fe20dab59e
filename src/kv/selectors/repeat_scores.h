// What a repetition of the prompt attends to: kvzip's scores.
//
// The model is asked to repeat the prompt, a chunk at a time, over the prompt's full KV. The score
// of a key of that chunk is the largest attention that any query of the repetition, in any head of
// the group, gives it, where softmax runs over the first 4 keys, the chunk's keys and the
// repetition's own. No question is needed, so scores suit any.
// SOURCE: arXiv 2505.23416 (KVzip), section 3.2.
#pragma once

#include <vector>

#include "kv/selectors/selector.h"

namespace vericache {

// Observes the repetitions' passes over full KV, behind `num_tokens` positions of the prompt.
class RepeatScores : public ForwardObserver {
 public:
  // kernels and pool outlive *this.
  RepeatScores(const KvShape& shape, int num_heads, int64_t num_tokens, const KernelTable* kernels,
               ThreadPool* pool);
  // The next passes repeat positions [begin, end). REQUIRES: begin is a multiple of 16.
  void StartChunk(int64_t begin, int64_t end);
  void OnKeys(const LayerRows& rows, const LayerKeys& keys) override;
  KeyScores Take() { return std::move(scores_); }

 private:
  const KvShape shape_;
  const int num_heads_;
  const int64_t num_tokens_;
  const KernelTable* kernels_;
  ThreadPool* pool_;
  int64_t begin_ = 0, end_ = 0;  // of the chunk
  KeyScores scores_;
};

}  // namespace vericache
