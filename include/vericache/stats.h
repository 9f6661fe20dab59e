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
  int64_t cached_tokens = 0;  // prompt tokens whose K/V a session or the prefix cache had
};

// The prefix cache of an engine: what it holds now, what it has done since the engine was loaded.
struct PrefixCacheStats {
  int64_t lookups = 0;
  int64_t memory_hits = 0, store_hits = 0, misses = 0;
  int64_t prompt_tokens = 0;  // looked up
  int64_t found_tokens = 0;   // of them, those that need not be computed
  int64_t damaged = 0;        // stored blobs that were set aside
  int64_t evicted = 0;
  int64_t failed_writes =
      0;  // for want of room, by an error, or because writing was too far behind
  int64_t bad_sequences = 0;  // kept only up to a row that is not finite
  uint64_t memory_bytes = 0;
  uint64_t store_bytes = 0;
  int64_t store_blobs = 0;
  uint64_t read_bytes = 0, written_bytes = 0;
  int64_t store_errors = 0;   // operations that got no answer, late ones included
  int64_t store_late = 0;     // of them, those given up because computing again is as fast
  int64_t store_skipped = 0;  // not tried: the store has just failed several times
};

// What Engine::PushPrefix() is to store beside the full KV, and what it has stored.
struct PrefixPushOptions {
  std::vector<std::string> drafts;  // draft specs; none: full KV alone
  std::string label;                // shown by `vericache prefix ls`
};
struct PrefixPushReport {
  int64_t prompt_tokens = 0;
  int64_t stored_tokens = 0;  // of whole blocks
  int64_t cached_tokens = 0;  // that the store had already
  uint64_t full_bytes = 0;
  std::vector<std::pair<std::string, uint64_t>> drafts;  // spec, bytes
};

struct RoundRecord {
  int drafted = 0;
  int accepted = 0;
  int emitted = 0;
  int64_t draft_ns = 0;
  int64_t verify_ns = 0;
  uint64_t draft_bytes = 0;
  uint64_t full_bytes = 0;
  std::string mode;  // as in ModeStats
};

// Where the K/V of a completion were, under EngineOptions::kv_memory.
struct KvMemoryStats {
  uint64_t budget_bytes = 0;   // 0: no budget, all in RAM
  uint64_t planned_bytes = 0;  // most that draft KV, blocks and staging take while decoding
  uint64_t peak_bytes = 0;     // what they took, as seen after each round
  uint64_t staging_bytes = 0;
  uint64_t hot_bytes = 0;       // whole blocks that stay in RAM
  uint64_t spilled_bytes = 0;   // at the end
  uint64_t streamed_bytes = 0;  // read back while decoding
  double stream_s = 0;          // in which they were read
  double stream_wait_s = 0;     // in which compute slept for them
};

// When a request was what. Seconds from when it was handed in.
struct RequestTimes {
  double start_s = 0;        // it was admitted
  double prefill_s = 0;      // until its prompt was computed
  double first_token_s = 0;  // 0: there was none
  double end_s = 0;
  double max_burst_s = 0;  // longest time between two steps that gave tokens
};

// What the rounds of one draft mode came to.
struct ModeStats {
  std::string mode;  // "plain", "draft-kv", "ngram", "draft-model", "ngram+draft-kv", ...
  int64_t rounds = 0, drafted = 0, accepted = 0, emitted = 0;
  double draft_s = 0, verify_s = 0;
};

// Why a draft was as it was: the newest choice of the controller, and how often it chose what.
struct DraftChoiceStats {
  std::string mode;    // "plain", "draft-kv", ...; "": there was no round
  std::string reason;  // "fastest", "loss-bound", ...
  int draft_len = 0;
  double agreement = 0;  // estimated, per drafted token
  double expected_emitted = 0;
  double tokens_per_s = 0, plain_tokens_per_s = 0;  // estimated
  double draft_token_s = 0, verify_s = 0, row_s = 0, fetch_s = 0;
  int64_t plain_rounds = 0, drafted_rounds = 0;
  std::vector<ModeStats> modes;  // those that were used
};

