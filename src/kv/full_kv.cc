#include "kv/full_kv.h"

#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/huge_memory.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/types.h"

namespace vericache {

namespace {

// Below this, blocks lie in ordinary memory: models so small do not care about page sizes.
constexpr size_t kHugeBlockBytes = size_t{256} << 10;

// Blocks allocated together, so that they fill huge pages with as little waste as possible.
int64_t BlocksPerSlab(size_t block_bytes) {
#if defined(__SANITIZE_ADDRESS__)
  return 1;  // a red zone around every block finds more
#endif
  if (block_bytes < kHugeBlockBytes) return 1;
  int64_t best = 1;
  double least = 2.0;
  for (int64_t n = 1; n <= 8; ++n) {
    const size_t bytes = n * block_bytes;
    const double ratio = static_cast<double>(RoundUp(bytes, kHugePage)) / bytes;
    if (ratio < least) {
      least = ratio;
      best = n;
    }
  }
  return best;
}

std::shared_ptr<uint8_t[]> AllocateZeroed(size_t bytes) {
  auto* data = static_cast<uint8_t*>(std::aligned_alloc(64, bytes));
  if (data == nullptr) return nullptr;
  std::memset(data, 0, bytes);
  return {data, [](uint8_t* p) { std::free(p); }};
}

}  // namespace

FullKv::FullKv(const KvShape& shape, const KernelTable* kernels)
    : shape_(shape),
      kernels_(kernels),
      block_values_(shape.layer_block_values() * shape.num_layers),
      slab_blocks_(BlocksPerSlab(block_stride())),
      row_(shape.head_dim) {}

FullKv FullKv::Fork(int64_t num_tokens) const {
  VC_CHECK(num_tokens <= num_tokens_);
  FullKv fork(shape_, kernels_);
  fork.num_tokens_ = num_tokens;
  const int64_t used = CeilDiv(num_tokens, kBlockTokens);
  fork.blocks_.assign(blocks_.begin(), blocks_.begin() + used);
  fork.block_pointers_.assign(block_pointers_.begin(), block_pointers_.begin() + used);
  return fork;
}

absl::Status FullKv::AddBlock() {
  if (slab_left_ == 0) {
    const size_t bytes = slab_blocks_ * block_stride();
    slab_ = slab_blocks_ > 1 ? AllocateHuge(bytes) : AllocateZeroed(bytes);
    if (slab_ == nullptr)
      return absl::ResourceExhaustedError(StrCat(
          "no memory for ", bytes, " bytes of KV at position ", num_blocks() * kBlockTokens));
    slab_left_ = slab_blocks_;
  }
  uint8_t* data = slab_.get() + (slab_blocks_ - slab_left_) * block_stride();
  --slab_left_;
  // A block keeps its slab alive.
  blocks_.emplace_back(slab_, reinterpret_cast<uint16_t*>(data));
  block_pointers_.push_back(blocks_.back().get());
  if (slab_left_ == 0) slab_.reset();
  return absl::OkStatus();
}

absl::Status FullKv::Reserve(int64_t num_rows) {
  const int64_t open = num_tokens_ / kBlockTokens;
  if (num_tokens_ % kBlockTokens != 0 && blocks_[open].use_count() > 1) {
    const std::shared_ptr<uint16_t[]> shared = blocks_[open];
    // A copy is appended as a new block and then moved into the shared one's place.
    VC_RETURN_IF_ERROR(AddBlock());
    std::memcpy(blocks_.back().get(), shared.get(), block_bytes());
    blocks_[open] = std::move(blocks_.back());
    block_pointers_[open] = blocks_[open].get();
    blocks_.pop_back();
    block_pointers_.pop_back();
  }
  while (num_blocks() * kBlockTokens < num_tokens_ + num_rows) VC_RETURN_IF_ERROR(AddBlock());
  return absl::OkStatus();
}

absl::Status FullKv::ResizeForLoad(int64_t num_tokens) {
  VC_CHECK(num_tokens_ == 0);
  VC_RETURN_IF_ERROR(Reserve(num_tokens));
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
      uint16_t* k_dst = base + shape_.head_block_values() * head;
      uint16_t* v_dst = k_dst + shape_.k_block_values();
      kernels_->f32_to_f16(k + src, d, row_.data());
      uint16_t* group = k_dst + (slot / kKvLanes) * d * kKvLanes + slot % kKvLanes;
      for (int c = 0; c < d; ++c) group[c * kKvLanes] = row_[c];
      kernels_->f32_to_f16(v + src, d, row_.data());
      for (int c = 0; c < d; ++c) v_dst[((c / 16) * kBlockTokens + slot) * 16 + c % 16] = row_[c];
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

KvView FullKv::Layer(int layer) {
  KvView view;
  view.kind = KvView::Kind::kFull;
  view.full = Committed(layer);
  view.full.num_tokens += appended_;
  return view;
}

void FullKv::Commit(int64_t num_rows) {
  VC_CHECK(num_rows >= 0 && num_rows <= appended_);
  num_tokens_ += num_rows;
  appended_ = 0;
}

}  // namespace vericache
