// The full KV of one sequence: the authority. f16, in blocks of 64 positions.
//
// Rows enter in two steps. A forward pass appends provisional rows behind the committed ones; the
// owner then commits a prefix of them, and the rest is forgotten. Only prefill and the verifier can
// commit (the private part below), so nothing a drafter computed can ever enter.
// A fork shares whole blocks and copies the open one when either side writes (copy on write).
//
// With a tier (kv/kv_tier.h), whole blocks beyond `hot_blocks` are spilled: the first ones stay in
// RAM, those behind them go to the sequence's file, the open ones are in RAM. A pass reads
// them back KV head by KV head of each layer (kv/layer_stream.h). The same bits, wherever they lie.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/types.h"
#include "kernels/kernels.h"
#include "kernels/kv_view.h"
#include "kv/block_pool.h"
#include "kv/kv_tier.h"
#include "kv/layer_stream.h"

namespace vericache {

class FullKv : public KvSource {
 public:
  // tier: null: all in RAM.
  FullKv(const KvShape& shape, const KernelTable* kernels, std::shared_ptr<KvTier> tier = nullptr);
  FullKv(FullKv&&) = default;
  FullKv& operator=(FullKv&&) = default;

  // A second sequence with the first `num_tokens` committed rows. COST: pointers only.
  // REQUIRES: num_tokens <= num_tokens().
  FullKv Fork(int64_t num_tokens) const;
  FullKv Fork() const { return Fork(num_tokens_); }

  // Makes room for `num_rows` rows behind the committed ones and un-shares what they overwrite.
  // ERRORS: kResourceExhausted: no memory, or none left in the budget; those of reading the shared
  //         block back. Nothing has changed.
  absl::Status Reserve(int64_t num_rows);

  void Append(int layer, const float* k, const float* v, int64_t num_rows) override;
  bool by_head() const override { return num_cold_ > 0; }
  bool has_tier() const { return tier_ != nullptr; }  // blocks may be spilled
  // REQUIRES: !by_head().
  KvView Layer(int layer) override;
  // Sleeps until the spilled parts of the head are here. After an I/O error the view's spilled rows
  // hold anything, and pass_status() tells.
  KvView Head(int layer, int kv_head) override;
  void DoneWith(int layer, int kv_head) override;
  // The committed rows of one layer, for readers outside a pass that read no row of a spilled
  // block: the pointer of such a block is null. All others: kv/layer_views.h.
  FullKvView Committed(int layer) const;

  const KvShape& shape() const { return shape_; }
  int64_t num_tokens() const { return num_tokens_; }  // committed
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  size_t block_bytes() const { return block_values_ * sizeof(uint16_t); }
  // Bytes of the committed rows (not of the rounded-up blocks).
  size_t num_bytes() const { return shape_.bytes_per_token() * num_tokens_; }
  // Null where the block is spilled.
  const uint16_t* block(int64_t idx) const { return blocks_[idx].get(); }
  // Copies a block from wherever it lies. values: [block_bytes() / 2].
  // ERRORS: those of reading it.
  absl::Status ReadBlock(int64_t idx, uint16_t* values) const;

  // Restores a saved state: blocks are filled by the caller through mutable_block(). With a tier it
  // may be called again for more and more tokens, with Spill() in between.
  absl::Status ResizeForLoad(int64_t num_tokens);
  uint16_t* mutable_block(int64_t idx) { return blocks_[idx].get(); }

