// Where full KV lives when it does not fit into RAM: one per engine, shared by its sequences.
//
//   BlockPool    blocks in RAM: hot ones, and those being written
//   SpillFile    one unlinked file a sequence, plane by plane: part of block b in plane p lies at
//                (p * file_blocks + b) * part_bytes
//   StagingPool  through which spilled parts come back, read ahead by a ReadQueue
//
// A plane is one KV head of one layer: layer * num_kv_heads + kv_head. Attention needs one head at
// a time, so staging holds two heads of a layer, not two layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kv_view.h"
#include "kv/block_pool.h"
#include "kv/kv_stream.h"
#include "kv/staging.h"
#include "storage/read_queue.h"
#include "storage/spill_file.h"

namespace vericache {

struct KvTierOptions {
  std::string folder;            // of the spill files
  int64_t max_tokens = 0;        // longest sequence
  int64_t max_blocks = 0;        // blocks in RAM at once, hot and open ones
  size_t staging_bytes = 0;      // rounded down to whole slots, at least one
  int64_t bytes_per_second = 0;  // reads no faster than this; 0: no limit
  ReadBackend backend = ReadBackend::kAuto;
  std::shared_ptr<FaultPlan> faults;  // for tests; may be null
};

// One plane of one block, on disk and in staging.
size_t KvPartBytes(const KvShape& shape);
// Blocks of one plane that share a staging slot and are read in one piece: of 512 KiB from
// head_dim 64 on. SOURCE: bench of read_queue, docs/benchmarks.md.
int64_t KvSlotBlocks(const KvShape& shape);
size_t KvSlotBytes(const KvShape& shape);

class KvTier {
 public:
  // ERRORS: the folder's (SpillFile::Create), the queue's, kInvalidArgument, kResourceExhausted.
  static absl::StatusOr<std::shared_ptr<KvTier>> Create(const KvShape& shape,
                                                        const KvTierOptions& options);

  absl::StatusOr<std::shared_ptr<SpillFile>> NewFile() const;
  int num_planes() const { return shape_.num_layers * shape_.num_kv_heads; }
  uint64_t OffsetOf(int plane, int64_t block) const {
    return (static_cast<uint64_t>(plane) * file_blocks_ + block) * part_bytes_;
  }
  uint64_t plane_stride() const { return static_cast<uint64_t>(file_blocks_) * part_bytes_; }
  size_t part_bytes() const { return part_bytes_; }
  int64_t file_blocks() const { return file_blocks_; }
  const KvShape& shape() const { return shape_; }
  BlockPool& pool() { return *pool_; }
  StagingPool& staging() { return *staging_; }
  ReadQueue& queue() { return *queue_; }
  // What a failed read leaves to point to: [part_bytes] of zeros.
  const uint8_t* zero_part() const { return zeros_.get(); }

 private:
  KvTier(const KvShape& shape, const KvTierOptions& options);

  const KvShape shape_;
  const KvTierOptions options_;
  const size_t part_bytes_;
  const int64_t file_blocks_;
  std::shared_ptr<uint8_t[]> zeros_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<StagingPool> staging_;
  std::unique_ptr<ReadQueue> queue_;  // goes first: it writes into staging
};

}  // namespace vericache
