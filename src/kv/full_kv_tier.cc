// The part of FullKv that moves blocks between RAM and its spill file.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "kv/full_kv.h"

namespace vericache {
namespace {

// Blocks written in one go: they lie side by side in each plane of the file.
constexpr int64_t kWriteBlocks = 16;

// Scratch for reads and writes of the spill file.
class PageBuffer {
 public:
  explicit PageBuffer(size_t bytes) : raw_(bytes + kSpillAlign) {}
  uint8_t* data() {  // on a boundary of kSpillAlign
    return reinterpret_cast<uint8_t*>(
        RoundUp(reinterpret_cast<uintptr_t>(raw_.data()), kSpillAlign));
  }

 private:
  AlignedBuffer<uint8_t> raw_;
};

FullKvView ViewOf(const uint16_t* const* blocks, int kv_head, const KvShape& shape,
                  int64_t num_tokens) {
  FullKvView view;
  view.blocks = blocks;
  view.first_head = kv_head;
  view.shape = shape;
  view.num_tokens = num_tokens;
  return view;
}

}  // namespace

void FullKv::Clear() {
  FullKv empty = Fork(0);
  empty.totals_ = totals_;
  *this = std::move(empty);
}

int64_t FullKv::num_ram_blocks() const { return num_blocks() - num_cold_; }

bool FullKv::InRam(int64_t pos_begin, int64_t pos_end) const {
  for (int64_t block = pos_begin / kBlockTokens; block * kBlockTokens < pos_end; ++block)
    if (blocks_[block] == nullptr) return false;
  return true;
}

std::vector<ColdRun> FullKv::ColdRuns() const {
  std::vector<ColdRun> runs;
  for (int64_t block = 0; block < num_blocks(); ++block) {
    if (blocks_[block] != nullptr) continue;
    const std::shared_ptr<SpillFile>& file = cold_[block].file;
    if (!runs.empty() && runs.back().file == file &&
        runs.back().first_block + runs.back().num_blocks == block) {
      ++runs.back().num_blocks;
    } else {
      runs.push_back({file, block, 1, tier_->OffsetOf(0, block), tier_->plane_stride()});
    }
  }
  return runs;
}

size_t FullKv::SlotsPerHead() const {
  return KvStream::SlotsPerPlane(num_cold_, tier_->part_bytes(), tier_->staging().slot_bytes());
}

absl::StatusOr<std::unique_ptr<LayerStream>> FullKv::OpenStream(size_t num_slots,
                                                                StagingPool* staging) const {
  num_slots = std::max(SlotsPerHead(), std::min(num_slots, staging->num_free()));
  VC_ASSIGN_OR_RETURN(StagingPool::Reservation slots, staging->Reserve(num_slots));
  StreamPlan plan;
  plan.runs = ColdRuns();
  plan.num_planes = tier_->num_planes();
  plan.part_bytes = tier_->part_bytes();
  VC_ASSIGN_OR_RETURN(std::unique_ptr<KvStream> stream,
                      KvStream::Create(std::move(plan), std::move(slots), &tier_->queue()));
  return std::make_unique<LayerStream>(tier_, std::move(stream));
}

absl::Status FullKv::StartFetch() {
  if (num_cold_ == 0 || stream_ != nullptr) return absl::OkStatus();
  const size_t num_slots = fetch_slots_ > 0 ? fetch_slots_ : 2 * SlotsPerHead();
  VC_ASSIGN_OR_RETURN(stream_, OpenStream(num_slots, &tier_->staging()));
  stream_->Start();
  return absl::OkStatus();
}

// Zeros where the spilled blocks cannot be read.
FullKvView FullKv::LostView(int layer, int kv_head, std::vector<const uint16_t*>* blocks) const {
  const size_t offset = shape_.layer_block_values() * layer + shape_.head_block_values() * kv_head;
  blocks->clear();
  for (const uint16_t* block : block_pointers_)
    blocks->push_back(block != nullptr ? block + offset
                                       : reinterpret_cast<const uint16_t*>(tier_->zero_part()));
  return ViewOf(blocks->data(), kv_head, shape_, num_tokens_);
}

KvView FullKv::Layer(int layer) {
  VC_CHECK(num_cold_ == 0);
  if (layer == 0) pass_status_ = absl::OkStatus();
  KvView view;
  view.kind = KvView::Kind::kFull;
  view.full = Committed(layer);
  view.full.num_tokens += appended_;
  return view;
}

KvView FullKv::Head(int layer, int kv_head) {
  if (num_cold_ == 0) return Layer(layer);
  if (layer == 0 && kv_head == 0) {
    pass_status_ = absl::OkStatus();
    PlanWarming();
  }
  if (stream_ == nullptr && pass_status_.ok()) pass_status_ = StartFetch();
  KvView view;
  view.kind = KvView::Kind::kFull;
  if (stream_ != nullptr) {
    if (absl::Status status = stream_->Open(layer, kv_head, block_pointers_); !status.ok())
      pass_status_.Update(std::move(status));
    WarmHead(layer, kv_head);
    view.full = ViewOf(stream_->blocks(), kv_head, shape_, num_tokens_);
  } else {  // nothing to read through: the pass goes on for the others
    view.full = LostView(layer, kv_head, &lost_);
  }
  view.full.num_tokens += appended_;
  return view;
}

void FullKv::DoneWith(int layer, int kv_head) {
  if (stream_ != nullptr) stream_->Close(layer, kv_head);
  if (layer + 1 < shape_.num_layers || kv_head + 1 < shape_.num_kv_heads) return;
  EndWarming();
  if (stream_ == nullptr) return;
  last_stream_ = stream_->stats();
  totals_.Add(last_stream_);
  stream_.reset();
}

int64_t FullKv::num_hot_blocks() const {
  const int64_t whole = num_tokens_ / kBlockTokens;
  return whole - std::count(blocks_.begin(), blocks_.begin() + whole, nullptr);
}

void FullKv::PlanWarming() {
  warming_.clear();
  if (num_cold_ == 0) return;
  int64_t room = hot_blocks_ - num_hot_blocks();
  for (int64_t idx = 0; idx < num_tokens_ / kBlockTokens && room > 0; ++idx) {
    if (blocks_[idx] != nullptr) continue;
    absl::StatusOr<std::shared_ptr<uint16_t[]>> values = NewBlock();
    if (!values.ok()) return;  // then it stays where it is
    warming_.push_back({idx, *std::move(values)});
    --room;
  }
}

void FullKv::WarmHead(int layer, int kv_head) {
  const size_t values = shape_.head_block_values();
  const size_t plane = static_cast<size_t>(layer) * shape_.num_kv_heads + kv_head;
  for (const Warming& block : warming_)
    std::memcpy(block.values.get() + plane * values, stream_->blocks()[block.idx],
                values * sizeof(uint16_t));
}

void FullKv::EndWarming() {
  for (Warming& block : warming_) {
    if (!pass_status_.ok()) break;  // it holds anything
    cold_[block.idx] = {};
    block_pointers_[block.idx] = block.values.get();
    blocks_[block.idx] = std::move(block.values);
    --num_cold_;
  }
  warming_.clear();
}

absl::Status FullKv::ReadBlock(int64_t idx, uint16_t* values) const {
  if (blocks_[idx] != nullptr) {
    std::memcpy(values, blocks_[idx].get(), block_bytes());
    return absl::OkStatus();
  }
  const int num_planes = tier_->num_planes();
  const size_t part = tier_->part_bytes(), plane_values = shape_.head_block_values();
  PageBuffer raw(part * num_planes);
  uint8_t* base = raw.data();
  std::vector<ReadRequest> reads;
  for (int plane = 0; plane < num_planes; ++plane)
    reads.push_back(
        {cold_[idx].file.get(), tier_->OffsetOf(plane, idx), base + plane * part, part});
  ReadTicket ticket;
  VC_RETURN_IF_ERROR(tier_->queue().Submit(reads, &ticket));
  VC_RETURN_IF_ERROR(tier_->queue().Wait(&ticket));
  for (int plane = 0; plane < num_planes; ++plane)
    std::memcpy(values + plane * plane_values, base + plane * part,
                plane_values * sizeof(uint16_t));
  return absl::OkStatus();
}

// Blocks [begin, end), all in RAM, at most kWriteBlocks.
absl::Status FullKv::SpillRange(int64_t begin, int64_t end) {
  if (file_ == nullptr) {
    VC_ASSIGN_OR_RETURN(file_, tier_->NewFile());
  }
  const size_t part = tier_->part_bytes(), plane_values = shape_.head_block_values();
  PageBuffer raw(part * (end - begin));
  uint8_t* base = raw.data();
  for (int plane = 0; plane < tier_->num_planes(); ++plane) {
    for (int64_t block = begin; block < end; ++block) {
      uint8_t* dst = base + (block - begin) * part;
      std::memcpy(dst, blocks_[block].get() + plane * plane_values, plane_values * 2);
      std::memset(dst + plane_values * 2, 0, part - plane_values * 2);
    }
    VC_RETURN_IF_ERROR(file_->Write(tier_->OffsetOf(plane, begin), base, (end - begin) * part));
  }
  CancelFetch();  // it was made for fewer spilled blocks
  cold_.resize(num_blocks());
  for (int64_t block = begin; block < end; ++block) {
    cold_[block].file = file_;
    blocks_[block].reset();
    block_pointers_[block] = nullptr;
    ++num_cold_;
  }
  return absl::OkStatus();
}

absl::Status FullKv::Spill() {
  if (tier_ == nullptr) return absl::OkStatus();
  const int64_t used = CeilDiv(num_tokens_, kBlockTokens);
  if (num_blocks() > used) {  // of rows that were rejected
    blocks_.resize(used);
    block_pointers_.resize(used);
    cold_.resize(std::min<size_t>(cold_.size(), used));
  }
  const int64_t whole = num_tokens_ / kBlockTokens;
  int64_t hot = 0;
  for (int64_t block = 0; block < whole;) {
    if (blocks_[block] == nullptr || hot < hot_blocks_) {
      hot += blocks_[block] != nullptr;
      ++block;
      continue;
    }
    int64_t end = block + 1;
    while (end < whole && end - block < kWriteBlocks && blocks_[end] != nullptr) ++end;
    VC_RETURN_IF_ERROR(SpillRange(block, end));
    block = end;
  }
  return absl::OkStatus();
}

absl::Status FullKv::SpillAll() {
  if (tier_ == nullptr) return absl::OkStatus();
  set_hot_blocks(0);
  VC_RETURN_IF_ERROR(Spill());
  const int64_t open = num_tokens_ / kBlockTokens;
  if (open == num_blocks() || blocks_[open] == nullptr) return absl::OkStatus();
  return SpillRange(open, open + 1);
}

absl::Status FullKv::Warm() {
  const int64_t whole = num_tokens_ / kBlockTokens;
  int64_t hot = num_hot_blocks();
  for (int64_t block = 0; block < whole && hot < hot_blocks_; ++block) {
    if (blocks_[block] != nullptr) continue;
    VC_ASSIGN_OR_RETURN(std::shared_ptr<uint16_t[]> values, NewBlock());
    VC_RETURN_IF_ERROR(ReadBlock(block, values.get()));
    CancelFetch();
    cold_[block] = {};
    --num_cold_;
    block_pointers_[block] = values.get();
    blocks_[block] = std::move(values);
    ++hot;
  }
  return absl::OkStatus();
}

FullKvView FullKvReader::Open(int layer, int kv_head) {
  if (stream_ == nullptr && status_.ok()) {
    KvTier& tier = *full_.tier_;
    absl::StatusOr<std::unique_ptr<LayerStream>> stream = full_.OpenStream(0, &tier.staging());
    if (absl::IsResourceExhausted(stream.status()) &&
        full_.SlotsPerHead() <= tier.staging().num_slots()) {
      // Passes to come hold all of it. One head more is what a budget keeps free for this.
      absl::StatusOr<std::unique_ptr<StagingPool>> own =
          StagingPool::Create(full_.SlotsPerHead(), tier.staging().slot_bytes());
      if (own.ok()) {
        own_staging_ = *std::move(own);
        stream = full_.OpenStream(0, own_staging_.get());
      }
    }
    if (stream.ok()) {
      stream_ = *std::move(stream);
    } else {
      status_ = stream.status();
    }
  }
  if (stream_ == nullptr) return full_.LostView(layer, kv_head, &lost_);
  status_.Update(stream_->Open(layer, kv_head, full_.block_pointers_));
  return ViewOf(stream_->blocks(), kv_head, full_.shape_, full_.num_tokens_);
}

void FullKvReader::Close(int layer, int kv_head) {
  if (stream_ != nullptr) stream_->Close(layer, kv_head);
}

}  // namespace vericache