  // --- Tiers ---------------------------------------------------------------------------------
  // Whole blocks that may stay in RAM. Takes effect with the next Spill().
  void set_hot_blocks(int64_t num_blocks) { hot_blocks_ = num_blocks; }
  int64_t hot_blocks() const { return hot_blocks_; }
  // Slots of staging that a pass of this sequence may take; 0: two heads, or what is free.
  void set_fetch_slots(size_t num_slots) { fetch_slots_ = num_slots; }
  // Forgets everything; the tier stays.
  void Clear();
  int64_t num_cold_blocks() const { return num_cold_; }
  // Whether no row of [pos_begin, pos_end) is spilled.
  bool InRam(int64_t pos_begin, int64_t pos_end) const;
  // Blocks of this sequence in RAM, open ones included.
  int64_t num_ram_blocks() const;
  // Writes whole committed blocks beyond hot_blocks() to the file and frees them, and frees blocks
  // that no committed row needs. Nothing without a tier. ERRORS: of the disk; what could not be
  // written stays in RAM, nothing is lost.
  absl::Status Spill();
  // Leaves nothing in RAM: the block that is being written goes as well, until the next Reserve().
  // hot_blocks() is 0 from here on. ERRORS: as Spill().
  absl::Status SpillAll();
  // Brings spilled blocks back into RAM, the first ones first, as far as hot_blocks() allows.
  // Passes do so by the way, with what they read anyhow: this is for who cannot wait for one.
  // ERRORS: those of reading; kResourceExhausted. Nothing is lost.
  absl::Status Warm();
  // Begins to read what the next pass will need. Optional: a pass starts it itself.
  // ERRORS: kResourceExhausted: too few slots for one KV head of a layer.
  absl::Status StartFetch();
  void CancelFetch() { stream_.reset(); }
  bool fetching() const { return stream_ != nullptr; }
  // How the spilled part of the last pass came in. A pass whose status is not OK computed nonsense
  // for this sequence alone: its owner must not commit any of it.
  const absl::Status& pass_status() const { return pass_status_; }
  // Of the newest pass that read anything; of all passes so far.
  const StreamStats& last_stream() const { return last_stream_; }
  const StreamTotals& stream_totals() const { return totals_; }

 private:
  friend class Prefill;
  friend class Verifier;
  friend class FullKvReader;
  // Where a spilled block lies: in a file that forks may share, at the same index.
  struct Cold {
    std::shared_ptr<SpillFile> file;
  };
  // Keeps the first `num_rows` of the rows appended in the last pass.
  void Commit(int64_t num_rows);

  absl::StatusOr<std::shared_ptr<uint16_t[]>> NewBlock();
  absl::Status AddBlock();
  std::vector<ColdRun> ColdRuns() const;
  size_t SlotsPerHead() const;
  // num_slots: 0: one head's.
  absl::StatusOr<std::unique_ptr<LayerStream>> OpenStream(size_t num_slots,
                                                          StagingPool* staging) const;
  int64_t num_hot_blocks() const;
  // A block that is read for a pass and may be hot stays: its heads are copied as they pass by.
  void PlanWarming();
  void WarmHead(int layer, int kv_head);
  void EndWarming();
  absl::Status SpillRange(int64_t begin, int64_t end);
  FullKvView LostView(int layer, int kv_head, std::vector<const uint16_t*>* blocks) const;

  KvShape shape_;
  const KernelTable* kernels_;
  std::shared_ptr<KvTier> tier_;
  std::shared_ptr<BlockPool> pool_;                  // without a tier
  size_t block_values_;                              // f16 values of all layers of one block
  std::vector<std::shared_ptr<uint16_t[]>> blocks_;  // null: spilled
  std::vector<const uint16_t*> block_pointers_;      // what views point to
  std::vector<Cold> cold_;                           // [num_blocks()] or shorter; file null: in RAM
  std::shared_ptr<SpillFile> file_;                  // this sequence's own
  int64_t num_cold_ = 0;
  int64_t hot_blocks_ = std::numeric_limits<int64_t>::max();
  size_t fetch_slots_ = 0;
  std::unique_ptr<LayerStream> stream_;  // of the current or the next pass
  struct Warming {
    int64_t idx;
    std::shared_ptr<uint16_t[]> values;
  };
  std::vector<Warming> warming_;  // of the current pass
  absl::Status pass_status_;
  std::vector<const uint16_t*> lost_;  // of a head that has no stream
  StreamTotals totals_;
  StreamStats last_stream_;
  int64_t num_tokens_ = 0;
  int64_t appended_ = 0;       // provisional rows of the current pass
  std::vector<uint16_t> row_;  // one row in f16, scratch
};

// Reads the committed rows of a FullKv that has spilled blocks, outside a pass (ForEachLayers).
class FullKvReader {
 public:
  explicit FullKvReader(const FullKv& full) : full_(full) {}
  // REQUIRES: all heads of all layers in order, each closed before the next.
  FullKvView Open(int layer, int kv_head);
  void Close(int layer, int kv_head);
  const absl::Status& status() const { return status_; }

 private:
  const FullKv& full_;
  std::unique_ptr<StagingPool> own_staging_;  // where the tier's has no layer free
  std::unique_ptr<LayerStream> stream_;
  std::vector<const uint16_t*> lost_;
  absl::Status status_;
};

}  // namespace vericache
