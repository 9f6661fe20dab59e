// What every key received from all queries of a prompt: the heavy hitters of h2o.
//
// SOURCE: arXiv 2306.14048 (H2O), section 4: per head the accumulated attention; summed over the
// heads of a group, since they share their keys. Softmax rows are whole, so this costs about what
// the attention of the prefill costs.
#pragma once

#include <vector>

#include "base/aligned_buffer.h"
#include "kv/selectors/query_votes.h"
#include "kv/selectors/selector.h"

namespace vericache {

// Observes the prefill of a prompt from position 0 over full KV.
//
// Floating-point sums depend on their order: rows are summed in pieces by position, and pieces are
// added in order, so neither the cut of the passes nor the number of threads shows.
class AttentionSums : public ForwardObserver {
 public:
  // num_tokens: of the prompt. kernels and pool outlive *this.
  AttentionSums(const KvShape& shape, int num_heads, int64_t num_tokens, const KernelTable* kernels,
                ThreadPool* pool);
  void OnKeys(const LayerRows& rows, const LayerKeys& keys) override;
  KeyScores Take();

 private:
  struct Scratch {  // of one thread
    AlignedBuffer<float> scaled, scores;
  };
  void AddPiece(const LayerRows& rows, const FullKvView& kv, const HeadQueries& queries,
                int64_t piece, Scratch* scratch, std::vector<float>* sum) const;

  const KvShape shape_;
  const int num_heads_;
  const KernelTable* kernels_;
  ThreadPool* pool_;
  KeyScores sums_;                        // of whole pieces
  std::vector<std::vector<float>> open_;  // [layer * num_kv_heads + kv_head], of the last piece
};

}  // namespace vericache
