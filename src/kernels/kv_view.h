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
  size_t layer_offset = 0;  // values from a block's start to this layer's [heads][K | V]
  int first_head = 0;       // the KV head that stands there first; those before are not at hand
  KvShape shape;
  int64_t num_tokens = 0;

  const uint16_t* Head(int64_t block_idx, int kv_head) const {
    return blocks[block_idx] + layer_offset + shape.head_block_values() * (kv_head - first_head);
  }
};

// Number formats of stored draft keys and values; the value is the number of bits of one code.
enum class DraftFormat : uint8_t {
  kInt2 = 2,
  kInt3 = 3,
  kInt4 = 4,
  kInt5 = 5,
  kInt6 = 6,
  kInt7 = 7,
  kInt8 = 8,
  kF16 = 16,
};
constexpr int BitsOf(DraftFormat format) { return static_cast<int>(format); }

// One KV head of one layer of a draft KV: `num_groups` groups of 32 kept keys in the codec's
// format, then `num_tail` keys in f16.
//
// Codes are asymmetric: value = min + scale * code, scale and min in f16; head_dim is a multiple of
// 32. K is coded per channel over the group's 32 keys, V per key over 32 channels (compressors.md,
// "Ours"). Codes are stored in blocks of 1,024: 32 rows, which are summed over, of 32 lanes, which
// stay apart. Four rows that meet in one sum (a step) lie side by side, so that one instruction
// multiplies them.
//     K       k_data [num_groups][head_dim / 32] blocks: a row is a channel, a lane is a key
//             k_scale / k_min [num_groups][head_dim] f16
//     V       v_data [num_groups][head_dim / 32] blocks: a row is a key, a lane is a channel
//             v_scale / v_min [num_groups][head_dim / 32][32 keys] f16
// A block of n-bit codes takes 128 n bytes; row r is row r % 4 of step r / 4:
//     kInt8   [8 steps][2][16 lanes][4 rows] u8, lanes from 16 on in the second half
//     others  planes of 4, 2 and 1 bits, as many as add up to n, in this order and behind each
//             other; the first plane has the lowest bits of a code (7 = 4 + 2 + 1, 3 = 2 + 1).
//             A plane of w bits: [8 w / 4][16 lanes][4 rows] u8. A byte holds 4 / w steps: step t
//             of lane i from bit w (t % (4 / w)) on, and of lane i + 16 four bits higher.
//             So kInt4 is [8 steps][16][4] u8, lane i in the low nibble and i + 16 in the high one.
// Groups in f16 (of K, of V or of both):
//     K       k_data [num_groups][2][head_dim][16] f16
//     V       v_data [num_groups][padded_head_dim / 16][32][16] f16
// The tail: tail_k [ceil(num_tail / 16)][head_dim][16] f16,
//           tail_v [ceil(num_tail / 16)][padded_head_dim / 16][16 keys][16 channels] f16.
// Unused lanes of the last tail group are never multiplied; DraftKv keeps zeros there.
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
  // Coded groups hold their keys and values rotated: every 32 channels times H32 / sqrt(32), a
  // Hadamard matrix (arXiv 2404.00456). Whatever is in f16 is not rotated.
  bool rotated = false;
  // Query-time reading (arXiv 2406.10774). 0: a step reads all groups. Otherwise it ranks them by
  // KernelTable::group_bounds and reads the best `num_selected` < num_groups; `groups` are those,
  // ascending, once they are known (model/attention.h), and kernels then read no other. The bounds
  // of a channel are k_min and k_min + k_scale * (largest code); for f16 groups that code is 1.
  int64_t num_selected = 0;
  const int32_t* groups = nullptr;  // [num_selected], or null: all

  int64_t num_keys() const { return num_groups * kDraftGroup + num_tail; }
  int64_t num_groups_read() const { return groups != nullptr ? num_selected : num_groups; }
  int64_t num_keys_read() const { return num_groups_read() * kDraftGroup + num_tail; }
  int64_t GroupAt(int64_t i) const { return groups != nullptr ? groups[i] : i; }
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

  // True: K/V come in from a tier, one KV head of a layer at a time. Head() is then asked for all
  // heads of a layer in order, instead of Layer(); it may sleep until the rows are in memory, which
  // are there until DoneWith() gives them back.
  virtual bool by_head() const { return false; }
  virtual KvView Head(int layer, int kv_head) {
    (void)kv_head;
    return Layer(layer);
  }
  virtual void DoneWith(int layer, int kv_head) {
    (void)layer;
    (void)kv_head;
  }
};

// Asks a pass what its rows attend to: for each key that was there before the pass, its softmax
// weight, summed over rows [row_begin, row_end) of a group and over the heads of a KV head.
struct VoteWish {
  int64_t row_begin = 0, row_end = 0;
  int64_t num_keys = 0;    // the first so many positions; at most the position of row 0
  float* votes = nullptr;  // [num_kv_heads][votes_ld()], set by the pass; columns from num_keys on
                           // are nobody's. A row that is not finite has no vote.
  int64_t votes_ld() const { return (num_keys + 63) / 64 * 64; }
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
    const float* raw_q;   // q before rope; null unless wants_raw_queries()
  };
  // KV heads [head_begin, head_end) of a layer: all its rows so far, those of the pass included.
  struct LayerKeys {
    KvView kv;
    int head_begin, head_end;
  };
  virtual bool wants_raw_queries() const { return false; }
  // Called between passes over weights, on the thread that runs the pass.
  virtual void OnLayer(const LayerRows& rows) { (void)rows; }
  // After OnLayer(), before the attention of these heads; a layer's heads come in one call or more.
  virtual void OnKeys(const LayerRows& rows, const LayerKeys& keys) {
    (void)rows;
    (void)keys;
  }
  // Asked after OnLayer(): what to fill in, or null. Over full KV.
  virtual const VoteWish* WantsVotes(int layer) {
    (void)layer;
    return nullptr;
  }
  // The wish is fulfilled for these heads of `layer`.
  virtual void OnVotes(int layer, const LayerKeys& keys) {
    (void)layer;
    (void)keys;
  }
};

}  // namespace vericache
