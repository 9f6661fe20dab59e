// What an Engine is made of (internal to src/api).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/model_digest.h"
#include "api/request_loop.h"
#include "base/thread_pool.h"
#include "engine/model_proposer.h"
#include "engine/prefill.h"
#include "engine/prefix_cache.h"
#include "engine/round.h"
#include "engine/sequence.h"
#include "kv/kv_tier.h"
#include "kv/selectors/score_io.h"
#include "model/forward.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"
#include "vericache/engine.h"

namespace vericache {

struct Session::State {
  std::vector<TokenId> tokens;  // [full.num_tokens()]
  FullKv full;
  std::optional<DraftKv> draft;  // over the same tokens, made by `draft_spec`
  std::string draft_spec;
  // By DraftSpec::score_key(): what Score() and requests have made over the first tokens.
  ScoreSets scores;

  explicit State(FullKv full_kv) : full(std::move(full_kv)) {}
};

// Who has the budget while a prefix is loaded: one sequence its plan, with the cache in what that
// leaves; or many, who leave it to the scheduler: then nothing of what is loaded is in RAM.
enum class PrefixUse { kAlone, kShared };

struct Engine::Impl {
  EngineOptions options;
  ModelInfo info;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // null if the file has none
  std::unique_ptr<Forward> forward;
  std::unique_ptr<Model> small_model;  // null: no model proposes
  std::unique_ptr<ModelProposer> small;
  std::shared_ptr<KvTier> tier;            // null: all K/V in RAM
  std::shared_ptr<Experience> experience;  // made with the first loop
  std::string digest;                      // hex SHA-256 of the file, once computed
  std::mutex told_mutex;
  std::set<std::string> told;             // notices
  FileIdentity model_identity;            // of the file when it was loaded; with a prefix store
  std::unique_ptr<PrefixCache> prefixes;  // null if there is none; goes first

