// Non-owning windows on the K/V rows of one layer of one sequence.
//
// Two shapes exist: full KV (the authority, f16 blocks of 64 positions) and draft KV (ragged kept
// positions in a codec's format, then an f16 tail). A forward pass reads either through KvSource
// and never knows which one it has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace vericache {

// Keys that share one 16-lane vector: the inner dimension of every K and V layout.
inline constexpr int kKvLanes = 16;
// Kept keys that share the scales of a quantised draft group.
inline constexpr int kDraftGroup = 32;

// Shape of the K/V of a model.
struct KvShape {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;

  // V is stored in 16-channel groups, so its rows are padded to a multiple of 16.
  int padded_head_dim() const { return (head_dim + 15) / 16 * 16; }
  // f16 values of one KV head in one block of 64 positions:
  //   K [4 groups of 16 keys][head_dim][16], then V [padded_head_dim / 16][64 positions][16].
  size_t k_block_values() const { return static_cast<size_t>(64) * head_dim; }
  size_t v_block_values() const { return static_cast<size_t>(64) * padded_head_dim(); }
  size_t head_block_values() const { return k_block_values() + v_block_values(); }
  size_t layer_block_values() const { return head_block_values() * num_kv_heads; }
  // Bytes one position takes in f16 over all layers (what users call KV bytes per token).
  size_t bytes_per_token() const {
    return static_cast<size_t>(num_layers) * num_kv_heads * 2 * head_dim * 2;
  }
};

// One layer of a full KV. Position p lives in block p / 64.
struct FullKvView {
  const uint16_t* const* blocks = nullptr;  // [ceil(num_tokens / 64)]; see layer_offset
  size_t layer_offset = 0;  // values from a block's start to this layer's [num_kv_heads][K | V]
  KvShape shape;
  int64_t num_tokens = 0;

  const uint16_t* Head(int64_t block_idx, int kv_head) const {
    return blocks[block_idx] + layer_offset + shape.head_block_values() * kv_head;
  }
};

// Number formats of stored draft keys and values.
enum class DraftFormat : uint8_t { kF16, kInt8, kInt4 };

// One KV head of one layer of a draft KV: `num_groups` groups of 32 kept keys in the codec's
// format, then `num_tail` keys in f16.
//
// Codes are asymmetric: value = min + scale * code, scale and min in f16; head_dim is a multiple of
// 32. Four codes that meet in one sum lie side by side, so that one instruction multiplies them.
//   K per channel over the group's 32 keys (compressors.md, "Ours"):
//     kF16    k_data [num_groups][2][head_dim][16] f16
//     kInt8   k_data [num_groups][head_dim / 4][2][16 keys][4 channels] u8
//     kInt4   k_data [num_groups][head_dim / 4][16][4] u8: a byte of key i holds key i (low nibble)
//             and key i + 16 (high)
//             k_scale / k_min [num_groups][head_dim] f16
//   V per key over groups of 32 channels, `part` 0 to head_dim / 32 - 1:
//     kF16    v_data [num_groups][padded_head_dim / 16][32][16] f16
//     kInt8   v_data [num_groups][part][32 / 4][2][16 channels][4 keys] u8
//     kInt4   v_data [num_groups][part][32 / 4][16][4] u8: a byte of channel i holds channel i
//     (low)
//             and channel i + 16 (high) of its part
//             v_scale / v_min [num_groups][part][32 keys] f16
//   The tail: tail_k [ceil(num_tail / 16)][head_dim][16] f16,
//             tail_v [ceil(num_tail / 16)][padded_head_dim / 16][16 keys][16 channels] f16.
// Unused lanes of the last tail group hold zeros.
struct DraftHeadView {
  DraftFormat k_format = DraftFormat::kF16;
  DraftFormat v_format = DraftFormat::kF16;
  int head_dim = 0;
  int64_t num_groups = 0;
  const uint8_t* k_data = nullptr;
  const uint16_t* k_scale = nullptr;
  const uint16_t* k_min = nullptr;
  const uint8_t* v_data = nullptr;
  const uint16_t* v_scale = nullptr;
  const uint16_t* v_min = nullptr;
  int64_t num_tail = 0;
  const uint16_t* tail_k = nullptr;
  const uint16_t* tail_v = nullptr;

  int64_t num_keys() const { return num_groups * kDraftGroup + num_tail; }
};

// What one row group attends to in one layer.
struct KvView {
  enum class Kind { kFull, kDraft };
  Kind kind = Kind::kFull;
  FullKvView full;                        // kFull
  absl::Span<const DraftHeadView> draft;  // kDraft: [num_kv_heads]
};

// The K/V of one sequence as one forward pass sees it: new rows go in, a view comes out.
class KvSource {
 public:
  virtual ~KvSource() = default;
  // Stores `num_rows` new rows of `layer` behind the existing ones, rounded to f16 (saturated to
  // +-65504). k, v: [num_rows][num_kv_heads][head_dim] fp32; k already rotated.
  // REQUIRES: room was reserved by the owner before the pass.
  virtual void Append(int layer, const float* k, const float* v, int64_t num_rows) = 0;
  // All rows of `layer` up to and including those just appended. Valid until the next call.
  virtual KvView Layer(int layer) = 0;
};

// Sees what each layer computes; feeds compressors. All arrays are fp32, row-major.
class ForwardObserver {
 public:
  virtual ~ForwardObserver() = default;
  struct LayerRows {
    int layer;
    int64_t first_pos;  // position of row 0
    int64_t num_rows;
    const float* hidden;  // [num_rows][hidden_size], input of the layer
    const float* q;       // [num_rows][num_heads * head_dim], after rope, before scaling
    const float* k;       // [num_rows][num_kv_heads * head_dim], after rope
    const float* v;       // [num_rows][num_kv_heads * head_dim]
  };
  virtual void OnLayer(const LayerRows& rows) = 0;
};

}  // namespace vericache
