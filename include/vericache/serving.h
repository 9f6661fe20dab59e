// Completions for requests that arrive at any time, from any thread: what a server stands on.
//
//   auto service = vericache::StartService(std::move(engine), options);
//   service->Submit(request, sink);   // sink->OnDelta(...) as text is verified, then OnEnd(...)
//
// Only verified tokens reach a sink, apart from OnDraft, which is asked for. The answer is bit for
// bit that of Engine::Generate() for the same request, whatever else is served meanwhile.
// CompletionService is abstract so that a server can be tested over a scripted one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vericache/options.h"
#include "vericache/remote.h"
#include "vericache/stats.h"

namespace vericache {

// Natural logarithm of a token's probability by the full KV's logits, before bias, penalties,
// temperature and filters.
struct TokenLogprob {
  int32_t id = -1;
  float logprob = 0;
};
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob>
      top;  // logprob descending, then id ascending; ServeRequest::top_logprobs
};

struct ServeRequest {
  Request request;      // sampling.choice is set per choice
  int num_choices = 1;  // "n"; choice i draws its own noise (SamplingOptions::choice = i)
  // Strings; none empty. The answer ends with the token that completes the first of them (the match
  // that ends first), its text before the match.
  std::vector<std::string> stop;
  bool logprobs = false;
  int top_logprobs = 0;          // 0 to 20
  bool prompt_logprobs = false;  // of the prompt's tokens but the first, in ServeEnd
  bool drafts = false;           // call OnDraft
};

// A piece of one choice that is verified and will not be taken back: whole UTF-8 characters, held
// back where a stop string may have begun.
struct ServeDelta {
  int choice = 0;
  std::string_view text;  // may be empty when tokens are half characters
  // Tokens since the last delta, those of held-back text included; the id of an end-of-generation
  // token is among them. With logprobs one entry a token.
  absl::Span<const int32_t> token_ids;
  absl::Span<const PositionLogprobs> logprobs;
};

struct ServeEnd {
  int choice = 0;
  absl::Status status;      // ok: `completion` holds; kCancelled, kDataLoss (non-finite), ...
  Completion completion;    // text cut at the stop string; finish_reason "stop", "length"
  std::string stop_string;  // that ended it, or ""
  std::vector<PositionLogprobs> prompt_logprobs;  // entry i: prompt token i + 1; choice 0 only
};

// THREADS: the service's own thread calls; calls must return at once and may not call the service
// but for Cancel(). OnEnd is the last call of a choice; every choice gets exactly one.
class ServeSink {
 public:
  virtual ~ServeSink() = default;
  virtual void OnDelta(const ServeDelta& delta) = 0;
  virtual void OnEnd(ServeEnd end) = 0;
  // Unverified: what would be shown behind the deltas so far if all tokens drafted in this round
  // held; verified text follows by OnDelta and replaces it.
  virtual void OnDraft(int choice, std::string_view text) {}
  // Prompt tokens done and in all, once for all choices.
  virtual void OnPrefill(int64_t done, int64_t total) {}
};

using ServeId = uint64_t;

// What requests with a verifier elsewhere have come to (ServiceOptions::verifiers).
struct RemoteServiceStats {
  int64_t requests = 0;   // choices that began there
  int64_t fallbacks = 0;  // of them, those that this node went on with for want of a verifier
  int64_t sessions = 0, failed_calls = 0, replies = 0;
  int64_t rounds = 0, drafted_tokens = 0, accepted_tokens = 0, emitted_tokens = 0;
  int64_t ahead_tokens = 0;      // drafted while a question was away, and of use
  int64_t looked_up_tokens = 0;  // of the drafted ones: found by look-up, without a pass
  int64_t provisional_rows = 0;
  uint64_t rows_bytes = 0;                        // exact K/V rows that came back
  uint64_t fetched_draft_bytes = 0;               // draft KVs that came from the store
  int64_t fetched_drafts = 0, shared_drafts = 0;  // from the store; from an earlier request's
  uint64_t draft_bytes = 0;                       // held now
  int verifiers = 0, verifiers_up = 0;
  uint64_t full_bytes = 0;  // of full blocks, for those that went on here because it is faster
  // Choices that left or ended, by what was picked for them (RemoteStats::plan).
  std::vector<std::pair<std::string, int64_t>> ways;
};

