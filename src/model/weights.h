// The weights of a model, repacked once for the chosen kernels.
//
// Matrices live in one allocation of ours; the token embedding stays in the mapped file, of which
// only looked-up rows are touched. Immutable after loading.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/thread_pool.h"
#include "gguf/reader.h"
#include "kernels/kernels.h"
#include "model/config.h"

namespace vericache {

struct LayerWeights {
  const float* attn_norm = nullptr;  // [hidden_size]
  PackedMatrix q, k, v;              // [heads * head_dim][hidden_size]
  const float* q_bias = nullptr;     // [num_heads * head_dim], or null
  const float* k_bias = nullptr;     // [num_kv_heads * head_dim], or null
  const float* v_bias = nullptr;
  PackedMatrix o;                 // [hidden_size][num_heads * head_dim]
  const float* o_bias = nullptr;  // [hidden_size], or null
  const float* ffn_norm = nullptr;
  PackedMatrix gate, up;  // [intermediate_size][hidden_size]
  PackedMatrix down;      // [hidden_size][intermediate_size]
};

struct Weights {
  std::vector<LayerWeights> layers;
  const float* output_norm = nullptr;  // [hidden_size]
  PackedMatrix output;                 // [vocab_size][hidden_size]
  TensorType embedding_type = TensorType::kF32;
  const uint8_t* embedding = nullptr;  // [vocab_size] rows, in the mapped file
  size_t embedding_row_bytes = 0;
  std::vector<float> rope_factors;  // [rotary_dim / 2] frequency divisors, or empty
  size_t packed_bytes = 0;          // all matrices

  std::shared_ptr<const void> storage;  // keeps the pointers above alive
};

// done / total in bytes, called from the loading thread.
using LoadProgress = std::function<void(uint64_t done, uint64_t total)>;

// REQUIRES: `file` outlives the result. ERRORS, by name: kInvalidArgument: a tensor is missing or
// has another shape; kUnimplemented: one the architecture does not know; kResourceExhausted: no
// memory.
absl::StatusOr<Weights> LoadWeights(const GgufFile& file, const ModelConfig& config,
                                    const KernelTable& kernels, ThreadPool* pool,
                                    const LoadProgress& progress);

}  // namespace vericache
