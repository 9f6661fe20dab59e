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

// Shorter beginnings that are looked at for a draft KV: each is a round trip.
constexpr int kDraftTries = 64;

// A store far away may take its round trip even where computing would be faster still.
Deadline DeadlineOf(double recompute_s) {
  constexpr double kLeast = 0.25, kMost = 3600;
  if (recompute_s <= 0) return kNoDeadline;
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(std::clamp(recompute_s, kLeast, kMost)));
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

std::unique_ptr<StoredPrefixes::Prompt> PrefixCache::PromptInStore(absl::Span<const TokenId> tokens,
                                                                   std::string_view salt) const {
  if (stored_ == nullptr) return nullptr;
  PrefixIdentity identity = options_.identity;
  identity.salt = salt;
  return std::make_unique<StoredPrefixes::Prompt>(tokens, identity, options_.digest_bits);
}

// Only the draft of this very prompt, or of all but its last few tokens, is worth more than a new
// choice: prefill continues it while there are fewer new queries than a choice asks for.
bool PrefixCache::FindDraft(const StoredPrefixes::Prompt* stored,
                            const MemoryPrefixes::Match& match, absl::Span<const TokenId> prompt,
                            const DraftSpec& spec, Deadline deadline, PrefixHit* hit) {
  const int64_t num_prompt = static_cast<int64_t>(prompt.size());
  const int64_t least = std::max<int64_t>(1, num_prompt - QueryRowsWanted(spec) + 1);
  if (match.prefix != nullptr) {
    const std::string name = spec.ToString();
    const MemoryPrefix::Draft* best = nullptr;
    for (const MemoryPrefix::Draft& draft : match.prefix->drafts)
      if (draft.spec == name && draft.num_tokens >= least && draft.num_tokens <= match.num_tokens &&
          (best == nullptr || draft.num_tokens > best->num_tokens))
        best = &draft;
    if (best != nullptr) hit->draft.emplace(best->kv.Copy());
  }
  if (stored != nullptr && !hit->draft.has_value()) {
    std::optional<DraftKv> draft = stored_->LoadDraft(*stored, least, num_prompt, spec, deadline);
    if (draft.has_value()) hit->draft.emplace(std::move(*draft));
  }
  return hit->draft.has_value();
}

void PrefixCache::FindScores(StoredPrefixes::Prompt* stored, const MemoryPrefixes::Match& match,
                             absl::Span<const TokenId> prompt, const DraftSpec& spec,
                             Deadline deadline, PrefixHit* hit) {
  if (spec.score_kind() == ScoreKind::kNone) return;
  const auto enough = [&](const std::shared_ptr<const KeyScores>& scores) {
    return scores != nullptr && 2 * scores->num_scored >= static_cast<int64_t>(prompt.size());
  };
  if (match.prefix != nullptr) {
    const auto found = match.prefix->scores.find(spec.score_key());
    if (found != match.prefix->scores.end())
      hit->scores = Beginning(found->second, match.num_tokens);
  }
  if (!enough(hit->scores) && stored != nullptr)
    hit->scores = stored_->LoadScores(*stored, spec, deadline);
  if (!enough(hit->scores)) hit->scores = nullptr;
}

PrefixHit PrefixCache::Find(absl::Span<const TokenId> prompt, std::string_view salt,
                            const DraftSpec& spec, int64_t known_tokens, const PrefixRoom& room) {
  const int64_t num_prompt = static_cast<int64_t>(prompt.size());
  PrefixHit hit;
  ++stats_.lookups;
  stats_.looked_up_tokens += num_prompt;
  if (writer_ != nullptr) writer_->Reap();
  const MemoryPrefixes::Match match = memory_.Find(salt, prompt);
  if (room.memory_bytes < std::numeric_limits<uint64_t>::max()) LimitMemory(room.memory_bytes);
  const std::unique_ptr<StoredPrefixes::Prompt> stored = PromptInStore(prompt, salt);
  const Deadline deadline = DeadlineOf(room.recompute_s);
  FindScores(stored.get(), match, prompt, spec, deadline, &hit);
  // The last token is always computed: its logits choose the first new one.
  int64_t common = std::min(match.num_tokens, num_prompt - 1);
  const int64_t num_blocks = stored != nullptr ? stored_->CountBlocks(*stored, deadline) : 0;
  std::optional<FullKv> loaded;
  if (num_blocks * kBlockTokens > std::max(common, known_tokens)) {
    loaded.emplace(stored_->LoadBlocks(*stored, num_blocks, room.hot_blocks, deadline));
    if (loaded->num_tokens() <= common) loaded.reset();
    if (loaded.has_value()) common = std::min(loaded->num_tokens(), num_prompt - 1);
  }
  if (common <= known_tokens) return hit;
  const int64_t wanted = spec.uses_queries() ? QueryRowsWanted(spec) : 0;
  if (num_prompt - common < wanted && !FindDraft(stored.get(), match, prompt, spec, deadline, &hit))
    common = std::max<int64_t>(0, num_prompt - wanted);
  if (common <= known_tokens) {
    hit.draft.reset();
    return hit;
  }
  hit.full.emplace(loaded.has_value() ? loaded->Fork(common) : match.prefix->full.Fork(common));
  ++(loaded.has_value() ? stats_.store_hits : stats_.memory_hits);
  stats_.found_tokens += common;
  return hit;
}

std::optional<DraftKv> PrefixCache::FindDraftAlone(absl::Span<const TokenId> prompt,
                                                   std::string_view salt, const DraftSpec& spec,
                                                   double recompute_s) {
  const std::unique_ptr<StoredPrefixes::Prompt> stored = PromptInStore(prompt, salt);
  if (stored == nullptr || !spec.enabled) return std::nullopt;
  const Deadline deadline = DeadlineOf(recompute_s);
  const int64_t num_prompt = static_cast<int64_t>(prompt.size());
  ++stats_.lookups;
  stats_.looked_up_tokens += num_prompt;
  // A prefix and its drafts are stored together: the names of its blocks tell how long it is.
  int64_t blocks = stored_->CountBlocks(*stored, deadline);
  std::optional<DraftKv> draft;
  const int64_t open = blocks * kBlockTokens;
  if (open < num_prompt && num_prompt - open < kBlockTokens)
    draft = stored_->LoadDraft(*stored, num_prompt, num_prompt, spec, deadline);
  for (int tries = 0; !draft.has_value() && blocks > 0 && tries < kDraftTries; --blocks, ++tries)
    draft =
        stored_->LoadDraft(*stored, blocks * kBlockTokens, blocks * kBlockTokens, spec, deadline);
  if (!draft.has_value()) return draft;
  ++stats_.store_hits;
  stats_.found_tokens += draft->num_tokens();
  return draft;
}

void PrefixCache::Add(const Finding& finding) {
  const int64_t num_tokens = finding.full.num_tokens();
  const int64_t finite = CountFiniteRows(finding.full, finding.known_tokens);
  if (finite < num_tokens) {
    ++stats_.bad_sequences;
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
  const std::unique_ptr<StoredPrefixes::Prompt> prompt = PromptInStore(f.tokens, f.salt);
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
  if (!writer_->Push(std::move(record))) ++stats_.skipped_records;
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

PrefixStats PrefixCache::Stats() {
  PrefixStats stats = stats_;
  stats.memory_bytes = memory_.num_bytes();
  stats.memory_evicted = memory_.evicted();
  if (options_.store != nullptr) stats.store = options_.store->Stats();
  return stats;
}

}  // namespace vericache