  // Checks a request and makes its sequence; reuses the session's longest common prefix.
  // THREADS: without a session, safe beside passes and other calls.
  absl::StatusOr<std::unique_ptr<Sequence>> MakeSequence(const Request& request,
                                                         const Session* session);
  // Begins a sequence with what the prefix cache has, where that is longer than what it has. Under
  // a budget, `alone` says whether the sequence has all of it (its plan), with the cache in what it
  // leaves, or shares it with others, who leave it to the scheduler: then nothing of it is in RAM.
  void UsePrefix(const Request& request, Sequence* sequence, bool alone);
  // The same in parts (engine/prefix_lookup.h), for who does not wait. Null: no look-up is wanted.
  std::unique_ptr<PrefixLookup> PlanPrefix(
      const Request& request, const Sequence& sequence, PrefixUse use,
      std::function<PrefixChoice(const PrefixFacts&)> choose = {});
  void TakePrefix(std::unique_ptr<PrefixLookup> lookup, PrefixUse use, Sequence* sequence);
  // What was loaded for `sequence`, which goes on elsewhere, is for those that begin like it.
  void KeepLoaded(const Request& request, const Sequence& sequence,
                  std::unique_ptr<PrefixLookup> lookup);
  // Prefixes that may be loaded at once beside the passes of others; 0: the KV budget has no room
  // for that.
  int MostLoads() const;
  // What they take of the budget while they are loaded.
  size_t LoadBytes() const;
  bool prefixes_are_remote() const { return prefixes != nullptr && prefixes->Link().is_remote; }
  // What K/V of this engine depend on besides tokens. REQUIRES: `digest` is computed.
  PrefixIdentity Identity() const;
  // Seconds in which the rows that the sequence's prompt lacks could be computed: a guess.
  double RecomputeSeconds(const Sequence& sequence);
  // Under a budget: bytes of it that the prefix cache may hold now.
  void LimitPrefixes(uint64_t bytes);
  // Adds a sequence to the prefix cache: `known_tokens` of its rows are not new.
  void KeepPrefix(const Request& request, const Sequence& sequence, int64_t known_tokens);
  // For PushPrefix(). known: rows that need not be computed, but for the newest queries; null: what
  // the cache has. *cached: rows that were not computed.
  absl::StatusOr<std::unique_ptr<Sequence>> PrefillForPush(const Request& prompt,
                                                           const std::string& draft,
                                                           const FullKv* known,
                                                           const Callbacks& callbacks,
                                                           int64_t* cached);
  // `loaded`: the model file before it was read.
  absl::Status OpenPrefixCache(const FileIdentity& loaded);
  // False: there is no prefix cache, or none that may be used.
  bool PrefixesHold();
  absl::Status LoadSmallModel();
  // The modes that the request's drafts may use.
  absl::StatusOr<uint32_t> DraftModesOf(const Request& request, bool with_draft_kv) const;
  // --- Under a KV budget (kv_memory.cc) ---
  absl::Status OpenTier();
  // The plan for a sequence of at most `num_tokens`; makes the draft smaller, or turns it off,
  // until it fits. ERRORS: kResourceExhausted, with numbers.
  absl::StatusOr<MemoryPlan> FitMemory(size_t budget, int64_t num_tokens, int64_t draft_rows,
                                       DraftSpec* spec) const;
  // What the scheduler must know of a request's drafts in `loop`; under a budget they are made
  // smaller until they fit. together: as RequestLoop::FitDraft() has it.
  DraftSizes FitDraft(const Request& request, const RequestLoop& loop, int together,
                      Sequence* sequence);
  // Staging slots of one KV head of a layer of a sequence.
  size_t HeadSlots(int64_t num_tokens) const;
  // Pass rows and staging where no request has more tokens than `longest`; for a batch; for
  // requests that are not known yet.
  LoopOptions MakeLoopOptions(int64_t longest) const;
  LoopOptions MakeServiceLoopOptions() const;
  LoopOptions MakeBatchLoopOptions(
      const std::vector<absl::StatusOr<std::unique_ptr<Sequence>>>& sequences) const;
  // What passes cost and how often drafts agree, of all loops of this engine; made at first.
  const std::shared_ptr<Experience>& Learned();
  LoopParts MakeLoopParts();
  // What the sequence's plan leaves of the budget; all there is without one.
  uint64_t RoomBeside(const Sequence& sequence) const;
  // Fits a new sequence into the budget.
  absl::Status PlanSequence(Sequence* sequence);
  // Brings a sequence's full KV to what its plan says, once more after it got another one.
  // ERRORS: those of the tier; nothing is lost.
  absl::Status ApplyPlan(Sequence* sequence) const;
  // Leaves a session no more RAM than the sequence that begins with it.
  absl::Status ShrinkSession(const Sequence& sequence, Session* session);
  absl::StatusOr<std::vector<TokenId>> PromptTokens(const Request& request);
  // Messages by the chat template; *text: what it wrote.
  absl::StatusOr<std::vector<TokenId>> TemplateTokens(const Request& request, std::string* text);
  // What the spec needs from outside the K/V: scores the session has, a file, kvzip's instruction.
  // ERRORS: those of the file.
  absl::Status EquipDraft(const Session* session, Sequence* sequence);
  absl::StatusOr<RepeatPrompt> MakeRepeatPrompt();
  // THREADS: safe, as on_notice must be where requests come from many threads.
  void Tell(const std::string& text);
  // sequence: null, or whose memory plan bounds the chunks.
  PrefillOptions MakePrefillOptions(const Callbacks& callbacks,
                                    const Sequence* sequence = nullptr) const;
  FullKv NewFullKv() const {
    FullKv full(model->config.kv_shape(), model->kernels, tier);
    // Until a request's plan says how many: half of the budget.
    if (tier != nullptr)
      full.set_hot_blocks(static_cast<int64_t>(options.kv_memory / 2 / full.block_bytes()));
    return full;
  }
  Completion Finish(const Sequence& sequence, int64_t cached_tokens, double prefill_s) const;
  // common: tokens that the session already had.
  void Store(Sequence* sequence, int64_t common, Session* session) const;
};

// How the parts of src/api that are not Engine's own members reach it.
class EngineAccess {
 public:
  using Impl = Engine::Impl;
  static Impl* Of(Engine* engine) { return engine->impl_.get(); }
};

// Seconds since some fixed point.
double NowSeconds();
// "stop", "length", ...; "cancelled" where nothing ended it.
const char* FinishName(FinishReason reason);

}  // namespace vericache
