// The numeric kernels of the engine: one table of function pointers per ISA, chosen once at start.
//
// CONTRACT (docs/exactness.md is the full text): every function gives the same bits in every table.
// The order in which the terms of an output are added depends on shapes and absolute positions
// alone. `scalar` is the judge: plain loops, no vectors. FMA happens only where the contract says.
// Row-wise: output row i depends on input row i only, never on how many rows a call has.
// THREADS: all functions are pure; the caller sets ScopedFpEnv (ThreadPool does).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor_type.h"
#include "kernels/kv_view.h"

namespace vericache {

// Form in which a weight type wants its activations.
enum class ActFormat { kF32, kInt8Per32, kInt8Per256 };
ActFormat ActFormatOf(TensorType weight_type);

// Rows of activations in one format. Strides are dense: row r starts at r * cols (q, f32),
// r * cols / block (scale), r * cols / 16 or / 32 (sums).
struct Activations {
  ActFormat format = ActFormat::kF32;
  int64_t cols = 0;
  const float* f32 = nullptr;     // kF32: [rows][cols]
  const int8_t* q = nullptr;      // int8: [rows][cols]
  const float* scale = nullptr;   // int8: [rows][cols / 32] or [rows][cols / 256]
  const int16_t* sums = nullptr;  // kInt8Per32: [rows][cols / 32]; kInt8Per256: [rows][cols / 16]
};

// One weight matrix [rows outputs][cols inputs] in the layout a table wants. `data` was written by
// that table's pack(); rows are padded to a multiple of kOutTile with zero weights.
struct PackedMatrix {
  TensorType type = TensorType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const uint8_t* data = nullptr;
};

// Outputs are handed to threads in multiples of this many matrix rows.
inline constexpr int64_t kOutTile = 16;

// Softmax state of flattened rows over one segment of 1,024 positions. Flattened row r of a tile is
// query position r / heads_per_kv, head r % heads_per_kv of the KV head's group.
inline constexpr int64_t kSegmentTokens = 1024;
struct AttnState {
  float* max;  // [rows], of scores times log2(e); -inf: no key seen yet
  float* sum;  // [rows][16]: virtual lane = key position mod 16
  float* acc;  // [rows][padded_head_dim]
};

// Where a call leaves what some of its rows gave each key of the segment's first blocks, all of
// which those rows see whole or up to where nobody asks: probabilities beside the row's maximum so
// far, which sum_votes() brings to one scale.
struct AttnProbs {
  uint16_t* p = nullptr;                // [num_blocks][ld][64] f16, in (0, 1]; null: nobody asks
  float* max = nullptr;                 // [num_blocks][ld], of scores times log2(e)
  int64_t ld = 0;                       // rows of a block, of all calls that share the arrays
  int64_t row_begin = 0, num_rows = 0;  // of the call's flattened rows; row_begin goes to row 0
  int64_t num_blocks = 0;
};

// The queries of one tile: `num_rows` flattened rows of one KV head.
struct AttnRows {
  const float* q = nullptr;  // [num_rows][head_dim], already scaled by 1/sqrt(head_dim)
  int64_t num_rows = 0;      // query positions * heads_per_kv
  int heads_per_kv = 1;
  // Position of flattened row 0; row r sees keys [0, first_pos + r / heads_per_kv].
  int64_t first_pos = 0;
  AttnProbs probs = {};
};
// Most flattened rows one attention call takes; bounds the scratch.
inline constexpr int64_t kMaxAttnRows = 128;

struct ArgmaxResult {
  int32_t id;       // lowest id of the largest value; -1 if no value is finite
  bool all_finite;  // false if any value is NaN or infinite: the row is bad
};

struct KernelTable {
  const char* name;  // "scalar", "avx2", "avx512"

  // --- Weights -------------------------------------------------------------------------------
  // Bytes pack() needs for a matrix (rows padded to kOutTile). cols is a multiple of the type's
  // block size.
  size_t (*packed_bytes)(TensorType type, int64_t rows, int64_t cols);
  // Repacks output rows [row_begin, row_end) from GGUF layout; row_begin is a multiple of kOutTile,
  // row_end is one too or == rows (then the padding is written as well).
  void (*pack)(TensorType type, int64_t rows, int64_t cols, const uint8_t* src, uint8_t* dst,
               int64_t row_begin, int64_t row_end);
  // One row of int8 activations. n is a multiple of the format's block (32 or 256).
  void (*quantize_per32)(const float* x, int64_t n, int8_t* q, float* scale, int16_t* sums);
  void (*quantize_per256)(const float* x, int64_t n, int8_t* q, float* scale, int16_t* sums);
  // y[r][o] = sum_k w[o][k] x[r][k] for r in [0, num_rows), o in [out_begin, out_end); out_begin is
  // a multiple of kOutTile, out_end too or == w.rows. y has ldy floats a row. Writes nothing else.
  void (*matmul)(const PackedMatrix& w, const Activations& x, int64_t num_rows, int64_t out_begin,
                 int64_t out_end, float* y, int64_t ldy);

