// The engine's side of the prefix cache: opening it, beginning sequences with it, adding to it.
#include <algorithm>
#include <utility>

#include "api/engine_impl.h"
#include "api/rope_settings.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/logits_chain.h"
#include "engine/scorers.h"
#include "engine/stored_prefixes.h"
#include "remote/open_store.h"
#include "scheduler/prefix_plan.h"

namespace vericache {

PrefixIdentity Engine::Impl::Identity() const {
  PrefixIdentity identity;
  identity.model_digest = digest;
  identity.tokenizer_digest = tokenizer->digest();
  identity.rope = RopeText(model->config);
  identity.kv_format = KvFormatText(model->config.kv_shape());
  identity.contract = kContractId;
  return identity;
}

double Engine::Impl::RecomputeSeconds(const Sequence& s) {
  return PrefillSeconds(Learned()->costs, s.full.num_tokens(), s.num_prompt);
}

absl::Status Engine::Impl::OpenPrefixCache(const FileIdentity& loaded) {
  if (options.prefix_store.empty() && options.prefix_memory_bytes == 0) return absl::OkStatus();
  if (options.prefix_store_mode != "rw" && options.prefix_store_mode != "ro")
    return absl::InvalidArgumentError(
        StrCat("prefix store mode is '", options.prefix_store_mode, "', expected rw or ro"));
  constexpr std::string_view kPlans[] = {"auto",      "load",   "draft-first",
                                         "recompute", "remote", "remote-plain"};
  if (std::find(std::begin(kPlans), std::end(kPlans), options.prefix_plan) == std::end(kPlans))
    return absl::InvalidArgumentError(
        StrCat("prefix plan is '", options.prefix_plan,
               "', expected auto, load, draft-first, recompute, remote or remote-plain"));
  PrefixCacheOptions cache;
  cache.memory_bytes = options.prefix_memory_bytes;
  if (tier != nullptr) cache.memory_bytes = std::min(cache.memory_bytes, options.kv_memory);
  cache.store_read_only = options.prefix_store_mode == "ro";
  cache.digest_bits = options.prefix_digest_bits_for_tests;
  if (!options.prefix_store.empty()) {
    StoreOptions store;
    store.read_only = cache.store_read_only;
    store.max_folder_bytes = options.prefix_store_bytes;
    store.environment = options.environment;
    store.on_notice = [this](std::string_view text) { Tell(std::string(text)); };
    VC_ASSIGN_OR_RETURN(cache.store, OpenStore(options.prefix_store, store));
    const std::string folder = FolderIn(options.prefix_store);
    // Notes of digests lie in a folder; without one the model file is read at every start.
    if (digest.empty() && folder.empty()) {
      VC_ASSIGN_OR_RETURN(const Sha256Digest of_file, Sha256OfFile(options.model_path));
      digest = HexOf(of_file);
    }
    if (digest.empty()) {
      VC_ASSIGN_OR_RETURN(
          digest, RememberedModelDigest(
                      options.model_path, folder,
                      cache.store_read_only ? DigestNotes::kReadOnly : DigestNotes::kReadWrite));
    }
    VC_ASSIGN_OR_RETURN(model_identity, IdentityOfFile(options.model_path));
    if (!(model_identity == loaded))
      return absl::DataLossError(
          StrCat(options.model_path, " was changed while it was loaded; start again"));
  }
  cache.model_name = info.name;
  cache.identity = Identity();
  prefixes = std::make_unique<PrefixCache>(std::move(cache), model->config.kv_shape(),
                                           model->kernels, [this] { return NewFullKv(); });
  return absl::OkStatus();
}

// A model file that was written to in the meantime may answer by other weights than its digest
// says.
bool Engine::Impl::PrefixesHold() {
  if (prefixes == nullptr || options.prefix_store.empty()) return prefixes != nullptr;
  const absl::StatusOr<FileIdentity> now = IdentityOfFile(options.model_path);
  if (now.ok() && *now == model_identity) return true;
  Tell("the model file has changed since it was loaded: the prefix store is not used any more");
  return false;
}

void Engine::Impl::LimitPrefixes(uint64_t bytes) {
  if (tier != nullptr && prefixes != nullptr) prefixes->LimitMemory(bytes);
}

std::unique_ptr<PrefixLookup> Engine::Impl::PlanPrefix(
    const Request& request, const Sequence& s, PrefixUse use,
    std::function<PrefixChoice(const PrefixFacts&)> choose) {
  const bool alone = use == PrefixUse::kAlone;
  PrefixRoom room;
  if (tier != nullptr) room.hot_blocks = alone && s.memory.has_value() ? s.memory->hot_blocks : 0;
  if (tier != nullptr && alone) room.memory_bytes = RoomBeside(s);
  if (!request.use_prefix_cache || !PrefixesHold()) {
    if (alone) LimitPrefixes(room.memory_bytes);
    return nullptr;
  }
  // A store that takes longer than computing is of no use.
  room.recompute_s = RecomputeSeconds(s);
  room.choose = std::move(choose);
  // By the prompt alone: a verifier elsewhere may have emitted tokens behind it.
  return prefixes->Plan(absl::MakeConstSpan(s.tokens).first(s.num_prompt), request.prefix_salt,
                        s.spec, s.full.num_tokens(), room);
}

void Engine::Impl::TakePrefix(std::unique_ptr<PrefixLookup> lookup, PrefixUse use, Sequence* s) {
  PrefixHit hit = prefixes->Finish(std::move(lookup));
  if (hit.full.has_value()) {
    s->full = std::move(*hit.full);
    if (use == PrefixUse::kAlone) (void)ApplyPlan(s);  // an error would show in the first pass
    s->draft.reset();
    if (hit.draft.has_value()) s->draft.emplace(std::move(*hit.draft));
  }
  if (hit.scores != nullptr && !HasScores(*s)) SetScores(s, std::move(hit.scores));
}

void Engine::Impl::KeepLoaded(const Request& request, const Sequence& s,
                              std::unique_ptr<PrefixLookup> lookup) {
  const PrefixHit hit = prefixes->Finish(std::move(lookup));
  if (!hit.full.has_value()) return;
  const int64_t num_tokens = hit.full->num_tokens();
  PrefixCache::Finding finding = {absl::MakeConstSpan(s.tokens).first(num_tokens), *hit.full,
                                  request.prefix_salt, s.spec};
  finding.scores = hit.scores;
  finding.known_tokens = num_tokens;
  prefixes->Add(finding);
}

int Engine::Impl::MostLoads() const {
  constexpr size_t kMost = 4, kShare = 8;  // of the budget
  if (tier == nullptr) return kMost;
  const size_t bytes = kLoadedAtOnce * tier->pool().block_bytes();
  return static_cast<int>(std::min(kMost, options.kv_memory / kShare / bytes));
}

size_t Engine::Impl::LoadBytes() const {
  if (tier == nullptr || options.prefix_store.empty()) return 0;
  return MostLoads() * kLoadedAtOnce * tier->pool().block_bytes();
}

void Engine::Impl::UsePrefix(const Request& request, Sequence* s, bool alone) {
  const PrefixUse use = alone ? PrefixUse::kAlone : PrefixUse::kShared;
  std::unique_ptr<PrefixLookup> lookup = PlanPrefix(request, *s, use);
  if (lookup == nullptr) return;
  lookup->Load();
  TakePrefix(std::move(lookup), use, s);
}

void Engine::Impl::KeepPrefix(const Request& request, const Sequence& s, int64_t known_tokens) {
  const int64_t num_tokens = s.full.num_tokens();
  if (!request.use_prefix_cache || s.finish == FinishReason::kError || num_tokens <= known_tokens ||
      !PrefixesHold())
    return;
  // The draft of the prompt alone: that of an answer is chosen by the answer's queries.
  const bool is_prompt = num_tokens == s.num_prompt;
  const bool has_draft = s.draft.has_value() && s.draft->num_tokens() == num_tokens;
  PrefixCache::Finding finding = {absl::MakeConstSpan(s.tokens).first(num_tokens), s.full,
                                  request.prefix_salt, s.spec};
  finding.draft = is_prompt && has_draft ? &*s.draft : nullptr;
  finding.scores = s.scores;
  finding.known_tokens = known_tokens;
  prefixes->Add(finding);
}

PrefixCacheStats Engine::prefix_stats() const {
  PrefixCacheStats stats;
  if (impl_->prefixes == nullptr) return stats;
  const PrefixStats from = impl_->prefixes->Stats();
  stats.lookups = from.lookups;
  stats.memory_hits = from.memory_hits;
  stats.store_hits = from.store_hits;
  stats.misses = from.lookups - from.memory_hits - from.store_hits;
  stats.prompt_tokens = from.looked_up_tokens;
  stats.found_tokens = from.found_tokens;
  stats.damaged = from.store.damaged;
  stats.evicted = from.store.evicted + from.memory_evicted;
  stats.failed_writes = from.store.failed_puts + from.skipped_records;
  stats.bad_sequences = from.bad_sequences;
  stats.memory_bytes = from.memory_bytes;
  stats.store_bytes = from.store.num_bytes;
  stats.store_blobs = from.store.num_blobs;
  stats.read_bytes = from.store.read_bytes;
  stats.written_bytes = from.store.written_bytes;
  stats.store_errors = from.store.errors;
  stats.store_late = from.store.late;
  stats.store_skipped = from.store.skipped;
  return stats;
}

void Engine::WaitForPrefixWrites() {
  if (impl_->prefixes != nullptr) impl_->prefixes->WaitForWrites();
}

}  // namespace vericache
