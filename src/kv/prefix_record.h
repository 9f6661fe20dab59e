// What a stored prefix consists of, for those who list, check and remove prefixes: names of blobs,
// no K/V. Its key begins with 8 bytes that all records share, so that a store's List() finds them.
//
//   "VCRECRD1", then length-prefixed (u32) texts: model name, model digest (hex), KV format, label;
//   i64 created (seconds since 1970), i64 tokens, u64 bytes of a block;
//   u32 n, n keys of blocks in order of position; u32 n, n keys of scores;
//   u32 n, n drafts: length-prefixed spec, key, i64 tokens, u64 bytes
// Integers are little-endian. Version, key and checksum are the store's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/hash.h"

namespace vericache {

// "vcprefix" in hex: how the keys of all records begin.
inline constexpr std::string_view kPrefixRecordHex = "7663707265666978";

struct PrefixRecord {
  std::string model_name, model_digest, kv_format;
  std::string label;  // what the user called it; may be ""
  int64_t created_s = 0;
  int64_t num_tokens = 0;  // of all blocks
  uint64_t block_bytes = 0;
  std::vector<Sha256Digest> blocks, scores;
  struct Draft {
    std::string spec;  // canonical
    Sha256Digest key{};
    int64_t num_tokens = 0;
    uint64_t num_bytes = 0;
  };
  std::vector<Draft> drafts;
};

// Of the prefix that ends with the block of this key.
Sha256Digest PrefixRecordKey(const Sha256Digest& last_block);
std::string EncodePrefixRecord(const PrefixRecord& record);
// ERRORS: kDataLoss. Texts may hold any bytes.
absl::StatusOr<PrefixRecord> ParsePrefixRecord(absl::Span<const uint8_t> bytes);

// `newer`, and what only `older` has of drafts and scores; the older one's birth, and its label
// where the newer has none.
PrefixRecord MergedPrefixRecord(const PrefixRecord& older, PrefixRecord newer);

}  // namespace vericache
