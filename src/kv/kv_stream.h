// One pass over the spilled K/V of one sequence, plane by plane, read ahead of the compute.
//
// A *plane* is what a pass has in memory at once: one KV head of one layer (kv_tier.h).
// A *part* is one plane of one block (64 positions), padded to 4 KiB. The cold blocks of a plane,
// in the order of the sequence, fill slots of the reservation, `slot_bytes / part_bytes` parts a
// slot; a read covers what of a slot is one piece of a file. The slots are a ring over all planes:
// as a plane is released, its slots are read again for a later one.
//
//   slots       0  1  2  3  4        3 slots a plane, 5 reserved: one plane and two thirds
//   plane 0     a  b  c  .  .        of the next one are read ahead
//   plane 1     f  .  .  d  e        `f` is read when plane 0 is released
//
// With one plane reserved, nothing overlaps; with two, the next plane is read during compute.
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

// Blocks that lie side by side in each plane of one file. Part of block b of the run, plane l:
// offset_of_plane0 + l * plane_stride + b * part_bytes.
struct ColdRun {
  std::shared_ptr<const SpillFile> file;
  int64_t first_block = 0;  // index in the sequence
  int64_t num_blocks = 0;   // >= 1
  uint64_t offset_of_plane0 = 0;
  uint64_t plane_stride = 0;
};

struct StreamPlan {
  std::vector<ColdRun> runs;  // first_block increases, no block twice
  int num_planes = 0;
  size_t part_bytes = 0;  // a multiple of 4 KiB
};

struct StreamStats {
  int64_t bytes = 0;             // wanted so far, over all submitted reads
  int64_t wait_ns = 0;           // in WaitPlane: transfer that compute did not hide
  int64_t num_waits = 0;         // planes that were not ready when asked for
  int64_t first_submit_ns = 0;   // steady clock; 0 = not started
  int64_t last_complete_ns = 0;  // of the newest complete plane; 0 = none
  int64_t busy_ns = 0;           // in which a read of a complete plane was under way
};

class KvStream {
 public:
  // Slots one plane of `num_blocks` cold blocks needs: the least a reservation may hold.
  // REQUIRES: 0 < part_bytes <= slot_bytes.
  static size_t SlotsPerPlane(int64_t num_blocks, size_t part_bytes, size_t slot_bytes);

  // `queue` must outlive the stream. A plan without cold blocks is fine and reads nothing.
  // ERRORS: kInvalidArgument: the plan contradicts itself; kResourceExhausted: the reservation
  //         holds less than one plane, with numbers.
  static absl::StatusOr<std::unique_ptr<KvStream>> Create(StreamPlan plan,
                                                          StagingPool::Reservation slots,
                                                          ReadQueue* queue);
  ~KvStream();  // at any time: takes back what is not in flight, waits for the rest
  KvStream(const KvStream&) = delete;
  KvStream& operator=(const KvStream&) = delete;

  // Ends a stream and hands its slots back, for the next pass of the same sequence.
  static StagingPool::Reservation Close(std::unique_ptr<KvStream> stream);

  // Begins to read, as far ahead as the reservation holds; returns at once. May be called long
  // before the pass; WaitPlane does it where it was not. Calling it again changes nothing.
  void Start();

  // Sleeps until all parts of the plane are in memory. They stay until ReleasePlane.
  //   parts  [num_cold_blocks()] receives a pointer to each part, in order of the sequence.
  // REQUIRES: planes are asked for in order, 0, 1, ...; each at most one plane ahead of the last
  //           released one if two planes fit in the reservation, else after its release.
  // ERRORS:   kFailedPrecondition: the plane before must be released first (a reservation of less
  //           than two planes); release it and call again. Otherwise the read's own error (see
  //           ReadQueue::Wait), and the same for every later plane. `parts` then still point to
  //           memory of [part_bytes] that nothing writes to, with anything in it: a pass over many
  //           requests goes on for the others.
  absl::Status WaitPlane(int plane, const uint8_t** parts);

  // REQUIRES: planes are released in order, each after it was asked for.
  void ReleasePlane(int plane);

  int num_planes() const { return plan_.num_planes; }
  int64_t num_cold_blocks() const { return num_blocks_; }
  const std::vector<ColdRun>& runs() const { return plan_.runs; }
  // Planes from 0 on that are complete in memory or released. Does not sleep.
  int planes_ready() const;
  StreamStats stats() const;
  // THREADS: one at a time. Different streams are independent.

 private:
  KvStream(StreamPlan plan, StagingPool::Reservation slots, ReadQueue* queue);
  static absl::Status Check(const StreamPlan& plan, const StagingPool::Reservation& slots);
  // Submits all reads that have a free slot.
  void Fetch();
  // Appends the reads of slot `idx` of `plane`.
  void AppendReads(int plane, size_t idx, std::vector<ReadRequest>* reads) const;
  void CancelAll();
  absl::Status Fail(const absl::Status& error);

  const StreamPlan plan_;
  StagingPool::Reservation slots_;
  ReadQueue* const queue_;
  int64_t num_blocks_ = 0;  // cold blocks
  size_t parts_per_slot_ = 0;
  size_t slots_per_plane_ = 0;
  std::unique_ptr<ReadTicket[]> tickets_;  // [num_planes]
  bool started_ = false;
  // Slots are numbered over all planes, plane by plane; number n lies in slot n mod num_slots.
  size_t num_fetched_ = 0;  // slot numbers submitted
  int num_released_ = 0;    // planes
  absl::Status error_;      // the first; sticky
  int64_t bytes_ = 0;
  int64_t wait_ns_ = 0;
  int64_t num_waits_ = 0;
};

}  // namespace vericache