  // --- Rows ----------------------------------------------------------------------------------
  // y = x / sqrt(mean(x^2) + eps) * w. x and y may be the same.
  void (*rms_norm)(const float* x, const float* w, int64_t n, float eps, float* y);
  // y[i] += x[i].
  void (*add)(const float* x, int64_t n, float* y);
  // y[i] = gate[i] / (1 + exp(-gate[i])) * up[i]. y may be gate.
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* y);
  // y[i] = x[i] * s.
  void (*scale)(const float* x, float s, int64_t n, float* y);
  // Rotates one head in place; cos, sin: [rotary_dim / 2]. `adjacent`: pairs (2i, 2i + 1) (llama's
  // GGUF order), otherwise (i, i + rotary_dim / 2) (NeoX, qwen2).
  void (*rope_adjacent)(float* x, const float* cos, const float* sin, int64_t rotary_dim);
  void (*rope_neox)(float* x, const float* cos, const float* sin, int64_t rotary_dim);
  // Rounds to f16, nearest even, saturated to +-65504; NaN stays NaN.
  void (*f32_to_f16)(const float* x, int64_t n, uint16_t* y);
  void (*f16_to_f32)(const uint16_t* x, int64_t n, float* y);
  ArgmaxResult (*argmax)(const float* x, int64_t n);
  void (*exp)(const float* x, int64_t n, float* y);
  // y[i] += softmax(x)[i] for n >= 1 values; x is lost. A row that is not finite adds nothing. Used
  // by compressors.
  void (*add_softmax)(float* x, int64_t n, float* y);

  // --- Attention over full KV ----------------------------------------------------------------
  // Writes the state of all rows over positions [segment * 1024, +1024) of `kv`. Rows that see no
  // key of the segment get max = -inf, sum = acc = 0.
  // REQUIRES: rows.num_rows <= kMaxAttnRows; scratch holds attn_scratch_floats(head_dim).
  void (*attend_segment)(const FullKvView& kv, int kv_head, const AttnRows& rows, int64_t segment,
                         AttnState state, float* scratch);
  // total = total followed by next (segments in order). A row of `next` without keys changes
  // nothing; a row of `total` without keys becomes next's.
  void (*attend_combine)(int64_t num_rows, int64_t padded_head_dim, AttnState next,
                         AttnState total);
  // out[r][d] = acc / sum for d < head_dim; out has ldo floats a row.
  void (*attend_finish)(int64_t num_rows, int64_t head_dim, AttnState total, float* out,
                        int64_t ldo);
  // One block of AttnProbs: votes[j] = sum over rows r, in order, of p[r][j] * w[r], j < 64, where
  // w[r] = exp2(block_max[r] - row_max[r]) * inverse_sum[r]: row_max and 1 / sum of the whole row.
  // A row whose weight is not above 0 or not finite is left out. Used by compressors.
  void (*sum_votes)(const uint16_t* p, const float* block_max, int64_t num_rows,
                    const float* row_max, const float* inverse_sum, float* votes);
  // scores[r * ld + j] = q_r . k_j for keys j in [key_begin, key_end) (multiples of 16 or the end;
  // j is the absolute position), unmasked, in natural units. Used by compressors.
  void (*key_scores)(const FullKvView& kv, int kv_head, const AttnRows& rows, int64_t key_begin,
                     int64_t key_end, float* scores, int64_t ld);

  // --- Draft KV ------------------------------------------------------------------------------
  // Codes of one block (kv_view.h) of a format other than f16. x: 32 rows of 32 values, `stride`
  // values apart; scale, min: [32] f16. Per row min is the least value, and scale * (largest code)
  // the range above it, both rounded to f16 before they serve to encode; a NaN counts as 0.
  void (*encode_block)(DraftFormat format, const float* x, int64_t stride, uint8_t* block,
                       uint16_t* scale, uint16_t* min);
  // One position: `num_heads` <= kMaxAttnRows query rows q [num_heads][head_dim] (scaled) against
  // the keys of `kv` (of its selected groups, if it names any, and its tail); out [num_heads][ldo].
  // scratch: DraftScratchFloats(num_heads, kv.num_keys_read(), head_dim).
  void (*attend_draft)(const DraftHeadView& kv, const float* q, int num_heads, float* out,
                       int64_t ldo, float* scratch);
  // rank[g] = the largest over the heads of an upper bound of q . k for the keys k of group g: the
  // sum over channels of max(q min, q (min + scale * largest code)). -inf where no head's bound is
  // a number. REQUIRES: kv has k_scale and k_min. scratch: num_heads * head_dim floats.
  void (*group_bounds)(const DraftHeadView& kv, const float* q, int num_heads, float* rank,
                       float* scratch);
};

// Floats of scratch for attend_segment / attend_draft; the same for every table.
size_t AttnScratchFloats(int64_t head_dim);
size_t DraftScratchFloats(int64_t num_heads, int64_t num_keys, int64_t head_dim);

// All tables this build has and this CPU can run, the judge first: "scalar" (-mfma), then "avx2",
// "avx512" (with VNNI), and "scalar-baseline" (no -mfma, for tests) last.
absl::Span<const KernelTable* const> AllKernelTables();
// The fastest table, or the one named. ERRORS: kFailedPrecondition naming the missing CPU feature;
// kInvalidArgument for an unknown name (lists the names).
absl::StatusOr<const KernelTable*> SelectKernels(std::string_view name = "");

// Dequantises one row of a GGUF tensor (token embeddings); not dispatched, same bits everywhere.
void DequantizeRow(TensorType type, const uint8_t* src, int64_t n, float* y);

// --- The contract's own elementary functions, fp64, plain C++ (load time, rope, sampling) --------
double ContractExp(double x);
double ContractLog(double x);                             // x > 0
double ContractPow(double base, double exponent);         // base > 0: exp(exponent * log(base))
void ContractSinCos(double x, double* sin, double* cos);  // |x| < 2^30

}  // namespace vericache
