#include "kv/kv_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "storage/steady_now.h"

namespace vericache {
namespace {

constexpr uint64_t kOffsetEnd = uint64_t{1} << 62;
constexpr int64_t kNumBlocksMax = int64_t{1} << 32;
constexpr int kNumPlanesMax = 1 << 16;

// True if all parts of the run have aligned offsets below kOffsetEnd that do not overlap.
bool IsSound(const ColdRun& run, int num_planes, size_t part_bytes) {
  if (run.file == nullptr || run.first_block < 0 || run.num_blocks < 1) return false;
  if (run.num_blocks > kNumBlocksMax || run.first_block > kNumBlocksMax) return false;
  if (run.offset_of_plane0 % kSpillAlign != 0 || run.plane_stride % kSpillAlign != 0) return false;
  const auto plane_bytes = static_cast<unsigned __int128>(run.num_blocks) * part_bytes;
  if (num_planes > 1 && run.plane_stride < plane_bytes) return false;
  const auto end = static_cast<unsigned __int128>(num_planes - 1) * run.plane_stride +
                   run.offset_of_plane0 + plane_bytes;
  return end <= kOffsetEnd;
}

}  // namespace

size_t KvStream::SlotsPerPlane(int64_t num_blocks, size_t part_bytes, size_t slot_bytes) {
  VC_CHECK(num_blocks >= 0 && part_bytes > 0 && part_bytes <= slot_bytes);
  const size_t parts_per_slot = slot_bytes / part_bytes;
  return (static_cast<size_t>(num_blocks) + parts_per_slot - 1) / parts_per_slot;
}

absl::Status KvStream::Check(const StreamPlan& plan, const StagingPool::Reservation& slots) {
  if (plan.num_planes < 1 || plan.num_planes > kNumPlanesMax || plan.part_bytes == 0 ||
      plan.part_bytes % kSpillAlign != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot stream ", plan.num_planes,
                                                   " planes of parts of ", plan.part_bytes,
                                                   " bytes; parts are whole pages"));
  }
  int64_t num_blocks = 0, end_block = 0;
  for (const ColdRun& run : plan.runs) {
    if (!IsSound(run, plan.num_planes, plan.part_bytes) || run.first_block < end_block) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cannot stream the run of ", run.num_blocks, " blocks from block ", run.first_block,
          ", offset ", run.offset_of_plane0, ", stride ", run.plane_stride));
    }
    end_block = run.first_block + run.num_blocks;
    num_blocks += run.num_blocks;
  }
  if (num_blocks == 0) return absl::OkStatus();
  if (slots.num_slots() > 0 && plan.part_bytes > slots.slot_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("a part of ", plan.part_bytes,
                                                   " bytes does not fit in a staging slot of ",
                                                   slots.slot_bytes()));
  }
  const size_t needed =
      slots.num_slots() == 0 ? 1 : SlotsPerPlane(num_blocks, plan.part_bytes, slots.slot_bytes());
  if (slots.num_slots() < needed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "one plane of ", num_blocks, " spilled blocks needs ", needed, " staging slots, ",
        slots.num_slots(), " are reserved; raise the KV budget or shorten the context"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<KvStream>> KvStream::Create(StreamPlan plan,
                                                           StagingPool::Reservation slots,
                                                           ReadQueue* queue) {
  VC_RETURN_IF_ERROR(Check(plan, slots));
  return std::unique_ptr<KvStream>(new KvStream(std::move(plan), std::move(slots), queue));
}

KvStream::KvStream(StreamPlan plan, StagingPool::Reservation slots, ReadQueue* queue)
    : plan_(std::move(plan)),
      slots_(std::move(slots)),
      queue_(queue),
      tickets_(std::make_unique<ReadTicket[]>(plan_.num_planes)) {
  for (const ColdRun& run : plan_.runs) num_blocks_ += run.num_blocks;
  if (num_blocks_ == 0) return;
  parts_per_slot_ = slots_.slot_bytes() / plan_.part_bytes;
  slots_per_plane_ = SlotsPerPlane(num_blocks_, plan_.part_bytes, slots_.slot_bytes());
}

KvStream::~KvStream() { CancelAll(); }

StagingPool::Reservation KvStream::Close(std::unique_ptr<KvStream> stream) {
  stream->CancelAll();
  return std::move(stream->slots_);
}

void KvStream::CancelAll() {
  queue_->CancelAll(absl::MakeSpan(tickets_.get(), static_cast<size_t>(plan_.num_planes)));
}

// From now on compute may read memory that was meant for later planes: nothing may write there.
absl::Status KvStream::Fail(const absl::Status& error) {
  error_ = error;
  CancelAll();
  return error_;
}

void KvStream::AppendReads(int plane, size_t idx, std::vector<ReadRequest>* reads) const {
  const int64_t begin = static_cast<int64_t>(idx * parts_per_slot_);
  const int64_t end = std::min(begin + static_cast<int64_t>(parts_per_slot_), num_blocks_);
  const size_t number = static_cast<size_t>(plane) * slots_per_plane_ + idx;
  uint8_t* dest = slots_.slot(number % slots_.num_slots());
  int64_t run_begin = 0;  // in cold blocks
  for (const ColdRun& run : plan_.runs) {
    const int64_t from = std::max(begin, run_begin);
    const int64_t to = std::min(end, run_begin + run.num_blocks);
    if (from < to) {
      reads->push_back({run.file.get(),
                        run.offset_of_plane0 + static_cast<uint64_t>(plane) * run.plane_stride +
                            static_cast<uint64_t>(from - run_begin) * plan_.part_bytes,
                        dest + static_cast<size_t>(from - begin) * plan_.part_bytes,
                        static_cast<size_t>(to - from) * plan_.part_bytes});
    }
    run_begin += run.num_blocks;
  }
}

void KvStream::Fetch() {
  const size_t num_all = slots_per_plane_ * static_cast<size_t>(plan_.num_planes);
  const size_t end =
      std::min(num_all, slots_per_plane_ * static_cast<size_t>(num_released_) + slots_.num_slots());
  std::vector<ReadRequest> reads;
  while (error_.ok() && num_fetched_ < end) {
    const int plane = static_cast<int>(num_fetched_ / slots_per_plane_);
    reads.clear();
    for (; num_fetched_ < end && static_cast<int>(num_fetched_ / slots_per_plane_) == plane;
         ++num_fetched_) {
      AppendReads(plane, num_fetched_ % slots_per_plane_, &reads);
    }
    for (const ReadRequest& read : reads) bytes_ += static_cast<int64_t>(read.bytes);
    absl::Status status = queue_->Submit(reads, &tickets_[plane]);
    if (!status.ok()) (void)Fail(status);
  }
}

void KvStream::Start() {
  if (started_) return;
  started_ = true;
  if (num_blocks_ > 0) Fetch();
}

absl::Status KvStream::WaitPlane(int plane, const uint8_t** parts) {
  VC_CHECK(plane >= num_released_ && plane < plan_.num_planes);
  Start();
  for (int64_t block = 0; block < num_blocks_; ++block) {
    const size_t idx = static_cast<size_t>(block) / parts_per_slot_;
    const size_t number = static_cast<size_t>(plane) * slots_per_plane_ + idx;
    parts[block] = slots_.slot(number % slots_.num_slots()) +
                   static_cast<size_t>(block) % parts_per_slot_ * plan_.part_bytes;
  }
  if (!error_.ok() || num_blocks_ == 0) return error_;
  if (num_fetched_ < (static_cast<size_t>(plane) + 1) * slots_per_plane_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "plane ", plane, " does not fit beside the planes before it: ", slots_.num_slots(),
        " staging slots for ", slots_per_plane_, " a plane; release those first"));
  }
  const bool ready = queue_->Done(tickets_[plane]);
  const int64_t start_ns = ready ? 0 : SteadyNowNs();
  absl::Status status = queue_->Wait(&tickets_[plane]);
  if (!ready) {
    ++num_waits_;
    wait_ns_ += SteadyNowNs() - start_ns;
  }
  return status.ok() ? status : Fail(status);
}

