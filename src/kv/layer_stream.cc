#include "kv/layer_stream.h"

#include <algorithm>
#include <utility>

namespace vericache {

void StreamTotals::Add(const StreamStats& stats) {
  if (stats.bytes == 0) return;
  bytes += stats.bytes;
  wait_ns += stats.wait_ns;
  transfer_ns += stats.busy_ns;
  ++num_passes;
}

LayerStream::LayerStream(std::shared_ptr<KvTier> tier, std::unique_ptr<KvStream> stream)
    : tier_(std::move(tier)),
      stream_(std::move(stream)),
      parts_(std::max<int64_t>(1, stream_->num_cold_blocks()), tier_->zero_part()) {}

LayerStream::~LayerStream() = default;

absl::Status LayerStream::Open(int layer, int kv_head, const std::vector<const uint16_t*>& hot) {
  absl::Status status = stream_->WaitPlane(PlaneOf(layer, kv_head), parts_.data());
  const KvShape& shape = tier_->shape();
  const size_t offset = shape.layer_block_values() * layer + shape.head_block_values() * kv_head;
  pointers_.resize(hot.size());
  size_t part = 0;
  for (size_t block = 0; block < hot.size(); ++block)
    pointers_[block] = hot[block] != nullptr ? hot[block] + offset
                                             : reinterpret_cast<const uint16_t*>(parts_[part++]);
  return status;
}

}  // namespace vericache
