#include "engine/stored_prefixes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace vericache {
namespace {

constexpr int64_t kLoadedAtOnce = 2;  // blocks between two looks at what must be spilled

std::string_view TextOf(const void* data, size_t size) {
  return {static_cast<const char*>(data), size};
}

}  // namespace

const uint16_t* BlockValues(const FullKv& full, int64_t block, std::vector<uint16_t>* scratch) {
  if (full.block(block) != nullptr) return full.block(block);
  scratch->resize(full.block_bytes() / sizeof(uint16_t));
  return full.ReadBlock(block, scratch->data()).ok() ? scratch->data() : nullptr;
}

absl::Span<const TokenId> StoredPrefixes::Prompt::LastIds(int64_t num_tokens) const {
  const int64_t begin = (num_tokens - 1) / kBlockTokens * kBlockTokens;
  return tokens.subspan(begin, num_tokens - begin);
}

PrefixKey StoredPrefixes::Prompt::LastKey(int64_t num_tokens) const {
  const int64_t whole = (num_tokens - 1) / kBlockTokens;
  return keyer.Next(whole > 0 ? chain[whole - 1] : keyer.Root(), LastIds(num_tokens));
}

int64_t StoredPrefixes::CountBlocks(const Prompt& prompt) const {
  int64_t count = 0;
  while (count < static_cast<int64_t>(prompt.chain.size()) &&
         store_->Contains(prompt.chain[count].digest))
    ++count;
  return count;
}

absl::StatusOr<absl::Span<const uint8_t>> StoredPrefixes::Fetch(const BlobKey& key,
                                                                PrefixBlobKind kind,
                                                                const PrefixKey& prefix,
                                                                absl::Span<const TokenId> ids,
                                                                BlobBytes* blob) {
  VC_ASSIGN_OR_RETURN(*blob, store_->Get(key));
  return OpenPrefixBlob({blob->data(), blob->size()}, kind, prefix, ids);
}

FullKv StoredPrefixes::LoadBlocks(const Prompt& prompt, int64_t num_blocks, int64_t hot_blocks) {
  FullKv full = new_full_();
  if (hot_blocks >= 0) full.set_hot_blocks(hot_blocks);
  int64_t loaded = 0;
  for (BlobBytes blob; loaded < num_blocks; ++loaded) {
    // Block by block: more than fits into memory goes to the tier as it comes.
    if (loaded % kLoadedAtOnce == 0 && !full.Spill().ok()) break;
    if (!full.ResizeForLoad((loaded + 1) * kBlockTokens).ok()) break;
    const PrefixKey& key = prompt.chain[loaded];
    const auto payload =
        Fetch(key.digest, PrefixBlobKind::kBlock, key, prompt.BlockIds(loaded), &blob);
    if (!payload.ok() || payload->size() != full.block_bytes()) break;
    std::memcpy(full.mutable_block(loaded), payload->data(), payload->size());
  }
  return full.num_tokens() == loaded * kBlockTokens ? std::move(full)
                                                    : full.Fork(loaded * kBlockTokens);
}

std::optional<DraftKv> StoredPrefixes::LoadDraft(const Prompt& prompt, int64_t num_tokens,
                                                 const DraftSpec& spec) {
  const PrefixKey last = prompt.LastKey(num_tokens);
  const BlobKey key = prompt.keyer.DraftKey(last, spec.ToString());
  if (!store_->Contains(key)) return std::nullopt;
  BlobBytes blob;
  const auto payload = Fetch(key, PrefixBlobKind::kDraft, last, prompt.LastIds(num_tokens), &blob);
  if (!payload.ok()) return std::nullopt;
  DraftKv draft = NewDraftKv(shape_, spec, kernels_);
  std::string_view bytes = TextOf(payload->data(), payload->size());
  if (!draft.ReadFrom(&bytes).ok() || !bytes.empty() || draft.num_tokens() != num_tokens)
    return std::nullopt;
  return draft;
}

std::shared_ptr<const KeyScores> StoredPrefixes::LoadScores(const Prompt& prompt,
                                                            const DraftSpec& spec) {
  auto scores = std::make_shared<KeyScores>();
  scores->of_head.resize(num_lists());
  const std::string score_key = spec.score_key();
  constexpr size_t kListBytes = kBlockTokens * sizeof(float);
  BlobBytes blob;
  for (size_t block = 0; block < prompt.chain.size(); ++block) {
    const PrefixKey& key = prompt.chain[block];
    const auto payload = Fetch(prompt.keyer.ScoresKey(key, score_key), PrefixBlobKind::kScores, key,
                               prompt.BlockIds(static_cast<int64_t>(block)), &blob);
    if (!payload.ok() || payload->size() != num_lists() * kListBytes) break;
    for (size_t list = 0; list < num_lists(); ++list) {
      std::vector<float>& of_head = scores->of_head[list];
      of_head.resize(of_head.size() + kBlockTokens);
      std::memcpy(of_head.data() + block * kBlockTokens, payload->data() + list * kListBytes,
                  kListBytes);
    }
    scores->num_scored += kBlockTokens;
  }
  if (scores->num_scored == 0) return nullptr;
  return scores;
}

bool StoredPrefixes::PutIfMissing(const BlobKey& key, PrefixBlobKind kind, const PrefixKey& prefix,
                                  absl::Span<const TokenId> ids, std::string_view payload,
                                  Held held) {
  if (store_->Contains(key)) {
    BlobBytes blob;
    if (held == Held::kTrusted || Fetch(key, kind, prefix, ids, &blob).ok()) return true;
  }
  const std::string head = PrefixBlobHead(kind, prefix, ids, payload.size());
  return store_->Put(key, {head, payload}).ok();
}

bool StoredPrefixes::Save(const Record& r) {
  std::vector<BlobKey> used;
  bool whole = true;
  const int64_t num_scored = static_cast<int64_t>(r.score_keys.size());
  std::vector<uint16_t> scratch;
  std::vector<float> of_block(num_lists() * kBlockTokens);
  for (int64_t block = 0; whole && block < static_cast<int64_t>(r.chain.size()); ++block) {
    const PrefixKey& key = r.chain[block];
    const auto ids = absl::MakeConstSpan(r.tokens).subspan(block * kBlockTokens, kBlockTokens);
    const Held held = block < r.num_known_blocks ? Held::kTrusted : Held::kChecked;
    const uint16_t* values = BlockValues(r.full, block, &scratch);
    whole = values != nullptr;
    if (!whole) break;
    whole = PutIfMissing(key.digest, PrefixBlobKind::kBlock, key, ids,
                         TextOf(values, r.full.block_bytes()), held);
    used.push_back(key.digest);
    if (!whole || block >= num_scored) continue;
    for (size_t list = 0; list < num_lists(); ++list)
      std::copy_n(r.scores->of_head[list].data() + block * kBlockTokens, kBlockTokens,
                  of_block.data() + list * kBlockTokens);
    whole = PutIfMissing(r.score_keys[block], PrefixBlobKind::kScores, key, ids,
                         TextOf(of_block.data(), of_block.size() * sizeof(float)), held);
    used.push_back(r.score_keys[block]);
  }
  if (whole && !r.draft.empty()) {
    whole = PutIfMissing(r.draft_key, PrefixBlobKind::kDraft, r.draft_last, r.draft_ids, r.draft,
                         Held::kChecked);
    used.push_back(r.draft_key);
  }
  store_->Touch(used);
  return whole;
}

}  // namespace vericache
