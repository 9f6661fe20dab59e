// What a stored prefix's blobs hold: whose they are, then the bytes.
//
//   offset  bytes
//        0      4  kind: 1 a block of full KV, 2 a draft KV, 3 scores
//        4      4  number of token ids, n <= 64
//        8      8  payload bytes
//       16     16  fingerprint of all token ids from position 0 to the end of these
//       32    4 n  the block's token ids
//  rounded up to a multiple of 64: payload
//     block   f16 [layer][KV head][K | V] of 64 positions, as FullKv keeps them
//     draft   what DraftKv::AppendTo writes; n < 64 where the prefix ends within a block
//     scores  fp32 [layer][KV head][64]
// Integers and values are little-endian. Version, key and checksum are the store's
// (storage/blob_header.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/types.h"
#include "kv/prefix_key.h"

namespace vericache {

enum class PrefixBlobKind : uint32_t { kBlock = 1, kDraft = 2, kScores = 3 };

// What stands before the payload.
std::string PrefixBlobHead(PrefixBlobKind kind, const PrefixKey& key, absl::Span<const TokenId> ids,
                           uint64_t payload_bytes);

// The payload within `blob`, if it is what was asked for.
// ERRORS: kNotFound: of other tokens (a collision of keys); kDataLoss: sizes that do not fit.
absl::StatusOr<absl::Span<const uint8_t>> OpenPrefixBlob(absl::Span<const uint8_t> blob,
                                                         PrefixBlobKind kind, const PrefixKey& key,
                                                         absl::Span<const TokenId> ids);

}  // namespace vericache
