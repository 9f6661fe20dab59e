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

// Blocks written in one go: a segment of a layer lies side by side in the file.
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

FullKvView ViewOf(const LayerStream& stream, const KvShape& shape, int64_t num_tokens) {
  FullKvView view;
  view.blocks = stream.layer_blocks();  // of this layer already
  view.layer_offset = 0;
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
      runs.push_back({file, block, 1, tier_->OffsetOf(0, block), tier_->layer_stride()});
    }
  }
  return runs;
}

absl::StatusOr<std::unique_ptr<LayerStream>> FullKv::OpenStream(size_t num_slots) const {
  const size_t per_layer =
      KvStream::SlotsPerLayer(num_cold_, tier_->part_bytes(), tier_->staging().slot_bytes());
  num_slots = std::max(per_layer, std::min(num_slots, tier_->staging().num_free()));
  VC_ASSIGN_OR_RETURN(StagingPool::Reservation slots, tier_->staging().Reserve(num_slots));
  StreamPlan plan;
  plan.runs = ColdRuns();
  plan.num_layers = shape_.num_layers;
  plan.part_bytes = tier_->part_bytes();
  VC_ASSIGN_OR_RETURN(std::unique_ptr<KvStream> stream,
                      KvStream::Create(std::move(plan), std::move(slots), &tier_->queue()));
  return std::make_unique<LayerStream>(tier_, std::move(stream));
}

absl::Status FullKv::StartFetch() {
  if (num_cold_ == 0 || stream_ != nullptr) return absl::OkStatus();
  const size_t two_layers =
      2 * KvStream::SlotsPerLayer(num_cold_, tier_->part_bytes(), tier_->staging().slot_bytes());
  VC_ASSIGN_OR_RETURN(stream_, OpenStream(fetch_slots_ > 0 ? fetch_slots_ : two_layers));
  stream_->Start();
  return absl::OkStatus();
}

// Zeros where the spilled blocks cannot be read.
FullKvView FullKv::LostView(int layer, std::vector<const uint16_t*>* blocks) const {
  blocks->clear();
  for (const uint16_t* block : block_pointers_)
    blocks->push_back(block != nullptr ? block + shape_.layer_block_values() * layer
                                       : reinterpret_cast<const uint16_t*>(tier_->zero_part()));
  FullKvView view;
  view.blocks = blocks->data();
  view.shape = shape_;
  view.num_tokens = num_tokens_;
  return view;
}

KvView FullKv::Layer(int layer) {
  KvView view;
  view.kind = KvView::Kind::kFull;
  if (layer == 0) pass_status_ = absl::OkStatus();
  if (num_cold_ == 0) {
    view.full = Committed(layer);
  } else {
    if (stream_ == nullptr && pass_status_.ok()) pass_status_ = StartFetch();
    if (stream_ != nullptr) {
      if (absl::Status status = stream_->Open(layer, block_pointers_); !status.ok())
        pass_status_.Update(std::move(status));
      view.full = ViewOf(*stream_, shape_, num_tokens_);
    } else {  // nothing to read through: the pass goes on for the others
      view.full = LostView(layer, &lost_);
    }
  }
  view.full.num_tokens += appended_;
  return view;
}

void FullKv::DoneWith(int layer) {
  if (stream_ == nullptr) return;
  stream_->Close(layer);
  if (layer + 1 < shape_.num_layers) return;
  last_stream_ = stream_->stats();
  totals_.Add(last_stream_);
  stream_.reset();
}

absl::Status FullKv::ReadBlock(int64_t idx, uint16_t* values) const {
  if (blocks_[idx] != nullptr) {
    std::memcpy(values, blocks_[idx].get(), block_bytes());
    return absl::OkStatus();
  }
  PageBuffer raw(tier_->part_bytes() * shape_.num_layers);
  uint8_t* base = raw.data();
  std::vector<ReadRequest> reads;
  for (int layer = 0; layer < shape_.num_layers; ++layer)
    reads.push_back({cold_[idx].file.get(), tier_->OffsetOf(layer, idx),
                     base + layer * tier_->part_bytes(), tier_->part_bytes()});
  ReadTicket ticket;
  VC_RETURN_IF_ERROR(tier_->queue().Submit(reads, &ticket));
  VC_RETURN_IF_ERROR(tier_->queue().Wait(&ticket));
  const size_t layer_bytes = shape_.layer_block_values() * sizeof(uint16_t);
  for (int layer = 0; layer < shape_.num_layers; ++layer)
    std::memcpy(values + layer * shape_.layer_block_values(), base + layer * tier_->part_bytes(),
                layer_bytes);
  return absl::OkStatus();
}

// Blocks [begin, end), all in RAM, at most kWriteBlocks.
absl::Status FullKv::SpillRange(int64_t begin, int64_t end) {
  if (file_ == nullptr) {
    VC_ASSIGN_OR_RETURN(file_, tier_->NewFile());
  }
  const size_t part = tier_->part_bytes(), layer_values = shape_.layer_block_values();
  PageBuffer raw(part * (end - begin));
  uint8_t* base = raw.data();
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    for (int64_t block = begin; block < end; ++block) {
      uint8_t* dst = base + (block - begin) * part;
      std::memcpy(dst, blocks_[block].get() + layer * layer_values, layer_values * 2);
      std::memset(dst + layer_values * 2, 0, part - layer_values * 2);
    }
    VC_RETURN_IF_ERROR(file_->Write(tier_->OffsetOf(layer, begin), base, (end - begin) * part));
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

absl::Status FullKv::Warm() {
  const int64_t whole = num_tokens_ / kBlockTokens;
  int64_t hot = 0;
  for (int64_t block = 0; block < whole; ++block) hot += blocks_[block] != nullptr;
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

FullKvView FullKvReader::Open(int layer) {
  if (stream_ == nullptr && status_.ok()) {
    absl::StatusOr<std::unique_ptr<LayerStream>> stream = full_.OpenStream(0);
    if (stream.ok()) {
      stream_ = *std::move(stream);
    } else {
      status_ = stream.status();
    }
  }
  if (stream_ == nullptr) return full_.LostView(layer, &lost_);
  status_.Update(stream_->Open(layer, full_.block_pointers_));
  return ViewOf(*stream_, full_.shape_, full_.num_tokens_);
}

void FullKvReader::Close(int layer) {
  if (stream_ != nullptr) stream_->Close(layer);
}

}  // namespace vericache
