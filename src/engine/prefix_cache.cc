#include "engine/prefix_cache.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "kv/block_layout.h"

namespace vericache {
namespace {

bool AllFinite(const uint16_t* values, size_t count) {
  constexpr uint16_t kExponent = 0x7c00;
  bool bad = false;
  for (size_t i = 0; i < count; ++i) bad |= (values[i] & kExponent) == kExponent;
  return !bad;
}

// One position of a block, in FullKv's layout.
bool RowFinite(const KvShape& shape, const uint16_t* block, int64_t slot) {
  constexpr uint16_t kExponent = 0x7c00;
  const auto bad = [](uint16_t value) { return (value & kExponent) == kExponent; };
  for (int head = 0; head < shape.num_layers * shape.num_kv_heads; ++head) {
    const uint16_t* of_head = block + shape.head_block_values() * head;
    const uint16_t* key = of_head + KeyAt(shape, slot);
    for (int c = 0; c < shape.head_dim; ++c)
      if (bad(key[c * kKvLanes]) || bad(of_head[ValueAt(shape, slot, c)])) return false;
  }
  return true;
}

// The scores of the first `num_tokens` positions.
std::shared_ptr<const KeyScores> Beginning(std::shared_ptr<const KeyScores> scores,
                                           int64_t num_tokens) {
  if (scores->num_scored <= num_tokens) return scores;
  auto cut = std::make_shared<KeyScores>();
  cut->num_scored = num_tokens;
  for (const std::vector<float>& of_head : scores->of_head)
    cut->of_head.emplace_back(of_head.begin(), of_head.begin() + num_tokens);
  return cut;
}

}  // namespace

int64_t CountFiniteRows(const FullKv& full, int64_t begin) {
  const size_t values = full.block_bytes() / sizeof(uint16_t);
  std::vector<uint16_t> scratch;
  int64_t pos = begin;
  while (pos < full.num_tokens()) {
    const int64_t block = pos / kBlockTokens;
    const int64_t end = std::min(full.num_tokens(), (block + 1) * kBlockTokens);
    // The rows behind the last committed one may hold anything, so an open block goes by rows.
    const bool whole = end % kBlockTokens == 0;
    const uint16_t* of_block = BlockValues(full, block, &scratch);
    if (of_block == nullptr) return pos;
    if (whole && AllFinite(of_block, values)) {
      pos = end;
      continue;
    }
    for (; pos < end; ++pos)
      if (!RowFinite(full.shape(), of_block, pos % kBlockTokens)) return pos;
  }
  return pos;
}

PrefixCache::PrefixCache(PrefixCacheOptions options, const KvShape& shape,
                         const KernelTable* kernels, std::function<FullKv()> new_full)
    : options_(std::move(options)), memory_(options_.memory_bytes) {
  if (options_.store == nullptr) return;
  stored_ =
      std::make_unique<StoredPrefixes>(options_.store.get(), shape, kernels, std::move(new_full));
  if (!options_.store_read_only) writer_ = std::make_unique<PrefixWriter>(stored_.get());
}

PrefixCache::~PrefixCache() = default;

std::optional<StoredPrefixes::Prompt> PrefixCache::PromptInStore(absl::Span<const TokenId> tokens,
                                                                 std::string_view salt) const {
  if (stored_ == nullptr) return std::nullopt;
  PrefixIdentity identity = options_.identity;
  identity.salt = salt;
  return StoredPrefixes::Prompt(tokens, identity, options_.digest_bits);
}

const DraftKv* PrefixCache::DraftInMemory(const PrefixLookup& lookup,
                                          const MemoryPrefixes::Match& match) {
  if (match.prefix == nullptr) return nullptr;
  const std::string name = lookup.spec_.ToString();
  const MemoryPrefix::Draft* best = nullptr;
  for (const MemoryPrefix::Draft& draft : match.prefix->drafts)
    if (draft.spec == name && draft.num_tokens >= lookup.LeastDraftTokens() &&
        draft.num_tokens <= match.num_tokens &&
        (best == nullptr || draft.num_tokens > best->num_tokens))
      best = &draft;
  return best == nullptr ? nullptr : &best->kv;
}

std::shared_ptr<const KeyScores> PrefixCache::ScoresInMemory(const PrefixLookup& lookup,
                                                             const MemoryPrefixes::Match& match) {
  if (match.prefix == nullptr || lookup.spec_.score_kind() == ScoreKind::kNone) return nullptr;
  const auto found = match.prefix->scores.find(lookup.spec_.score_key());
  if (found == match.prefix->scores.end()) return nullptr;
  std::shared_ptr<const KeyScores> scores = Beginning(found->second, match.num_tokens);
  return lookup.EnoughScores(scores) ? scores : nullptr;
}

std::unique_ptr<PrefixLookup> PrefixCache::Plan(absl::Span<const TokenId> prompt,
                                                std::string_view salt, const DraftSpec& spec,
                                                int64_t known_tokens, const PrefixRoom& room) {
  std::unique_ptr<PrefixLookup> lookup(new PrefixLookup(prompt, salt, spec, known_tokens, room));
  PrefixLookup& l = *lookup;
  {
    const std::lock_guard lock(stats_mutex_);
    ++stats_.lookups;
    stats_.looked_up_tokens += l.num_prompt();
  }
  if (writer_ != nullptr) writer_->Reap();
  l.match_ = memory_.Find(salt, prompt);
  l.memory_tokens_ = l.match_->num_tokens;
  l.memory_has_draft_ = DraftInMemory(l, *l.match_) != nullptr;
  l.memory_has_scores_ = ScoresInMemory(l, *l.match_) != nullptr;
  if (room.memory_bytes < std::numeric_limits<uint64_t>::max()) LimitMemory(room.memory_bytes);
  l.prefixes_ = stored_.get();
  if (l.StoreMayHelp()) l.stored_ = PromptInStore(l.tokens_, salt);
  return lookup;
}

PrefixHit PrefixCache::Finish(std::unique_ptr<PrefixLookup> lookup) {
  PrefixLookup& l = *lookup;
  PrefixHit hit;
  const MemoryPrefixes::Match match =
      l.match_.has_value() ? *l.match_ : memory_.Find(l.salt_, l.tokens_);
  hit.scores = ScoresInMemory(l, match);
  if (hit.scores == nullptr && l.EnoughScores(l.scores_)) hit.scores = l.scores_;
  int64_t common = l.MostTokens(match.num_tokens);
  const bool from_store = l.full_.has_value() && l.full_->num_tokens() > common;
  if (from_store) common = l.MostTokens(l.full_->num_tokens());
  if (common <= l.known_tokens_) return hit;
  const int64_t wanted = l.QueriesWanted();
  if (l.num_prompt() - common < wanted) {
    if (const DraftKv* draft = DraftInMemory(l, match); draft != nullptr) {
      hit.draft.emplace(draft->Copy());
    } else if (l.draft_.has_value()) {
      hit.draft = std::move(l.draft_);
    } else {
      common = std::max<int64_t>(0, l.num_prompt() - wanted);
    }
  }
  if (common <= l.known_tokens_) {
    hit.draft.reset();
    return hit;
  }
  hit.full.emplace(from_store ? l.full_->Fork(common) : match.prefix->full.Fork(common));
  const std::lock_guard lock(stats_mutex_);
  ++(from_store ? stats_.store_hits : stats_.memory_hits);
  stats_.found_tokens += common;
  return hit;
}

PrefixHit PrefixCache::Find(absl::Span<const TokenId> prompt, std::string_view salt,
                            const DraftSpec& spec, int64_t known_tokens, const PrefixRoom& room) {
  std::unique_ptr<PrefixLookup> lookup = Plan(prompt, salt, spec, known_tokens, room);
  lookup->Load();
  return Finish(std::move(lookup));
}

PrefixCache::StoredDraft PrefixCache::FindDraftAlone(absl::Span<const TokenId> prompt,
                                                     std::string_view salt, const DraftSpec& spec,
                                                     double recompute_s) {
  StoredDraft result;
  const std::optional<StoredPrefixes::Prompt> stored = PromptInStore(prompt, salt);
  if (!stored.has_value() || !spec.enabled) return result;
  const Deadline deadline = DeadlineOf(recompute_s);
  const int64_t num_prompt = static_cast<int64_t>(prompt.size());
  // A prefix and its drafts are stored together: the names of its blocks tell how long it is.
  int64_t blocks = stored_->CountBlocks(*stored, deadline);
  result.full_tokens = blocks * kBlockTokens;
  std::optional<DraftKv>& draft = result.draft;
  const int64_t open = blocks * kBlockTokens;
  if (open < num_prompt && num_prompt - open < kBlockTokens)
    draft = stored_->LoadDraft(*stored, num_prompt, num_prompt, spec, deadline);
  // One at a time: a shorter draft that nobody wants would cost as much.
  while (!draft.has_value() && blocks > 0) {
    const int64_t found = stored_->FindDraftOfBlocks(*stored, blocks, spec, deadline);
    if (found == 0) break;
    draft = stored_->LoadDraft(*stored, found * kBlockTokens, found * kBlockTokens, spec, deadline);
    blocks = found - 1;
  }
  const std::lock_guard lock(stats_mutex_);
  ++stats_.lookups;
  stats_.looked_up_tokens += num_prompt;
  if (!draft.has_value()) return result;
  ++stats_.store_hits;
  stats_.found_tokens += draft->num_tokens();
  return result;
}

void PrefixCache::Add(const Finding& finding) {
  const int64_t num_tokens = finding.full.num_tokens();
  const int64_t finite = CountFiniteRows(finding.full, finding.known_tokens);
  if (finite < num_tokens) {
    CountOne(&PrefixStats::bad_sequences);
    const FullKv cut = finding.full.Fork(finite);
    const Finding shorter = {finding.tokens.first(finite), cut, finding.salt, finding.spec};
    if (finite > 0) {
      AddToMemory(shorter, false);
      AddToStore(shorter, false);
    }
    return;
  }
  const bool pays = finding.spec.uses_queries() &&
                    2 * finding.known_tokens < static_cast<int64_t>(finding.tokens.size());
  const bool keeps_draft =
      finding.draft != nullptr && (pays || finding.keep_draft == Finding::Draft::kAlways);
  AddToMemory(finding, keeps_draft);
  AddToStore(finding, keeps_draft);
}

void PrefixCache::AddToMemory(const Finding& f, bool keeps_draft) {
  if (options_.memory_bytes == 0) return;
  MemoryPrefix prefix = {
      std::string(f.salt), {f.tokens.begin(), f.tokens.end()}, f.full.Fork(), {}, {}};
  if (keeps_draft)
    prefix.drafts.push_back(
        {f.spec.ToString(), static_cast<int64_t>(f.tokens.size()), f.draft->Copy()});
  if (f.scores != nullptr) prefix.scores[f.spec.score_key()] = f.scores;
  memory_.Add(std::move(prefix));
}

void PrefixCache::AddToStore(const Finding& f, bool keeps_draft) {
  if (writer_ == nullptr) return;
  const std::optional<StoredPrefixes::Prompt> prompt = PromptInStore(f.tokens, f.salt);
  const int64_t num_blocks = static_cast<int64_t>(prompt->chain.size());
  if (num_blocks == 0 && !keeps_draft) return;
  StoredPrefixes::Record record(f.full.Fork(num_blocks * kBlockTokens));
  record.tokens.assign(f.tokens.begin(), f.tokens.end());
  record.chain = prompt->chain;
  record.num_known_blocks = f.known_tokens / kBlockTokens;
  record.about = {options_.model_name, options_.identity.model_digest, options_.identity.kv_format,
                  std::string(f.label), static_cast<int64_t>(std::time(nullptr))};
  if (keeps_draft) {
    const int64_t num_tokens = static_cast<int64_t>(f.tokens.size());
    record.draft_spec = f.spec.ToString();
    record.draft_tokens = num_tokens;
    f.draft->AppendTo(&record.draft);
    record.draft_last = prompt->LastKey(num_tokens);
    record.draft_key = prompt->keyer.DraftKey(record.draft_last, f.spec.ToString());
    const absl::Span<const TokenId> ids = prompt->LastIds(num_tokens);
    record.draft_ids.assign(ids.begin(), ids.end());
  }
  if (f.scores != nullptr) {
    record.scores = f.scores;
    const int64_t num_scored = std::min(f.scores->num_scored / kBlockTokens, num_blocks);
    for (int64_t block = 0; block < num_scored; ++block)
      record.score_keys.push_back(prompt->keyer.ScoresKey(record.chain[block], f.spec.score_key()));
  }
  if (!writer_->Push(std::move(record))) CountOne(&PrefixStats::skipped_records);
}

void PrefixCache::LimitMemory(uint64_t bytes) {
  memory_.set_max_bytes(std::min(bytes, options_.memory_bytes));
}

void PrefixCache::WaitForWrites() {
  if (writer_ != nullptr) writer_->Wait();
}

bool PrefixCache::WaitForWrites(std::chrono::milliseconds time) {
  return writer_ == nullptr || writer_->WaitFor(time);
}

void PrefixCache::CountOne(int64_t PrefixStats::*counter) {
  const std::lock_guard lock(stats_mutex_);
  ++(stats_.*counter);
}

StoreLink PrefixCache::Link() const {
  return options_.store == nullptr ? StoreLink() : options_.store->Link();
}

PrefixStats PrefixCache::Stats() {
  PrefixStats stats;
  {
    const std::lock_guard lock(stats_mutex_);
    stats = stats_;
  }
  stats.memory_bytes = memory_.num_bytes();
  stats.memory_evicted = memory_.evicted();
  if (options_.store != nullptr) stats.store = options_.store->Stats();
  return stats;
}

}  // namespace vericache
