// What callers get back.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vericache/options.h"

namespace vericache {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // prompt tokens whose K/V a session already had
};

struct RoundRecord {
  int drafted = 0;
  int accepted = 0;
  int emitted = 0;
  int64_t draft_ns = 0;
  int64_t verify_ns = 0;
  uint64_t draft_bytes = 0;
  uint64_t full_bytes = 0;
};

struct CompletionStats {
  int64_t rounds = 0;
  int64_t drafted = 0;
  int64_t accepted = 0;
  double mean_run_length = 0;  // tokens emitted by rounds / rounds; 1 with draft off
  double kept_fraction = 0;    // mean over rounds of draft bytes / full bytes; 1 with draft off
  uint64_t draft_bytes = 0;    // at the end
  uint64_t full_bytes = 0;
  double prefill_s = 0;
  double draft_s = 0;
  double verify_s = 0;
  std::vector<RoundRecord> records;
};

// What a third party needs to compute an answer again.
struct Receipt {
  std::string contract;
  std::string model_name;  // file name without folder
  std::string model_path;
  std::string model_sha256;
  std::vector<int32_t> prompt_token_ids;
  std::string prompt_hash;  // hex SHA-256 of the ids as little-endian int32
  std::vector<int32_t> token_ids;
  SamplingOptions sampling;
  std::string logits_hash;
};

struct Completion {
  std::string text;
  std::vector<int32_t> token_ids;  // emitted, an end-of-generation token included
  std::string finish_reason;       // "stop", "length", "cancelled"
  Usage usage;
  std::string logits_hash;
  CompletionStats stats;
  std::vector<int32_t> prompt_token_ids;
};

// Live view of one sequence within a round.
struct RoundView {
  std::vector<int32_t> drafted;  // unverified, so far
  bool verified = false;         // false: still drafting; true: the round has ended, with
  std::vector<int32_t> emitted;  // what it emitted and
  int num_accepted = 0;          // how many of the drafted tokens held
};

struct AuditReport {
  bool ok = false;
  int64_t num_tokens = 0;
  int64_t first_mismatch = -1;               // index of the first token that differs, or -1
  std::string expected_token, actual_token;  // text of it
  std::string expected_hash, actual_hash;
  double seconds = 0;
};

struct PerplexityReport {
  double perplexity = 0;
  double mean_nll = 0;
  int64_t num_tokens = 0;  // tokens of the text
  int64_t num_scored = 0;
  int64_t num_windows = 0;
};

struct TensorInfo {
  std::string name, type;
  std::vector<int64_t> dims;
  uint64_t num_bytes = 0;
};

struct ModelInfo {
  std::string path, name, architecture;
  int num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int hidden_size = 0, intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t model_context = 0;   // trained for
  int64_t context_length = 0;  // of this engine
  uint64_t file_bytes = 0;
  uint64_t weight_bytes = 0;  // repacked, read once a step
  uint64_t kv_bytes_per_token = 0;
  int num_threads = 0;
  std::string isa;
  bool has_chat_template = false;
  std::vector<std::pair<std::string, std::string>> metadata;  // printable, long values cut
  std::vector<TensorInfo> tensors;
};

}  // namespace vericache
