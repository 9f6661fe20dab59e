#include "kv/prefix_key.h"

#include "base/check.h"
#include "base/text.h"

namespace vericache {
namespace {

// Every field has a tag of its own, so that a salt "x" is nothing like a model "x", and a length,
// so that no field can reach into the next.
enum class Tag : uint8_t {
  kModel = 1,
  kTokenizer,
  kRope,
  kKvFormat,
  kContract,
  kSalt,
  kParent,
  kTokenIds,
  kBlobKind,
  kSpec,
};

void AppendField(Tag tag, std::string_view value, std::string* out) {
  const uint64_t size = value.size();
  out->push_back(static_cast<char>(tag));
  for (int shift = 0; shift < 64; shift += 8) out->push_back(static_cast<char>(size >> shift));
  out->append(value);
}

std::string_view BytesOf(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string_view BytesOf(absl::Span<const TokenId> ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(TokenId)};
}

}  // namespace

std::string KvFormatText(const KvShape& shape) {
  return StrCat("f16 block", kBlockTokens, " layers=", shape.num_layers,
                " heads=", shape.num_kv_heads, " dim=", shape.head_dim);
}

PrefixKeyer::PrefixKeyer(const PrefixIdentity& identity, int digest_bits)
    : digest_bits_(digest_bits) {
  VC_CHECK(digest_bits >= 1 && digest_bits <= 256);
  AppendField(Tag::kModel, identity.model_digest, &identity_);
  AppendField(Tag::kTokenizer, identity.tokenizer_digest, &identity_);
  AppendField(Tag::kRope, identity.rope, &identity_);
  AppendField(Tag::kKvFormat, identity.kv_format, &identity_);
  AppendField(Tag::kContract, identity.contract, &identity_);
  AppendField(Tag::kSalt, identity.salt, &identity_);
}

Sha256Digest PrefixKeyer::Digest(std::string fields) const {
  fields.insert(0, identity_);
  Sha256Digest digest = Sha256Of(fields.data(), fields.size());
  for (int i = 0; i < 32; ++i) {
    const int kept = digest_bits_ - 8 * i;
    if (kept < 8) digest[i] = kept <= 0 ? 0 : digest[i] & (0xff << (8 - kept));
  }
  return digest;
}

PrefixKey PrefixKeyer::Root() const { return {}; }

PrefixKey PrefixKeyer::Next(const PrefixKey& parent, absl::Span<const TokenId> ids) const {
  std::string fields;
  AppendField(Tag::kBlobKind, "block", &fields);
  AppendField(Tag::kParent, BytesOf(parent.digest), &fields);
  AppendField(Tag::kTokenIds, BytesOf(ids), &fields);
  PrefixKey key;
  key.digest = Digest(std::move(fields));
  Xxh3Stream fingerprint;
  fingerprint.Update(parent.fingerprint.data(), parent.fingerprint.size());
  fingerprint.Update(ids.data(), ids.size() * sizeof(TokenId));
  key.fingerprint = fingerprint.Finish();
  return key;
}

std::vector<PrefixKey> PrefixKeyer::Chain(absl::Span<const TokenId> tokens) const {
  std::vector<PrefixKey> chain;
  PrefixKey key = Root();
  for (size_t begin = 0; begin + kBlockTokens <= tokens.size(); begin += kBlockTokens) {
    key = Next(key, tokens.subspan(begin, kBlockTokens));
    chain.push_back(key);
  }
  return chain;
}

Sha256Digest PrefixKeyer::DraftKey(const PrefixKey& last, std::string_view spec) const {
  std::string fields;
  AppendField(Tag::kBlobKind, "draft", &fields);
  AppendField(Tag::kParent, BytesOf(last.digest), &fields);
  AppendField(Tag::kSpec, spec, &fields);
  return Digest(std::move(fields));
}

Sha256Digest PrefixKeyer::ScoresKey(const PrefixKey& block, std::string_view score_key) const {
  std::string fields;
  AppendField(Tag::kBlobKind, "scores", &fields);
  AppendField(Tag::kParent, BytesOf(block.digest), &fields);
  AppendField(Tag::kSpec, score_key, &fields);
  return Digest(std::move(fields));
}

}  // namespace vericache
