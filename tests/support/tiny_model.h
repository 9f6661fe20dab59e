// Tiny random models for tests, written with gguf/writer.h: any family, shape and weight type.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/tensor_type.h"
#include "gguf/reader.h"
#include "gguf/writer.h"

namespace vericache {

struct TinyModelOptions {
  std::string architecture = "llama";  // or "qwen2" (gets Q, K, V biases)
  int num_layers = 2;
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 32;
  int hidden_size = 256;  // a multiple of the weight type's block
  int intermediate_size = 256;
  int vocab_size = 320;
  int context_length = 8192;
  TensorType type = TensorType::kF32;       // of the matrices
  TensorType down_type = TensorType::kF32;  // of ffn_down; kF32: same as `type`
  uint64_t seed = 1;
  float scale = 1.0f;  // of the output matrix: larger means livelier logits
};

// The file's bytes. Norm weights are near 1, matrices have variance about 1 / cols.
std::string TinyModelBytes(const TinyModelOptions& options);

// The same metadata and tensors, for a file that needs more.
void AddTinyModel(const TinyModelOptions& options, GgufWriter* writer);

// Opens bytes as a file; the bytes live as long as the file.
std::shared_ptr<const GgufFile> OpenBytes(std::string bytes);

// Raw blocks of `type` for n values of roughly `stddev`.
std::string RandomBlocks(TensorType type, int64_t n, float stddev, uint64_t* state);

// The tests' own generator (base/split_mix.h).
uint64_t NextRandom(uint64_t* state);
float NextUniform(uint64_t* state);  // [-1, 1)

}  // namespace vericache
