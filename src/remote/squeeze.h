// Makes blobs of f16 values smaller without loss, for links slower than the work it takes.
//
// The high bytes of f16 K/V (sign, exponent, two bits) hold about six bits of information, the low
// ones eight: only the high ones are compressed (docs/decisions/0013-squeezed-blobs.md). Layout:
//
//   offset  bytes
//        0      8  "VCSQZ\0\0\1"
//        8      8  bytes of the blob, n
//       16      8  bytes of the frame, f
//       24      f  zstd frame of the blob's bytes 1, 3, 5, ...; n / 2 of them
//     24+f  n-n/2  bytes 0, 2, 4, ... as they are
//
// So a squeezed blob is at least half as long as what it stands for: hostile ones cannot ask for
// more memory than twice what was sent.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "storage/blob_store.h"

namespace vericache {

// "" where it would save less than a thirty-second: then the blob is better sent as it is.
std::string Squeeze(std::string_view blob);

// Any blob that nobody squeezed begins otherwise.
bool IsSqueezed(absl::Span<const uint8_t> bytes);

// REQUIRES: IsSqueezed(bytes). ERRORS: kDataLoss: not what Squeeze() makes.
absl::StatusOr<BlobBytes> Unsqueeze(absl::Span<const uint8_t> bytes);

}  // namespace vericache