// Counters since start and gauges of now: for metrics and health.
struct ServiceStats {
  // Choices; submitted is the sum of the others. Refused requests are in none.
  int64_t submitted = 0, finished = 0, cancelled = 0, failed = 0;
  int64_t waiting = 0, running = 0;
  int64_t num_passes = 0;
  int64_t prompt_tokens = 0;  // once a request, when its first choice ends
  int64_t emitted_tokens = 0, drafted_tokens = 0, accepted_tokens = 0;
  int64_t preempted = 0;
  double pass_s = 0, stall_s = 0;  // in passes; of it, waiting for the spill file
  uint64_t fetched_bytes = 0;
  uint64_t kv_ram_bytes = 0, kv_spilled_bytes = 0;  // blocks that two choices share count twice
  double since_progress_s = 0;                      // since the last finished pass; 0 when idle
  PrefixCacheStats prefix;
  RemoteServiceStats remote;
};

class CompletionService {
 public:
  virtual ~CompletionService() = default;

  virtual const ModelInfo& info() const = 0;
  // Ids of a request's prompt, through the chat template where it has messages, and the text the
  // template made ("" for ids). ERRORS: kInvalidArgument with the template's own words.
  struct RenderedPrompt {
    std::string text;
    std::vector<int32_t> token_ids;
  };
  virtual absl::StatusOr<RenderedPrompt> RenderPrompt(const Request& request) = 0;
  virtual std::string Detokenize(absl::Span<const int32_t> token_ids) const = 0;
  virtual std::string TokenBytes(int32_t id) const = 0;  // not always UTF-8 by itself

  // Hands a request in. COST: template and tokenizer; waits for no pass. Sink calls may come before
  // it returns. max_tokens is cut to what the context leaves; 0 only scores.
  // ERRORS (the sink is not called): kInvalidArgument naming the field, kOutOfRange (the prompt
  // leaves no room in the context: both numbers), kResourceExhausted (can never fit the budget:
  // numbers; or "the queue is full"), kUnavailable (stopping).
  virtual absl::StatusOr<ServeId> Submit(ServeRequest request, std::shared_ptr<ServeSink> sink) = 0;
  // All choices of a request end as kCancelled within one pass. Unknown ids are ignored.
  virtual void Cancel(ServeId id) = 0;
  virtual ServiceStats stats() const = 0;  // COST: never waits for a pass
  virtual absl::StatusOr<Receipt> MakeReceipt(const Completion& completion,
                                              const SamplingOptions& sampling) = 0;
  // Takes no new requests; what runs has `grace_s` to end and is cancelled then. Returns when all
  // sinks have had their last call.
  virtual void Stop(double grace_s) = 0;
};

struct ServiceOptions {
  int max_running = 64;
  int max_waiting = 1024;  // Submit refuses beyond
  double max_burst_s = 0;
  // Those next to the prefix store, which verify what is drafted here; none: all is computed here.
  // A request goes to the one with the fewest; one that wants logprobs, or finds no verifier, is
  // computed here. What each is called by ends with the service.
  std::vector<std::shared_ptr<RemoteVerifier>> verifiers;
  RemoteOptions remote{.draft_len = 0, .early_tokens = 4};
  // Bytes of draft KV for them, beside EngineOptions::kv_memory; 0: no limit.
  uint64_t remote_draft_memory = 0;
  // A verifier that was lost is tried again after so long, then after longer, up to 60 times this.
  double verifier_pause_s = 0.5;
  // A few passes are timed before the first request, so that its predictions rest on no guesses:
  // up to half a second, or two passes where those take longer.
  bool warm_up = true;
};

class Engine;
// The engine is the service's from here on; EngineOptions::on_notice may be called from any thread
// that submits. ERRORS: kInvalidArgument: senseless options.
absl::StatusOr<std::unique_ptr<CompletionService>> StartService(std::unique_ptr<Engine> engine,
                                                                const ServiceOptions& options);

}  // namespace vericache
