// VeriCache's public interface. START HERE.
//
// Load a GGUF model, ask for completions; the tokens are bit for bit those of full-KV decoding,
// whatever draft KV proposes them, for any thread count, chunking and batch.
//
//   vericache::EngineOptions options;
//   options.model_path = "model.gguf";
//   auto engine = vericache::Engine::Load(options);
//   if (!engine.ok()) { ... engine.status().message() is one line ... }
//   vericache::Request request;
//   request.prompt = "Once upon a time";
//   auto completion = (*engine)->Generate(request);
//
// Errors are absl::Status; no exception crosses this interface. Only this folder's headers are
// stable. THREADS: one call into an Engine at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vericache/batch.h"
#include "vericache/options.h"
#include "vericache/stats.h"

namespace vericache {

// Full KV (and the last draft KV) of a conversation or document, with its token ids. Passing one to
// Generate() skips the prefill of the longest common prefix; the bits do not change.
class Session {
 public:
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  // Tokens whose K/V the session holds.
  const std::vector<int32_t>& token_ids() const;
  size_t num_bytes() const;  // of full KV
  // A second, independent session. COST: pointers; blocks are copied when written.
  Session Fork() const;

 private:
  friend class Engine;
  friend class PromptStudy;
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// What happens while a completion is made. Every member may be empty.
struct Callbacks {
  // Verified text, whole UTF-8 characters; false cancels (finish_reason "cancelled").
  std::function<bool(std::string_view text)> on_text;
  // Prompt tokens done and in all, after each chunk of the prefill; false cancels.
  std::function<bool(int64_t done, int64_t total)> on_prefill;
  // After each drafted token and after each verification: for live views.
  std::function<void(const RoundView& view)> on_round;
};

class Engine {
 public:
  // ERRORS: kNotFound, kInvalidArgument, kUnimplemented, kResourceExhausted, kFailedPrecondition
  //         (CPU without AVX2/FMA/F16C support where needed): one line that says what to do.
  static absl::StatusOr<std::unique_ptr<Engine>> Load(const EngineOptions& options);
  ~Engine();

  const ModelInfo& info() const;

  // One completion. `session` may be null; otherwise its K/V are used and it holds the prompt and
  // the answer afterwards.
  // ERRORS: kInvalidArgument (empty prompt, bad parameter, text that is not UTF-8),
  //         kOutOfRange (prompt longer than the context: both numbers), kResourceExhausted,
  //         kDataLoss (non-finite logits, or the model file changed while mapped).
  absl::StatusOr<Completion> Generate(const Request& request, Session* session = nullptr,
                                      const Callbacks& callbacks = {});

  // Many completions in shared passes; the i-th result is bit for bit that of Generate(i) alone. A
  // request that cannot be served fails alone. report: null, or filled in.
  std::vector<absl::StatusOr<Completion>> GenerateBatch(absl::Span<const Request> requests,
                                                        const BatchOptions& options,
                                                        BatchReport* report);
  std::vector<absl::StatusOr<Completion>> GenerateBatch(absl::Span<const Request> requests);

  // Decoding on the draft KV alone, never verified: what lossy compression does by itself.
  absl::StatusOr<Completion> GenerateUnverified(const Request& request, Session* session = nullptr);

  // Computes the K/V of a prompt and nothing else.
  absl::StatusOr<Session> Prefill(const Request& request, const Callbacks& callbacks = {});
  // Makes the scores that `draft` ranks keys by ("kvzip", "expected", "h2o", a floor) over all
  // tokens of the session, which keeps them: later requests of any question use them. Nothing to do
  // for other specs. COST: up to two prefills. ERRORS: kInvalidArgument, kCancelled.
  absl::Status Score(Session* session, const std::string& draft, const Callbacks& callbacks = {});
  Session NewSession() const;
  // Sessions on disk: checksummed, tied to this model's digest, contract and KV layout. A save
  // replaces the file whole or leaves the old one. ERRORS of Load: kNotFound, kDataLoss (damaged),
  // kFailedPrecondition (another model or version).
  absl::Status SaveSession(const Session& session, const std::string& path) const;
  absl::StatusOr<Session> LoadSession(const std::string& path) const;

  // What a third party needs to compute `completion` again; `sampling` is its request's.
  absl::StatusOr<Receipt> MakeReceipt(const Completion& completion,
                                      const SamplingOptions& sampling);
  // Computes a receipt's answer again and compares tokens and logits hash.
  // ERRORS: kFailedPrecondition (another model or contract), kInvalidArgument (senseless receipt).
  absl::StatusOr<AuditReport> Audit(const Receipt& receipt, AuditMode mode,
                                    const Callbacks& callbacks = {});

  // Teacher-forced perplexity over windows of `window` tokens, the last partial one dropped, no
  // BOS: exp of the mean negative log-likelihood of all tokens of a window but its first.
  absl::StatusOr<PerplexityReport> Perplexity(std::string_view text, int64_t window,
                                              const Callbacks& callbacks = {});

  // Computes the K/V of a prompt's whole blocks, and their draft KV by each of `drafts`, and puts
  // them into the prefix store; returns when they are there. on_bytes: stored and in all, may be
  // empty. ERRORS: kFailedPrecondition (no store, or a read-only one), kInvalidArgument (a prompt
  // shorter than a block), kUnavailable (the store did not take all of it), those of Prefill().
  absl::StatusOr<PrefixPushReport> PushPrefix(
      const Request& request, const PrefixPushOptions& options, const Callbacks& callbacks = {},
      const std::function<void(uint64_t done, uint64_t total)>& on_bytes = {});

  // What the prefix cache holds and has done. COST: looks into the store's folder.
  PrefixCacheStats prefix_stats() const;
  // Returns once the store has what was added to it; the destructor does the same.
  void WaitForPrefixWrites();

  // Token ids of a request's prompt, through the chat template where it has messages.
  absl::StatusOr<std::vector<int32_t>> TokenizePrompt(const Request& request);
  std::string Detokenize(absl::Span<const int32_t> token_ids) const;

  // Hex SHA-256 of the model file; computed once, on first use (reads the whole file).
  absl::StatusOr<std::string> ModelDigest();

 private:
  friend class Benchmark;
  friend class BatchRun;
  friend class PromptStudy;
  friend class EngineAccess;
  friend absl::StatusOr<std::vector<bool>> NextTokenHits(Engine* engine,
                                                         absl::Span<const int32_t> prompt,
                                                         absl::Span<const int32_t> answer,
                                                         const Session* start);
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Checks a draft spec and gives its canonical form. ERRORS: kInvalidArgument.
absl::StatusOr<std::string> CanonicalDraftSpec(std::string_view spec);
// Draft bytes / full bytes that `spec` has after a prompt of `num_tokens`, by layout alone.
absl::StatusOr<double> PredictKeptFraction(std::string_view spec, const ModelInfo& info,
                                           int64_t num_tokens);
// Metadata and tensors without loading weights.
absl::StatusOr<ModelInfo> InspectModel(const std::string& path);

}  // namespace vericache
