#include "kv/prefix_record.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace vericache {
namespace {

constexpr std::string_view kMagic = "VCRECRD1";
constexpr std::string_view kMark = "vcprefix";
constexpr uint32_t kMaxKeys = 1 << 20;  // of blocks: 64M tokens
constexpr uint32_t kMaxDrafts = 1 << 10;
constexpr uint32_t kMaxTextBytes = 1 << 16;

template <typename T>
void Append(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendText(std::string* out, std::string_view text) {
  text = text.substr(0, kMaxTextBytes);
  Append(out, static_cast<uint32_t>(text.size()));
  out->append(text);
}

void AppendKey(std::string* out, const Sha256Digest& key) {
  out->append(reinterpret_cast<const char*>(key.data()), key.size());
}

// Takes values off the front; after a failure everything fails.
class Taker {
 public:
  explicit Taker(absl::Span<const uint8_t> bytes) : left_(bytes) {}

  template <typename T>
  T Number() {
    T value{};
    Bytes(&value, sizeof(value));
    return value;
  }
  std::string Text() {
    const uint32_t size = Number<uint32_t>();
    std::string text;
    if (size > kMaxTextBytes || size > left_.size()) good_ = false;
    if (!good_) return text;
    text.resize(size);
    Bytes(text.data(), size);
    return text;
  }
  Sha256Digest Key() {
    Sha256Digest key{};
    Bytes(key.data(), key.size());
    return key;
  }
  std::vector<Sha256Digest> Keys() {
    const uint32_t count = Count(kMaxKeys, sizeof(Sha256Digest));
    std::vector<Sha256Digest> keys(count);
    for (Sha256Digest& key : keys) key = Key();
    return keys;
  }
  // A number of things of at least `least_bytes` each.
  uint32_t Count(uint32_t max, size_t least_bytes) {
    const uint32_t count = Number<uint32_t>();
    if (count > max || count > left_.size() / least_bytes) good_ = false;
    return good_ ? count : 0;
  }
  void Bytes(void* to, size_t size) {
    if (size > left_.size()) good_ = false;
    if (!good_ || size == 0) return;
    std::memcpy(to, left_.data(), size);
    left_.remove_prefix(size);
  }
  bool at_good_end() const { return good_ && left_.empty(); }

 private:
  absl::Span<const uint8_t> left_;
  bool good_ = true;
};

}  // namespace

Sha256Digest PrefixRecordKey(const Sha256Digest& last_block) {
  Sha256Digest key = last_block;
  std::memcpy(key.data(), kMark.data(), kMark.size());
  return key;
}

std::string EncodePrefixRecord(const PrefixRecord& r) {
  std::string out(kMagic);
  for (const std::string* text : {&r.model_name, &r.model_digest, &r.kv_format, &r.label})
    AppendText(&out, *text);
  Append(&out, r.created_s);
  Append(&out, r.num_tokens);
  Append(&out, r.block_bytes);
  for (const auto* keys : {&r.blocks, &r.scores}) {
    Append(&out, static_cast<uint32_t>(keys->size()));
    for (const Sha256Digest& key : *keys) AppendKey(&out, key);
  }
  Append(&out, static_cast<uint32_t>(r.drafts.size()));
  for (const PrefixRecord::Draft& draft : r.drafts) {
    AppendText(&out, draft.spec);
    AppendKey(&out, draft.key);
    Append(&out, draft.num_tokens);
    Append(&out, draft.num_bytes);
  }
  return out;
}

absl::StatusOr<PrefixRecord> ParsePrefixRecord(absl::Span<const uint8_t> bytes) {
  const absl::Status damaged = absl::DataLossError("a prefix's record does not fit its own sizes");
  if (bytes.size() < kMagic.size() || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return damaged;
  Taker take(bytes.subspan(kMagic.size()));
  PrefixRecord r;
  for (std::string* text : {&r.model_name, &r.model_digest, &r.kv_format, &r.label})
    *text = take.Text();
  r.created_s = take.Number<int64_t>();
  r.num_tokens = take.Number<int64_t>();
  r.block_bytes = take.Number<uint64_t>();
  r.blocks = take.Keys();
  r.scores = take.Keys();
  const uint32_t num_drafts = take.Count(kMaxDrafts, 4 + sizeof(Sha256Digest) + 16);
  for (uint32_t i = 0; i < num_drafts; ++i) {
    PrefixRecord::Draft draft;
    draft.spec = take.Text();
    draft.key = take.Key();
    draft.num_tokens = take.Number<int64_t>();
    draft.num_bytes = take.Number<uint64_t>();
    r.drafts.push_back(std::move(draft));
  }
  if (!take.at_good_end() || r.num_tokens < 0 || r.blocks.empty()) return damaged;
  return r;
}

PrefixRecord MergedPrefixRecord(const PrefixRecord& older, PrefixRecord newer) {
  for (const PrefixRecord::Draft& draft : older.drafts) {
    const bool replaced = std::any_of(newer.drafts.begin(), newer.drafts.end(),
                                      [&](const auto& d) { return d.key == draft.key; });
    if (!replaced && newer.drafts.size() < kMaxDrafts) newer.drafts.push_back(draft);
  }
  for (const Sha256Digest& key : older.scores)
    if (std::find(newer.scores.begin(), newer.scores.end(), key) == newer.scores.end() &&
        newer.scores.size() < kMaxKeys)
      newer.scores.push_back(key);
  newer.created_s = older.created_s;
  if (newer.label.empty()) newer.label = older.label;
  return newer;
}

}  // namespace vericache
