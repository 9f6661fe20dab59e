#include "kv/kv_tier.h"

#include <algorithm>

#include "base/huge_memory.h"
#include "base/status_macros.h"
#include "base/types.h"

namespace vericache {

size_t KvPartBytes(const KvShape& shape) {
  return RoundUp(shape.head_block_values() * sizeof(uint16_t), kSpillAlign);
}

int64_t KvSlotBlocks(const KvShape& shape) {
  constexpr int64_t kReadBytes = 512 << 10;
  const int64_t part_bytes = static_cast<int64_t>(KvPartBytes(shape));
  if (part_bytes < kReadBytes / 32) return 16;  // small heads: slots should not outgrow budgets
  return std::clamp<int64_t>(kReadBytes / part_bytes, 4, 32);
}

size_t KvSlotBytes(const KvShape& shape) { return KvSlotBlocks(shape) * KvPartBytes(shape); }

KvTier::KvTier(const KvShape& shape, const KvTierOptions& options)
    : shape_(shape),
      options_(options),
      part_bytes_(KvPartBytes(shape)),
      file_blocks_(CeilDiv(options.max_tokens, kBlockTokens) + 1),
      zeros_(AllocateHuge(part_bytes_)),
      pool_(std::make_unique<BlockPool>(
          shape.layer_block_values() * shape.num_layers * sizeof(uint16_t), options.max_blocks)) {}

absl::StatusOr<std::shared_ptr<KvTier>> KvTier::Create(const KvShape& shape,
                                                       const KvTierOptions& options) {
  std::shared_ptr<KvTier> tier(new KvTier(shape, options));
  if (tier->zeros_ == nullptr) return absl::ResourceExhaustedError("no memory for the KV tier");
  const size_t slot_bytes = KvSlotBytes(shape);
  const size_t num_slots = std::max<size_t>(1, options.staging_bytes / slot_bytes);
  VC_ASSIGN_OR_RETURN(tier->staging_, StagingPool::Create(num_slots, slot_bytes));
  ReadQueueOptions queue;
  queue.backend = options.backend;
  queue.bytes_per_second = options.bytes_per_second;
  // Staging is not registered with the kernel: that would take all of it at once, and a budget
  // gives it out as sequences need it.
  queue.faults = options.faults;
  VC_ASSIGN_OR_RETURN(tier->queue_, MakeReadQueue(queue));
  // The first file now: a folder that cannot be written to is told before any work is done.
  VC_RETURN_IF_ERROR(tier->NewFile().status());
  return tier;
}

absl::StatusOr<std::shared_ptr<SpillFile>> KvTier::NewFile() const {
  return SpillFile::Create(options_.folder, options_.faults);
}

}  // namespace vericache
