// The full KV of one sequence: the authority. f16, in blocks of 64 positions.
//
// Rows enter in two steps. A forward pass appends provisional rows behind the committed ones; the
// owner then commits a prefix of them, and the rest is forgotten. Only prefill and the verifier can
// commit (the private part below), so nothing a drafter computed can ever enter.
// A fork shares whole blocks and copies the open one when either side writes (copy on write).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/types.h"
#include "kernels/kernels.h"
#include "kernels/kv_view.h"

namespace vericache {

class FullKv : public KvSource {
 public:
  FullKv(const KvShape& shape, const KernelTable* kernels);
  FullKv(FullKv&&) = default;
  FullKv& operator=(FullKv&&) = default;

  // A second sequence with the first `num_tokens` committed rows. COST: pointers only.
  // REQUIRES: num_tokens <= num_tokens().
  FullKv Fork(int64_t num_tokens) const;
  FullKv Fork() const { return Fork(num_tokens_); }

  // Makes room for `num_rows` rows behind the committed ones and un-shares what they overwrite.
  // ERRORS: kResourceExhausted: no memory; nothing has changed.
  absl::Status Reserve(int64_t num_rows);

  void Append(int layer, const float* k, const float* v, int64_t num_rows) override;
  KvView Layer(int layer) override;
  // The committed rows of one layer, for readers outside a pass.
  FullKvView Committed(int layer) const;

  const KvShape& shape() const { return shape_; }
  int64_t num_tokens() const { return num_tokens_; }  // committed
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  size_t block_bytes() const { return block_values_ * sizeof(uint16_t); }
  // Bytes of the committed rows (not of the rounded-up blocks).
  size_t num_bytes() const { return shape_.bytes_per_token() * num_tokens_; }
  const uint16_t* block(int64_t idx) const { return blocks_[idx].get(); }

  // Restores a saved state: blocks are filled by the caller through mutable_block().
  absl::Status ResizeForLoad(int64_t num_tokens);
  uint16_t* mutable_block(int64_t idx) { return blocks_[idx].get(); }

 private:
  friend class Prefill;
  friend class Verifier;
  // Keeps the first `num_rows` of the rows appended in the last pass.
  void Commit(int64_t num_rows);

  absl::Status AddBlock();
  // Bytes from one block of a slab to the next.
  size_t block_stride() const { return RoundUp(block_values_ * sizeof(uint16_t), 64); }

  KvShape shape_;
  const KernelTable* kernels_;
  size_t block_values_;  // f16 values of all layers of one block
  int64_t slab_blocks_;  // blocks of one allocation
  std::shared_ptr<uint8_t[]> slab_;
  int64_t slab_left_ = 0;  // blocks of slab_ not yet used
  std::vector<std::shared_ptr<uint16_t[]>> blocks_;
  std::vector<const uint16_t*> block_pointers_;  // what views point to
  int64_t num_tokens_ = 0;
  int64_t appended_ = 0;       // provisional rows of the current pass
  std::vector<uint16_t> row_;  // one row in f16, scratch
};

}  // namespace vericache
