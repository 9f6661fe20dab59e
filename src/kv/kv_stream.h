// One pass over the spilled K/V of one sequence, layer by layer, read ahead of the compute.
//
// A *part* is one layer of one block (64 positions), padded to 4 KiB. The cold blocks of a layer,
// in the order of the sequence, fill slots of the reservation, `slot_bytes / part_bytes` parts a
// slot; a read covers what of a slot is one piece of a file. The slots are a ring over all layers:
// as a layer is released, its slots are read again for a later one.
//
//   slots       0  1  2  3  4        3 slots a layer, 5 reserved: one layer and two thirds
//   layer 0     a  b  c  .  .        of the next one are read ahead
//   layer 1     f  .  .  d  e        `f` is read when layer 0 is released
//
// With one layer reserved, nothing overlaps; with two, the next layer is read during compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv/staging.h"
#include "storage/read_queue.h"
#include "storage/spill_file.h"

namespace vericache {

// Blocks that lie side by side in each layer of one file. Part of block b of the run, layer l:
// offset_of_layer0 + l * layer_stride + b * part_bytes.
struct ColdRun {
  std::shared_ptr<const SpillFile> file;
  int64_t first_block = 0;  // index in the sequence
  int64_t num_blocks = 0;   // >= 1
  uint64_t offset_of_layer0 = 0;
  uint64_t layer_stride = 0;
};

struct StreamPlan {
  std::vector<ColdRun> runs;  // first_block increases, no block twice
  int num_layers = 0;
  size_t part_bytes = 0;  // a multiple of 4 KiB
};

struct StreamStats {
  int64_t bytes = 0;             // wanted so far, over all submitted reads
  int64_t wait_ns = 0;           // in WaitLayer: transfer that compute did not hide
  int64_t num_waits = 0;         // layers that were not ready when asked for
  int64_t first_submit_ns = 0;   // steady clock; 0 = not started
  int64_t last_complete_ns = 0;  // of the newest complete layer; 0 = none
  int64_t busy_ns = 0;           // in which a read of a complete layer was under way
};

class KvStream {
 public:
  // Slots one layer of `num_blocks` cold blocks needs: the least a reservation may hold.
  // REQUIRES: 0 < part_bytes <= slot_bytes.
  static size_t SlotsPerLayer(int64_t num_blocks, size_t part_bytes, size_t slot_bytes);

  // `queue` must outlive the stream. A plan without cold blocks is fine and reads nothing.
  // ERRORS: kInvalidArgument: the plan contradicts itself; kResourceExhausted: the reservation
  //         holds less than one layer, with numbers.
  static absl::StatusOr<std::unique_ptr<KvStream>> Create(StreamPlan plan,
                                                          StagingPool::Reservation slots,
                                                          ReadQueue* queue);
  ~KvStream();  // at any time: takes back what is not in flight, waits for the rest
  KvStream(const KvStream&) = delete;
  KvStream& operator=(const KvStream&) = delete;

  // Ends a stream and hands its slots back, for the next pass of the same sequence.
  static StagingPool::Reservation Close(std::unique_ptr<KvStream> stream);

  // Begins to read, as far ahead as the reservation holds; returns at once. May be called long
  // before the pass; WaitLayer does it where it was not. Calling it again changes nothing.
  void Start();

  // Sleeps until all parts of the layer are in memory. They stay until ReleaseLayer.
  //   parts  [num_cold_blocks()] receives a pointer to each part, in order of the sequence.
  // REQUIRES: layers are asked for in order, 0, 1, ...; each at most one layer ahead of the last
  //           released one if two layers fit in the reservation, else after its release.
  // ERRORS:   kFailedPrecondition: the layer before must be released first (a reservation of less
  //           than two layers); release it and call again. Otherwise the read's own error (see
  //           ReadQueue::Wait), and the same for every later layer. `parts` then still point to
  //           memory of [part_bytes] that nothing writes to, with anything in it: a pass over many
  //           requests goes on for the others.
  absl::Status WaitLayer(int layer, const uint8_t** parts);

  // REQUIRES: layers are released in order, each after it was asked for.
  void ReleaseLayer(int layer);

  int num_layers() const { return plan_.num_layers; }
  int64_t num_cold_blocks() const { return num_blocks_; }
  const std::vector<ColdRun>& runs() const { return plan_.runs; }
  // Layers from 0 on that are complete in memory or released. Does not sleep.
  int layers_ready() const;
  StreamStats stats() const;
  // THREADS: one at a time. Different streams are independent.

 private:
  KvStream(StreamPlan plan, StagingPool::Reservation slots, ReadQueue* queue);
  static absl::Status Check(const StreamPlan& plan, const StagingPool::Reservation& slots);
  // Submits all reads that have a free slot.
  void Fetch();
  // Appends the reads of slot `idx` of `layer`.
  void AppendReads(int layer, size_t idx, std::vector<ReadRequest>* reads) const;
  void CancelAll();
  absl::Status Fail(const absl::Status& error);

  const StreamPlan plan_;
  StagingPool::Reservation slots_;
  ReadQueue* const queue_;
  int64_t num_blocks_ = 0;  // cold blocks
  size_t parts_per_slot_ = 0;
  size_t slots_per_layer_ = 0;
  std::unique_ptr<ReadTicket[]> tickets_;  // [num_layers]
  bool started_ = false;
  // Slots are numbered over all layers, layer by layer; number n lies in slot n mod num_slots.
  size_t num_fetched_ = 0;  // slot numbers submitted
  int num_released_ = 0;    // layers
  absl::Status error_;      // the first; sticky
  int64_t bytes_ = 0;
  int64_t wait_ns_ = 0;
  int64_t num_waits_ = 0;
};

}  // namespace vericache