void KvStream::ReleasePlane(int plane) {
  VC_CHECK(plane == num_released_ && plane < plan_.num_planes);
  ++num_released_;
  if (started_ && num_blocks_ > 0) Fetch();
}

int KvStream::planes_ready() const {
  if (num_blocks_ == 0) return plan_.num_planes;
  if (!error_.ok()) return num_released_;
  int plane = num_released_;
  while (plane < plan_.num_planes &&
         num_fetched_ >= (static_cast<size_t>(plane) + 1) * slots_per_plane_ &&
         queue_->Done(tickets_[plane])) {
    ++plane;
  }
  return plane;
}

StreamStats KvStream::stats() const {
  StreamStats stats{.bytes = bytes_, .wait_ns = wait_ns_, .num_waits = num_waits_};
  stats.first_submit_ns = queue_->Times(tickets_[0]).submit_ns;
  for (int plane = 0; plane < plan_.num_planes; ++plane) {
    const TicketTimes times = queue_->Times(tickets_[plane]);
    // Planes overlap, and between them a stream that is ahead waits for staging.
    const int64_t begin_ns = std::max(times.submit_ns, stats.last_complete_ns);
    stats.busy_ns += std::max<int64_t>(0, times.complete_ns - begin_ns);
    stats.last_complete_ns = std::max(stats.last_complete_ns, times.complete_ns);
  }
  return stats;
}

}  // namespace vericache
