// What stands before a blob's payload wherever it is stored: version, key, length, checksum.
//
//   offset  bytes
//        0      8  "VCBLOB01"
//        8      4  version, 1
//       12      4  0
//       16     32  key
//       48      8  payload bytes
//       56     16  XXH3-128 of bytes [0, 56), then the payload
//       72     56  0, so that the payload begins on a 64-byte boundary
// Integers are little-endian. The checksum finds accidents, not forgeries: whoever can write into a
// store can make any blob, so a store must be trusted like the model file.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "storage/blob_store.h"

namespace vericache {

inline constexpr size_t kBlobHeaderBytes = 128;
using BlobHeader = std::array<uint8_t, kBlobHeaderBytes>;

BlobHeader MakeBlobHeader(const BlobKey& key, absl::Span<const std::string_view> parts);
// What the header says, true or not.
uint64_t PayloadBytesOf(const BlobHeader& header);

// Checks a stored object of `file_bytes` bytes by its header alone.
// ERRORS: kDataLoss: version, key or length.
absl::Status CheckBlobHeader(const BlobHeader& header, const BlobKey& key, uint64_t file_bytes);
// Room for a payload whose length somebody else has said. False: there is no memory for it.
bool MakeRoomFor(uint64_t payload_bytes, BlobBytes* payload);
// ERRORS: kDataLoss: the checksum.
absl::Status CheckBlobPayload(const BlobHeader& header, absl::Span<const uint8_t> payload);

}  // namespace vericache
