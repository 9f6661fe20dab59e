// Exact K/V rows packed for a slow link: some 5 bits a value instead of 16, lossy.
//
// Only drafts are made of what is unpacked, so the loss can cost agreement and nothing else. Keys
// have channels that are large in every row (biases), which would leave no codes for the others: a
// packed lot begins with its *base*, the middle of what its rows have in each channel of the keys,
// and keys are coded as differences from it. A lot has 64 rows, the last one what is left: such
// channels turn with the position, so that what far rows have in common is less.
//
// A group is up to 32 channels of one K or V vector:
//     u8 scale    bits 14 to 7 of an f16 number, whose other bits are 0
//     u8 zero     value = scale * (code - zero)
//     codes       b bits each, the first one lowest, padded to a whole byte
// A lot is:
//     base        [layers][KV heads] groups of K, b = 8
//     rows        [rows][layers][KV heads] groups of K beyond the base, then of V, b = 4
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/kv_view.h"

namespace vericache {

// Bytes of `num_rows` rows.
int64_t PackedRowsBytes(const KvShape& shape, int64_t num_rows);

// rows: as AppendRows() (kv/kv_rows.h) makes them. What is not finite counts as 0. The same bytes
// on every machine. REQUIRES: a whole number of rows.
std::string PackRows(const KvShape& shape, std::string_view rows);

// Such rows again, in f16, each value within a step of its group of what it was; all are finite.
// ERRORS: kDataLoss: not a whole number of rows, more than `max_rows`, or a scale that is none.
absl::StatusOr<std::string> UnpackRows(const KvShape& shape, int64_t max_rows,
                                       std::string_view packed);

}  // namespace vericache
