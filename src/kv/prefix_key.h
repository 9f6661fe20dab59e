// Names of stored prefixes: a chain of SHA-256 digests over everything the K/V of a block depend
// on.
//
// A key covers, as tagged and length-prefixed fields: model digest, tokenizer digest, rope
// settings, KV format and layout version, contract version, salt, the parent's key and the block's
// token ids. Two fields can never run into each other, so equal keys mean equal K/V. Even so token
// ids are stored in each blob and compared on every hit, and so is a second fingerprint of all ids
// before them: a collision of keys is a miss (GHSA-rm76-4mrf-v9r8 was a predictable hash).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "base/hash.h"
#include "base/types.h"
#include "kernels/kv_view.h"

namespace vericache {

// What the K/V of a token sequence depend on besides the tokens.
struct PrefixIdentity {
  std::string model_digest;      // hex SHA-256 of the model file
  std::string tokenizer_digest;  // hex SHA-256 of its tables
  std::string rope;              // every setting that turns positions into angles
  std::string kv_format;         // number format, shape and block layout: KvFormatText()
  std::string contract;          // the numeric contract (docs/exactness.md)
  std::string salt;              // tenants that must not share have different ones
};

// "f16 block64 layers=2 heads=2 dim=32": format, layout version and shape of full KV blocks.
std::string KvFormatText(const KvShape& shape);

// Names the K/V of the tokens from position 0 to the end of one block.
struct PrefixKey {
  Sha256Digest digest{};
  std::array<uint8_t, 16> fingerprint{};  // XXH3-128, chained, over all token ids so far
};

class PrefixKeyer {
 public:
  // digest_bits: 256, or fewer in tests, where collisions are wanted.
  explicit PrefixKeyer(const PrefixIdentity& identity, int digest_bits = 256);

  // Before the first block.
  PrefixKey Root() const;
  // The block of `ids` behind `parent`: 64 ids, or fewer at the end of a sequence.
  PrefixKey Next(const PrefixKey& parent, absl::Span<const TokenId> ids) const;
  // Keys of all whole blocks of `tokens`, in order.
  std::vector<PrefixKey> Chain(absl::Span<const TokenId> tokens) const;

  // The draft KV that `spec` (canonical) makes of all tokens up to `last`.
  Sha256Digest DraftKey(const PrefixKey& last, std::string_view spec) const;
  // The scores of one block's positions by DraftSpec::score_key().
  Sha256Digest ScoresKey(const PrefixKey& block, std::string_view score_key) const;

 private:
  Sha256Digest Digest(std::string fields) const;

  std::string identity_;  // its fields, encoded
  int digest_bits_;
};

}  // namespace vericache
