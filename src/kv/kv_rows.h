// Exact K/V rows on their way to another machine, and back into blocks there.
//
// As bytes: position by position, layer by layer, KV head by KV head: K [head_dim] f16, then V
// [head_dim] f16, little-endian; no padding. KvShape::bytes_per_token() a row.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kv_view.h"
#include "kv/full_kv.h"

namespace vericache {

// Appends the committed rows [pos_begin, pos_end) of `full` to *out.
// ERRORS: those of the tier; *out is then of no use.
absl::Status AppendRows(const FullKv& full, int64_t pos_begin, int64_t pos_end, std::string* out);

// Such rows as a view of a full KV that has no others.
class KvRows {
 public:
  // ERRORS: kDataLoss: not a whole number of rows.
  static absl::StatusOr<KvRows> Parse(const KvShape& shape, int64_t pos_begin,
                                      std::string_view bytes);

  int64_t pos_begin() const { return pos_begin_; }
  int64_t pos_end() const { return pos_end_; }
  // Blocks that hold none of the rows are null.
  FullKvView Layer(int layer) const;

 private:
  explicit KvRows(const KvShape& shape) : shape_(shape) {}

  KvShape shape_;
  int64_t pos_begin_ = 0, pos_end_ = 0;
  std::vector<std::vector<uint16_t>> values_;  // of the blocks from pos_begin / 64 on
  std::vector<const uint16_t*> blocks_;        // [ceil(pos_end / 64)]
};

}  // namespace vericache