// What one way to have a prefix was expected to take; seconds from the choice on.
struct WayEstimate {
  std::string way;     // "recompute", "load", "draft-first", "remote", "remote-plain"
  double first_s = 0;  // until the first token, or the next one
  double last_s = 0;   // until the last one
  double tokens_per_s = 0;
  uint64_t link_bytes = 0;
};

// How an answer came about whose full KV a verifier elsewhere has (vericache/remote.h).
struct RemoteStats {
  std::string verifier;          // that had the last word; "": this node itself
  int64_t draft_tokens = 0;      // positions of the stored draft KV; 0: there was none
  uint64_t draft_bytes = 0;      // of it
  int64_t provisional_rows = 0;  // computed on the draft KV and thrown away
  int64_t rounds = 0, drafted = 0, accepted = 0;
  int64_t looked_up = 0;     // of the drafted ones: proposed by look-up, without a pass here
  int64_t ahead_tokens = 0;  // of the drafted ones: while the question before was away
  int64_t opened = 0;        // sessions
  int64_t failed_calls = 0;
  uint64_t rows_bytes = 0;  // exact rows that came back
  int64_t remote_tokens = 0, local_tokens = 0;
  std::string fallback;  // why this node had to compute by itself; "": it had not to
  // What was picked, and why: "remote", "remote-plain" (the verifier decodes), "load" (the full
  // blocks are loaded while the verifier answers, then this node goes on), "recompute" (this node
  // goes on at once); "": there was nothing to choose by.
  std::string plan, reason;
  std::vector<WayEstimate> estimates;  // behind the choice; of ways that are possible
  double expected_tokens = 0;          // that the rest of the answer was expected to have
  double chosen_s = 0;                 // since the request's begin; 0: never
  double handed_over_s = 0;            // when this node went on; 0: it did not
  uint64_t full_bytes = 0;             // of full blocks that came for that
  // Why the newest draft was as long as it was. Estimates, where its length was not given.
  int draft_len = 0;         // 0: the verifier decodes plainly
  double round_trip_s = 0;   // of a question, without the time at the verifier
  double verify_s = 0;       // at the verifier, of one token without a draft
  double row_s = 0;          // the same, of each drafted token
  double draft_token_s = 0;  // a step on the draft KV
  double agreement = 0;      // per drafted token
  double tokens_per_s = 0, plain_tokens_per_s = 0;
};

// How a prefix came from a store far away. Seconds from the request's begin.
struct PrefixArrivalStats {
  std::string plan;    // "load", "draft-first", "recompute"; "": no store was asked, or a near one
  std::string reason;  // the prediction behind it, one line
  double link_bytes_per_s = 0, round_trip_s = 0;  // as measured before the choice; 0: not known
  double draft_s = 0;                             // until the draft KV was here; 0: none came
  double full_s = 0;                              // until the full blocks were here
  uint64_t draft_bytes = 0, full_bytes = 0;
  int64_t draft_tokens = 0, full_tokens = 0;  // positions that they stand for
  int64_t provisional_rows = 0;               // of the prompt's rest, on the draft KV
  int drafted = 0, accepted = 0;              // while the full blocks arrived
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
  KvMemoryStats memory;
  PrefixArrivalStats arrival;
  RequestTimes times;
  DraftChoiceStats choice;
  RemoteStats remote;
  std::vector<RoundRecord> records;
};

// What a third party needs to compute an answer again.
struct Receipt {
  std::string contract;
  std::string model_name;  // file name without folder
  std::string model_path;
  std::string model_sha256;
  RopeOptions rope;  // scaling "": the model file's own settings
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
  int64_t model_context = 0;   // trained for, or as far as the rope scaling reaches
  int64_t context_length = 0;  // of this engine
  RopeOptions rope;            // of this engine, with nothing open; scaling "": the file's own
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
