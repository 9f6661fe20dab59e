// What queries like those of the prompt are expected to attend to: expected's scores.
//
// Per query head the mean and the covariance of the queries before rope (the first 4 tokens left
// out) stand for the queries to come; rope turns them by the mean rotation of the next positions.
// A key's score is the softmax of its expected logit, mean over the heads of the group, times the
// length of its value. SOURCE: arXiv 2510.00636 (Expected Attention), section 3.
#pragma once

#include <vector>

#include "kv/selectors/selector.h"

namespace vericache {

// Mean of cos and sin over future positions: [rotary_dim / 2] each.
struct MeanRotation {
  std::vector<double> cos, sin;
  bool adjacent = false;  // pairs (2i, 2i + 1); otherwise (i, i + rotary_dim / 2)
};

// Observes the prefill of a prompt from position 0.
// COST: num_layers * num_heads * head_dim^2 floats.
class QueryMoments : public ForwardObserver {
 public:
  QueryMoments(const KvShape& shape, int num_heads, int num_sinks, ThreadPool* pool);
  bool wants_raw_queries() const override { return true; }
  void OnLayer(const LayerRows& rows) override;

  // Scores of all keys of `full`. Sinks get the largest score. ERRORS: those of its tier.
  absl::StatusOr<KeyScores> Scores(const FullKv& full, const MeanRotation& rotation,
                                   const KernelTable& kernels) const;

 private:
  struct Moments {               // of one query head
    std::vector<float> sum;      // [head_dim]
    std::vector<float> product;  // [head_dim][head_dim], of q_i * q_j
  };
  struct Expected {  // mean and covariance after the mean rotation
    std::vector<float> mean, covariance;
  };
  Expected ExpectedOf(const Moments& moments, const MeanRotation& rotation) const;
  std::vector<float> HeadScores(const FullKvView& kv, int layer, int kv_head,
                                const MeanRotation& rotation, const KernelTable& kernels) const;

  const KvShape shape_;
  const int num_heads_, num_sinks_;
  ThreadPool* pool_;
  int64_t count_ = 0;             // queries seen by layer 0
  std::vector<Moments> moments_;  // [layer * num_heads + head]
};

}  // namespace vericache
