// Block pointers of one KV head of a layer after another, of blocks in RAM and spilled ones alike.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "kv/kv_stream.h"
#include "kv/kv_tier.h"

namespace vericache {

// What came from a tier, over passes.
struct StreamTotals {
  int64_t bytes = 0;
  int64_t wait_ns = 0;      // compute slept for it
  int64_t transfer_ns = 0;  // in which reads were under way
  int64_t num_passes = 0;   // that read anything

  void Add(const StreamStats& stats);
};

class LayerStream {
 public:
  LayerStream(std::shared_ptr<KvTier> tier, std::unique_ptr<KvStream> stream);
  ~LayerStream();

  void Start() { stream_->Start(); }
  // Fills blocks() for a head of a layer; all heads of all layers in order, one at a time. hot:
  // [num_blocks] starts of blocks in RAM, null: spilled.
  // Sleeps until it is here. ERRORS: of the reads; the pointers are valid all the same.
  absl::Status Open(int layer, int kv_head, const std::vector<const uint16_t*>& hot);
  void Close(int layer, int kv_head) { stream_->ReleasePlane(PlaneOf(layer, kv_head)); }
  // [num_blocks] starts of this head's [K | V].
  const uint16_t* const* blocks() const { return pointers_.data(); }
  StreamStats stats() const { return stream_->stats(); }

 private:
  int PlaneOf(int layer, int kv_head) const {
    return layer * tier_->shape().num_kv_heads + kv_head;
  }

  std::shared_ptr<KvTier> tier_;  // outlives the stream
  std::unique_ptr<KvStream> stream_;
  std::vector<const uint16_t*> pointers_;
  std::vector<const uint8_t*> parts_;
};

}  // namespace vericache
