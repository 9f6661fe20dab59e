#include "engine/stored_prefixes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace vericache {
namespace {

constexpr size_t kMaxKnownRecords = 64;

std::string_view TextOf(const void* data, size_t size) {
  return {static_cast<const char*>(data), size};
}

std::vector<BlobKey> BlobKeys(const std::vector<PrefixKey>& chain) {
  std::vector<BlobKey> keys;
  keys.reserve(chain.size());
  for (const PrefixKey& key : chain) keys.push_back(key.digest);
  return keys;
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

int64_t StoredPrefixes::CountBlocks(const Prompt& prompt, Deadline deadline) const {
  const std::vector<BlobKey> keys = BlobKeys(prompt.chain);
  return store_->CountPresent(keys, deadline).value_or(0);
}

absl::StatusOr<absl::Span<const uint8_t>> StoredPrefixes::Fetch(
    const BlobKey& key, PrefixBlobKind kind, const PrefixKey& prefix, absl::Span<const TokenId> ids,
    BlobBytes* blob, Deadline deadline) {
  VC_ASSIGN_OR_RETURN(*blob, store_->Get(key, deadline));
  return OpenPrefixBlob({blob->data(), blob->size()}, kind, prefix, ids);
}

void StoredPrefixes::LoadBlocks(const Prompt& prompt, int64_t num_blocks, Deadline deadline,
                                StoredLoad* load, FullKv* full) {
  const int64_t first = full->num_tokens() / kBlockTokens;
  int64_t loaded = first;
  std::vector<BlobKey> keys = BlobKeys(prompt.chain);
  keys.resize(num_blocks);
  keys.erase(keys.begin(), keys.begin() + std::min(first, num_blocks));
  store_->GetMany(keys, deadline, [&](size_t, absl::StatusOr<BlobBytes> blob) {
    if (!blob.ok() || load->cancelled) return false;
    // Block by block: more than fits into memory goes to the tier as it comes.
    if (loaded % kLoadedAtOnce == 0 && !full->Spill().ok()) return false;
    if (!full->ResizeForLoad((loaded + 1) * kBlockTokens).ok()) return false;
    const auto payload = OpenPrefixBlob({blob->data(), blob->size()}, PrefixBlobKind::kBlock,
                                        prompt.chain[loaded], prompt.BlockIds(loaded));
    if (!payload.ok() || payload->size() != full->block_bytes()) return false;
    std::memcpy(full->mutable_block(loaded), payload->data(), payload->size());
    load->blocks_done = ++loaded;
    load->bytes_done += payload->size();
    return true;
  });
  if (full->num_tokens() > loaded * kBlockTokens) *full = full->Fork(loaded * kBlockTokens);
}

std::optional<DraftKv> StoredPrefixes::OpenDraft(const Prompt& prompt, int64_t num_tokens,
                                                 const DraftSpec& spec,
                                                 const BlobBytes& blob) const {
  const auto payload = OpenPrefixBlob({blob.data(), blob.size()}, PrefixBlobKind::kDraft,
                                      prompt.LastKey(num_tokens), prompt.LastIds(num_tokens));
  if (!payload.ok()) return std::nullopt;
  DraftKv draft = NewDraftKv(shape_, spec, kernels_);
  std::string_view bytes = TextOf(payload->data(), payload->size());
  if (!draft.ReadFrom(&bytes).ok() || !bytes.empty() || draft.num_tokens() != num_tokens)
    return std::nullopt;
  return draft;
}

std::optional<DraftKv> StoredPrefixes::LoadDraft(const Prompt& prompt, int64_t least, int64_t most,
                                                 const DraftSpec& spec, Deadline deadline) {
  std::vector<BlobKey> keys;
  for (int64_t n = most; n >= least; --n)
    keys.push_back(prompt.keyer.DraftKey(prompt.LastKey(n), spec.ToString()));
  std::optional<DraftKv> found;
  // All asked for at once: most are not there, and each answer would be a round trip.
  store_->GetMany(keys, deadline, [&](size_t idx, absl::StatusOr<BlobBytes> blob) {
    if (!blob.ok()) return absl::IsNotFound(blob.status());
    found = OpenDraft(prompt, most - static_cast<int64_t>(idx), spec, *blob);
    return !found.has_value();
  });
  return found;
}

int64_t StoredPrefixes::FindDraftOfBlocks(const Prompt& prompt, int64_t most_blocks,
                                          const DraftSpec& spec, Deadline deadline) const {
  const int64_t least_blocks = std::max<int64_t>(1, most_blocks - kMaxDraftTries + 1);
  std::vector<BlobKey> keys;
  for (int64_t n = most_blocks; n >= least_blocks; --n)
    keys.push_back(prompt.keyer.DraftKey(prompt.chain[n - 1], spec.ToString()));
  const size_t first = store_->FindFirst(keys, deadline).value_or(keys.size());
  return first < keys.size() ? most_blocks - static_cast<int64_t>(first) : 0;
}

std::shared_ptr<const KeyScores> StoredPrefixes::LoadScores(const Prompt& prompt,
                                                            const DraftSpec& spec,
                                                            Deadline deadline) {
  auto scores = std::make_shared<KeyScores>();
  scores->of_head.resize(num_lists());
  const std::string score_key = spec.score_key();
  constexpr size_t kListBytes = kBlockTokens * sizeof(float);
  std::vector<BlobKey> keys;
  for (const PrefixKey& key : prompt.chain) keys.push_back(prompt.keyer.ScoresKey(key, score_key));
  store_->GetMany(keys, deadline, [&](size_t block, absl::StatusOr<BlobBytes> blob) {
    if (!blob.ok()) return false;
    const auto payload =
        OpenPrefixBlob({blob->data(), blob->size()}, PrefixBlobKind::kScores, prompt.chain[block],
                       prompt.BlockIds(static_cast<int64_t>(block)));
    if (!payload.ok() || payload->size() != num_lists() * kListBytes) return false;
    for (size_t list = 0; list < num_lists(); ++list) {
      std::vector<float>& of_head = scores->of_head[list];
      of_head.resize(of_head.size() + kBlockTokens);
      std::memcpy(of_head.data() + block * kBlockTokens, payload->data() + list * kListBytes,
                  kListBytes);
    }
    scores->num_scored += kBlockTokens;
    return true;
  });
  if (scores->num_scored == 0) return nullptr;
  return scores;
}

bool StoredPrefixes::PutIfMissing(const BlobKey& key, PrefixBlobKind kind, const PrefixKey& prefix,
                                  absl::Span<const TokenId> ids, std::string_view payload,
                                  Held held) {
  if (store_->ContainsEverywhere(key)) {
    BlobBytes blob;
    if (held == Held::kTrusted || Fetch(key, kind, prefix, ids, &blob, kNoDeadline).ok()) {
      saved_bytes_ += payload.size();
      return true;
    }
  }
  const std::string head = PrefixBlobHead(kind, prefix, ids, payload.size());
  if (!Put(key, {head, payload})) return false;
  saved_bytes_ += payload.size();
  return true;
}

bool StoredPrefixes::Put(const BlobKey& key, absl::Span<const std::string_view> parts) {
  const absl::Status status = store_->Put(key, parts);
  if (status.ok()) return true;
  const std::lock_guard lock(why_mutex_);
  why_not_saved_ = std::string(status.message());
  return false;
}

std::string StoredPrefixes::why_not_saved() const {
  const std::lock_guard lock(why_mutex_);
  return why_not_saved_;
}

bool StoredPrefixes::Save(const Record& r) {
  std::vector<BlobKey> used = BlobKeys(r.chain);
  used.insert(used.end(), r.score_keys.begin(), r.score_keys.end());
  store_->BeginRecord(used);
  used.clear();
  const bool whole = SaveBlobs(r, &used) && SaveAbout(r, &used);
  store_->EndRecord();
  if (!whole) ++failed_saves_;
  store_->Touch(used);
  return whole;
}

// Last of all: a record speaks of blobs that are there.
bool StoredPrefixes::SaveAbout(const Record& r, std::vector<BlobKey>* used) {
  if (r.chain.empty() || r.about.model_digest.empty()) return true;
  PrefixRecord about = r.about;
  about.num_tokens = static_cast<int64_t>(r.chain.size()) * kBlockTokens;
  about.block_bytes = r.full.block_bytes();
  about.blocks = BlobKeys(r.chain);
  about.scores = r.score_keys;
  if (!r.draft.empty())
    about.drafts.push_back(
        {r.draft_spec, r.draft_key, static_cast<int64_t>(r.draft_tokens), r.draft.size()});
  const BlobKey key = PrefixRecordKey(about.blocks.back());
  used->push_back(key);
  // What this writer has written need not be read again; what is there must be kept.
  const auto known = known_records_.find(key);
  std::string old_text = known != known_records_.end() ? known->second : "";
  if (old_text.empty())
    if (const absl::StatusOr<BlobBytes> old = store_->Get(key); old.ok())
      old_text = TextOf(old->data(), old->size());
  const auto older =
      ParsePrefixRecord({reinterpret_cast<const uint8_t*>(old_text.data()), old_text.size()});
  if (older.ok() && older->blocks == about.blocks)
    about = MergedPrefixRecord(*older, std::move(about));
  const std::string text = EncodePrefixRecord(about);
  if (text != old_text || !store_->ContainsEverywhere(key)) {
    if (!Put(key, {text})) return false;
  }
  if (known_records_.size() >= kMaxKnownRecords) known_records_.clear();
  known_records_[key] = text;
  return true;
}

bool StoredPrefixes::SaveBlobs(const Record& r, std::vector<BlobKey>* used_blobs) {
  std::vector<BlobKey>& used = *used_blobs;
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
  return whole;
}

}  // namespace vericache
