// What callers set: how a model is loaded, and what a request asks for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vericache {

// How positions beyond the trained context turn into angles. Angles decide every K, so these
// settings are part of receipts, session files and prefix keys.
struct RopeOptions {
  std::string scaling;       // "": the model file's own; "none", "linear", "yarn"
  double scale = 0;          // linear, yarn: the context becomes this times as long; at least 1
  int64_t orig_context = 0;  // tokens that the model was trained for; 0: what the file says

  bool operator==(const RopeOptions&) const = default;
};

struct EngineOptions {
  std::string model_path;
  // A small model of the same tokenizer that proposes tokens (docs/proposals.md); "": none.
  std::string draft_model_path;
  int num_threads = 0;          // 0: physical cores within affinity and quota
  int64_t context_length = 0;   // 0: the smaller of the model's and what free memory allows
  RopeOptions rope;             // also for the draft model, with its own original context
  std::string isa;              // "": the fastest; "scalar", "avx2", ...: for tests
  int64_t prefill_chunk = 512;  // rows a pass; any value gives the same bits
  // Bytes of RAM for all K/V: draft KV, hot blocks of full KV, staging. What does not fit is
  // spilled to an unlinked file and read back layer by layer. 0: all K/V stay in RAM, without a
  // limit.
  uint64_t kv_memory = 0;
  std::string kv_dir;          // folder of the spill files; "": /var/tmp
  uint64_t kv_read_limit = 0;  // bytes a second that are read back at most; 0: no limit

  // Prefix cache (docs/prefix_cache.md): prompts begin where earlier ones have been. Off by
  // default.
  // K/V of recent requests kept in RAM, at most; 0: none. Where there is a kv_memory they are part
  // of it: they take what running requests leave, and go when those need it.
  uint64_t prefix_memory_bytes = 0;
  // Where K/V outlive the process: a folder, redis://..., rediss://... or s3://..., several with
  // commas between them, near to far (docs/remote_prefixes.md); "": none.
  std::string prefix_store;
  std::string prefix_store_mode = "rw";  // "ro": nothing is written
  uint64_t prefix_store_bytes = 0;       // budget of the folder; 0: what its volume has free
  // How one request's prefix is had from a store far away: "auto" predicts and picks; "load",
  // "draft-first", "recompute" for measurements (docs/remote_prefixes.md); with a verifier also
  // "remote" and "remote-plain" (docs/remote_drafting.md). Same bits in any case.
  std::string prefix_plan = "auto";
  int prefix_digest_bits_for_tests = 256;  // fewer: keys collide, answers do not change
  // Looks up what AWS_... and HOME say in the environment of whoever calls; empty: nothing is set.
  // The library itself reads no environment.
  std::function<std::string(const std::string& name)> environment;
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> on_load;
  // What a user should know and no error tells, one line, each told once. May be empty.
  std::function<void(std::string_view text)> on_notice;
};

struct SamplingOptions {
  float temperature = 0;  // 0: greedy
  int64_t top_k = 0;      // 0: off
  float top_p = 1;
  float min_p = 0;
  uint64_t seed = 0;
  uint32_t choice = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
};

// A prompt is exactly one of: token ids, messages, or text.
struct Request {
  std::vector<int32_t> prompt_token_ids;
  std::string messages_json;  // array of chat messages, rendered by the model's template
  std::string tools_json;     // array of tool schemas for the template, or ""
  // Object of further variables of the template ("enable_thinking"), or "". With messages only.
  std::string template_kwargs_json;
  std::string prompt;  // raw text; BOS by the model's rule

  int64_t max_tokens = 256;
  SamplingOptions sampling;
  std::string draft = "verify:0.25+int4";  // draft spec, or "off"
  int draft_len = 0;                       // tokens drafted a round; 0: auto
  // What else proposes tokens, beside or instead of the draft KV (docs/proposals.md): "ngram",
  // "model", "ngram,model", "off", or "": with an automatic draft_len and a draft, all there is.
  std::string propose;
  bool ignore_eos = false;       // go on until max_tokens (benchmarks)
  int priority = 0;              // in a batch: higher goes first
  bool use_prefix_cache = true;  // where the engine has one: look up and add
  std::string prefix_salt;       // requests of different salts share no stored prefix
};

enum class AuditMode {
  kOnePass,       // teacher-forced, at prefill speed
  kTokenByToken,  // plain decoding
};

}  // namespace vericache
