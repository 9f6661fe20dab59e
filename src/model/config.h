// What a model file says about its shape: one struct that drives the one forward pass.
//
// Adding a family of the llama shape (pre-norm, rope, gated feed-forward) means a line in the table
// of config.cc; anything this build cannot compute exactly is refused by name, never guessed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gguf/reader.h"
#include "kernels/kv_view.h"

namespace vericache {

// Which pairs of a head's dimensions rope turns.
enum class RopePairs {
  kAdjacent,  // (2i, 2i + 1): llama files, whose Q and K rows the converter permuted
  kNeox,      // (i, i + rotary_dim / 2): qwen2
};

// How rope reaches beyond the trained context (model/rope_scaling.h).
enum class RopeScaling { kNone, kLinear, kYarn };

struct ModelConfig {
  std::string architecture;  // "llama", "qwen2"
  std::string name;          // general.name, or "" if the file has none
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t context_length = 0;  // as long as the rope scaling allows
  float rms_eps = 0;
  RopePairs rope_pairs = RopePairs::kAdjacent;
  double rope_theta = 10000.0;
  int rotary_dim = 0;
  RopeScaling rope_scaling = RopeScaling::kNone;
  double rope_scale = 1.0;        // positions are divided by this: all (linear), some (YaRN)
  int64_t orig_context = 0;       // trained for without scaling; 0: not known
  double yarn_attn_factor = 0;    // of cos and sin; 0: 0.1 ln(rope_scale) + 1
  double rope_attn_factor = 1.0;  // YaRN: of cos and sin, beside that
  double yarn_beta_fast = 32.0;   // turns within orig_context from which dimensions stay as trained
  double yarn_beta_slow = 1.0;    // turns below which they are scaled wholly

  int heads_per_kv_head() const { return num_heads / num_kv_heads; }
  KvShape kv_shape() const { return {num_layers, num_kv_heads, head_dim}; }
};

// ERRORS: kUnimplemented: an architecture, rope scaling or feature we do not compute, by name;
//         kInvalidArgument: a missing, wrong or senseless key, by name.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

}  // namespace vericache
