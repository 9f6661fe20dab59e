// What passes should take before any was measured.
#include <algorithm>

#include "api/request_loop.h"

namespace vericache {

// What a pass should take on a machine of this class: two cores read 20 GB a second and give 150
// GFLOP/s of attention and 250 G multiply-adds of int8 codes (../shared measurements, rounded).
PassGuess GuessPass(const Model& model, int num_threads) {
  constexpr double kBytesPerSecond = 20e9, kThreadFlops = 75e9, kThreadMacs = 125e9;
  constexpr double kWeightBytes = 0.75;  // of one weight, in the usual formats
  const ModelConfig& c = model.config;
  const double bytes = static_cast<double>(model.weights.packed_bytes);
  const double weights = bytes / kWeightBytes;
  const double head = static_cast<double>(c.vocab_size) * static_cast<double>(c.hidden_size);
  PassGuess guess;
  guess.output_s = head * kWeightBytes / kBytesPerSecond;
  guess.pass_s = std::max(0.2 * bytes, bytes - head * kWeightBytes) / kBytesPerSecond;
  guess.row_s = std::max(0.0, weights - head) / (kThreadMacs * num_threads);
  guess.logit_row_s = head / (kThreadMacs * num_threads);
  guess.attention_s = 4.0 * c.num_heads * c.head_dim * c.num_layers / (kThreadFlops * num_threads);
  const double read_s = static_cast<double>(c.kv_shape().bytes_per_token()) / kBytesPerSecond;
  guess.full_token_s = std::max(0.0, read_s - guess.attention_s);
  guess.draft_byte_s = 2 / kBytesPerSecond;
  // Votes are about as many bytes as K/V, and are written and read.
  guess.chosen_token_s = 2 * read_s;
  return guess;
}

std::shared_ptr<Experience> NewExperience(const Model& model, int num_threads,
                                          double link_bytes_per_s) {
  return std::make_shared<Experience>(
      GuessPass(model, num_threads),
      link_bytes_per_s > 0 ? link_bytes_per_s : Limits().link_bytes_per_s);
}

}  // namespace vericache
