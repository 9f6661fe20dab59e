#include "kv/kv_rows.h"

#include <cstring>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/types.h"
#include "kv/block_layout.h"

namespace vericache {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

// Of all layers and heads of one position. row: [layers][heads][K head_dim, V head_dim].
void RowOfBlock(const KvShape& shape, const uint16_t* block, int64_t slot, uint16_t* row) {
  for (int list = 0; list < shape.num_layers * shape.num_kv_heads; ++list) {
    const uint16_t* head = block + shape.head_block_values() * list;
    const uint16_t* key = head + KeyAt(shape, slot);
    for (int c = 0; c < shape.head_dim; ++c) *row++ = key[c * kKvLanes];
    for (int c = 0; c < shape.head_dim; ++c) *row++ = head[ValueAt(shape, slot, c)];
  }
}

void RowIntoBlock(const KvShape& shape, const uint16_t* row, int64_t slot, uint16_t* block) {
  for (int list = 0; list < shape.num_layers * shape.num_kv_heads; ++list) {
    uint16_t* head = block + shape.head_block_values() * list;
    uint16_t* key = head + KeyAt(shape, slot);
    for (int c = 0; c < shape.head_dim; ++c) key[c * kKvLanes] = *row++;
    for (int c = 0; c < shape.head_dim; ++c) head[ValueAt(shape, slot, c)] = *row++;
  }
}

}  // namespace

absl::Status AppendRows(const FullKv& full, int64_t pos_begin, int64_t pos_end, std::string* out) {
  VC_CHECK(0 <= pos_begin && pos_begin <= pos_end && pos_end <= full.num_tokens());
  const KvShape& shape = full.shape();
  std::vector<uint16_t> scratch, row(shape.bytes_per_token() / sizeof(uint16_t));
  const uint16_t* block = nullptr;
  for (int64_t pos = pos_begin; pos < pos_end; ++pos) {
    if (block == nullptr || pos % kBlockTokens == 0) {
      const int64_t idx = pos / kBlockTokens;
      block = full.block(idx);
      if (block == nullptr) {
        scratch.resize(full.block_bytes() / sizeof(uint16_t));
        VC_RETURN_IF_ERROR(full.ReadBlock(idx, scratch.data()));
        block = scratch.data();
      }
    }
    RowOfBlock(shape, block, pos % kBlockTokens, row.data());
    out->append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(uint16_t));
  }
  return absl::OkStatus();
}

absl::StatusOr<KvRows> KvRows::Parse(const KvShape& shape, int64_t pos_begin,
                                     std::string_view bytes) {
  const size_t row_bytes = shape.bytes_per_token();
  if (pos_begin < 0 || bytes.size() % row_bytes != 0)
    return absl::DataLossError(
        StrCat(bytes.size(), " bytes of K/V rows are not a multiple of ", row_bytes));
  KvRows rows(shape);
  rows.pos_begin_ = pos_begin;
  rows.pos_end_ = pos_begin + static_cast<int64_t>(bytes.size() / row_bytes);
  const int64_t first = pos_begin / kBlockTokens;
  rows.blocks_.resize(CeilDiv(rows.pos_end_, kBlockTokens), nullptr);
  std::vector<uint16_t> row(row_bytes / sizeof(uint16_t));
  for (int64_t pos = pos_begin; pos < rows.pos_end_; ++pos) {
    const int64_t idx = pos / kBlockTokens;
    if (idx - first == static_cast<int64_t>(rows.values_.size())) {
      rows.values_.emplace_back(shape.layer_block_values() * shape.num_layers, 0);
      rows.blocks_[idx] = rows.values_.back().data();
    }
    std::memcpy(row.data(), bytes.data() + (pos - pos_begin) * row_bytes, row_bytes);
    RowIntoBlock(shape, row.data(), pos % kBlockTokens, rows.values_[idx - first].data());
  }
  return rows;
}

FullKvView KvRows::Layer(int layer) const {
  FullKvView view;
  view.blocks = blocks_.data();
  view.layer_offset = shape_.layer_block_values() * layer;
  view.shape = shape_;
  view.num_tokens = pos_end_;
  return view;
}

}  // namespace vericache
