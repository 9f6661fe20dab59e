// The memory of full KV blocks, in RAM: handed out one by one, taken back, used again.
//
// Blocks are cut from slabs that fill huge pages. What returns is handed out again first, from the
// fullest slab that has some; beyond a slab's worth of it memory goes back to the system, block by
// block, and a slab with the last of its blocks. So a budget that hot blocks leave is really free
// for draft KV and others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace vericache {

class BlockPool {
 public:
  // max_blocks: most blocks handed out at once; 0: as many as memory holds.
  explicit BlockPool(size_t block_bytes, int64_t max_blocks = 0);

  // A block of zeros on a 64-byte boundary. It returns to the pool with its last owner and may
  // outlive the BlockPool object. Null: the limit is reached or there is no memory.
  // THREADS: safe.
  std::shared_ptr<uint16_t[]> Allocate();

  // Applies to the next blocks; nobody is robbed.
  void set_max_blocks(int64_t max_blocks);
  int64_t max_blocks() const;
  int64_t num_used() const;       // handed out now
  int64_t num_used_peak() const;  // the most at once
  // Of the slabs, as far as blocks in them were written and have not gone back to the system: an
  // upper limit of what is resident, used blocks included. 0 where blocks are too small for slabs.
  size_t resident_bytes() const;
  size_t block_bytes() const { return block_bytes_; }

 private:
  struct Core;
  const size_t block_bytes_;
  std::shared_ptr<Core> core_;  // lives as long as its blocks
};

}  // namespace vericache
