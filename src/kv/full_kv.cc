#include "kv/full_kv.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/types.h"
#include "kv/block_layout.h"

namespace vericache {

FullKv::FullKv(const KvShape& shape, const KernelTable* kernels, std::shared_ptr<KvTier> tier)
    : shape_(shape),
      kernels_(kernels),
      tier_(std::move(tier)),
      block_values_(shape.layer_block_values() * shape.num_layers),
      row_(shape.head_dim) {
  if (tier_ == nullptr) pool_ = std::make_shared<BlockPool>(block_bytes());
}

FullKv FullKv::Fork(int64_t num_tokens) const {
  VC_CHECK(num_tokens <= num_tokens_);
  FullKv fork(shape_, kernels_, tier_);
  fork.hot_blocks_ = hot_blocks_;
  fork.fetch_slots_ = fetch_slots_;
  fork.num_tokens_ = num_tokens;
  const int64_t used = CeilDiv(num_tokens, kBlockTokens);
  fork.blocks_.assign(blocks_.begin(), blocks_.begin() + used);
  fork.block_pointers_.assign(block_pointers_.begin(), block_pointers_.begin() + used);
  fork.cold_.assign(cold_.begin(),
                    cold_.begin() + std::min<int64_t>(used, static_cast<int64_t>(cold_.size())));
  fork.num_cold_ = std::count(fork.blocks_.begin(), fork.blocks_.end(), nullptr);
  return fork;
}

absl::StatusOr<std::shared_ptr<uint16_t[]>> FullKv::NewBlock() {
  BlockPool& pool = tier_ != nullptr ? tier_->pool() : *pool_;
  std::shared_ptr<uint16_t[]> block = pool.Allocate();
  if (block != nullptr) return block;
  const int64_t limit = pool.max_blocks();
  if (limit > 0 && pool.num_used() >= limit)
    return absl::ResourceExhaustedError(
        StrCat("the KV memory holds ", limit, " blocks of ", block_bytes(),
               " bytes and all are in use: raise --kv-memory or run fewer requests at once"));
  return absl::ResourceExhaustedError(StrCat(
      "no memory for ", block_bytes(), " bytes of KV at position ", num_blocks() * kBlockTokens));
}

absl::Status FullKv::AddBlock() {
  VC_ASSIGN_OR_RETURN(std::shared_ptr<uint16_t[]> block, NewBlock());
  block_pointers_.push_back(block.get());
  blocks_.push_back(std::move(block));
  return absl::OkStatus();
}

absl::Status FullKv::Reserve(int64_t num_rows) {
  const int64_t open = num_tokens_ / kBlockTokens;
  const bool partial = num_tokens_ % kBlockTokens != 0;
  if (partial && (blocks_[open] == nullptr || blocks_[open].use_count() > 1)) {
    VC_ASSIGN_OR_RETURN(std::shared_ptr<uint16_t[]> copy, NewBlock());
    VC_RETURN_IF_ERROR(ReadBlock(open, copy.get()));
    if (blocks_[open] == nullptr) {
      CancelFetch();
      cold_[open] = {};
      --num_cold_;
    }
    block_pointers_[open] = copy.get();
    blocks_[open] = std::move(copy);
  }
  const int64_t before = num_blocks();
  while (num_blocks() * kBlockTokens < num_tokens_ + num_rows) {
    if (absl::Status status = AddBlock(); !status.ok()) {
      blocks_.resize(before);
      block_pointers_.resize(before);
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status FullKv::ResizeForLoad(int64_t num_tokens) {
  VC_CHECK(num_tokens >= num_tokens_ && num_tokens_ % kBlockTokens == 0);
  VC_RETURN_IF_ERROR(Reserve(num_tokens - num_tokens_));
  num_tokens_ = num_tokens;
  return absl::OkStatus();
}

void FullKv::Append(int layer, const float* k, const float* v, int64_t num_rows) {
  VC_CHECK((num_tokens_ + num_rows) <= num_blocks() * kBlockTokens);
  const int d = shape_.head_dim;
  for (int64_t i = 0; i < num_rows; ++i) {
    const int64_t pos = num_tokens_ + i, slot = pos % kBlockTokens;
    uint16_t* base = blocks_[pos / kBlockTokens].get() + shape_.layer_block_values() * layer;
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      const size_t src = (i * shape_.num_kv_heads + head) * d;
      uint16_t* of_head = base + shape_.head_block_values() * head;
      uint16_t* key = of_head + KeyAt(shape_, slot);
      kernels_->f32_to_f16(k + src, d, row_.data());
      for (int c = 0; c < d; ++c) key[c * kKvLanes] = row_[c];
      kernels_->f32_to_f16(v + src, d, row_.data());
      for (int c = 0; c < d; ++c) of_head[ValueAt(shape_, slot, c)] = row_[c];
    }
  }
  appended_ = num_rows;
}

FullKvView FullKv::Committed(int layer) const {
  FullKvView view;
  view.blocks = block_pointers_.data();
  view.layer_offset = shape_.layer_block_values() * layer;
  view.shape = shape_;
  view.num_tokens = num_tokens_;
  return view;
}

void FullKv::Commit(int64_t num_rows) {
  VC_CHECK(num_rows >= 0 && num_rows <= appended_);
  num_tokens_ += num_rows;
  appended_ = 0;
}

}  // namespace vericache
