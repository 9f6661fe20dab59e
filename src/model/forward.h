// The model and its one forward pass, which serves prefill, drafting and verification alike.
//
// A pass takes row groups of many sequences, each with its own K/V (full or draft), so the weights
// are read once for all. A row's result does not depend on the rows beside it, bit for bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "base/types.h"
#include "gguf/reader.h"
#include "kernels/kernels.h"
#include "model/attention.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/weights.h"

namespace vericache {

// Consecutive positions of one sequence.
struct RowGroup {
  absl::Span<const TokenId> tokens;  // one per row, each in [0, vocab_size)
  int64_t first_pos = 0;             // position of tokens[0]
  KvSource* kv = nullptr;            // receives the rows' K/V
  int64_t logits_begin = 0;          // rows [logits_begin, tokens.size()) need logits
  ForwardObserver* observer = nullptr;
};

// Rows [begin, end) of the output matrix; begin is a multiple of kOutTile, end too or vocab_size.
struct OutRange {
  int64_t begin, end;
};

// Final hidden states (after the last norm) of the rows that need logits, in order of the batch.
struct HiddenRows {
  AlignedBuffer<float> x;  // [num_rows][hidden_size]
  int64_t num_rows = 0;
};

// Config and weights; immutable, shared by any number of Forward objects.
struct Model {
  ModelConfig config;
  Weights weights;
  const KernelTable* kernels = nullptr;
  std::shared_ptr<const GgufFile> file;

  // ERRORS: those of ReadModelConfig and LoadWeights.
  static absl::StatusOr<std::unique_ptr<Model>> Load(std::shared_ptr<const GgufFile> file,
                                                     const KernelTable* kernels, ThreadPool* pool,
                                                     const LoadProgress& progress = nullptr);
  // With settings that a caller has changed. ERRORS: those of LoadWeights.
  static absl::StatusOr<std::unique_ptr<Model>> Load(std::shared_ptr<const GgufFile> file,
                                                     const ModelConfig& config,
                                                     const KernelTable* kernels, ThreadPool* pool,
                                                     const LoadProgress& progress = nullptr);
};

// Most rows of one pass; callers cut longer prefills.
inline constexpr int64_t kMaxPassRows = 2048;
// Rows of one call of Logits(): a verification stops at the first mismatch, eight rows at a time.
inline constexpr int64_t kLogitsRows = 8;

// Owns the scratch of a pass. THREADS: one pass at a time.
class Forward {
 public:
  Forward(const Model* model, ThreadPool* pool);  // both outlive *this

  // Appends the rows' K/V to each group's `kv` and fills `hidden`.
  // REQUIRES: 1 to kMaxPassRows rows in all; each kv has room.
  void Run(absl::Span<const RowGroup> batch, HiddenRows* hidden);

  // logits: [num_rows][vocab_size] for rows [row_begin, row_begin + num_rows) of `hidden`.
  void Logits(const HiddenRows& hidden, int64_t row_begin, int64_t num_rows, float* logits);
  // The same for rows picked from anywhere.
  void LogitsOf(absl::Span<const float* const> rows, float* logits);
  // Of these ids alone, each where it stands in [num_rows][vocab_size]; the others are not written.
  void LogitsOf(absl::Span<const float* const> rows, absl::Span<const OutRange> ids, float* logits);

 private:
  struct MatmulJob {
    const PackedMatrix* w;
    float* y;  // [rows][w->rows]
    const float* bias = nullptr;
    absl::Span<const OutRange> ranges = {};  // empty: all outputs
  };
  // Outputs [out_begin, out_end) of a job: what a thread takes at once.
  struct Piece {
    const MatmulJob* job;
    int64_t out_begin, out_end;
  };
  // Activations of one matrix input in every format its weights want.
  struct ActCache {
    AlignedBuffer<int8_t> q32, q256;
    AlignedBuffer<float> scale32, scale256;
    AlignedBuffer<int16_t> sums32, sums256;
    bool has32 = false, has256 = false;
  };

  // A row group of a layer that is under way.
  struct Observed {
    int64_t row = 0;  // its first one in the pass
    bool by_head = false;
    ForwardObserver::LayerRows rows{};  // where it has an observer
    const VoteWish* votes = nullptr;
  };

  void Prepare(int64_t num_rows, absl::Span<const RowGroup> batch);
  void Embed(absl::Span<const RowGroup> batch);
  void NormRows(const float* x, const float* w, int64_t num_rows, float* y);
  void MatmulAll(const float* x, int64_t cols, int64_t num_rows, absl::Span<const MatmulJob> jobs);
  void PlanPieces(int64_t total_outputs, absl::Span<const MatmulJob> jobs);
  void QuantizeFor(const float* x, int64_t cols, int64_t num_rows, ActFormat format);
  Activations ActsOf(ActFormat format, const float* x, int64_t cols, int64_t first_row) const;
  void AttentionBlock(int layer, absl::Span<const RowGroup> batch, int64_t num_rows);
  void AttendHeads(int layer, absl::Span<const RowGroup> batch, int head);
  void FeedForwardBlock(int layer, int64_t num_rows);
  void KeepRawQueries(absl::Span<const RowGroup> batch, int64_t num_floats);
  void RotateRows(int64_t num_rows);
  void AddRows(const float* x, int64_t num_rows, float* y);

  const Model* model_;
  ThreadPool* pool_;
  Rope rope_;
  Attention attention_;
  std::vector<AttentionJob> attention_jobs_;
  std::vector<Observed> observed_;  // [row groups]
  std::vector<Piece> pieces_;
  int64_t num_looked_up_ = 0;       // rows of the embedding since its pages were dropped
  AlignedBuffer<float> x_;          // [rows][hidden_size], the residual stream
  AlignedBuffer<float> normed_;     // [rows][hidden_size]
  AlignedBuffer<float> q_, k_, v_;  // [rows][heads * head_dim]
  AlignedBuffer<float> raw_q_;      // q_ before rope, for observers that want it
  AlignedBuffer<float> attn_;       // [rows][num_heads * head_dim]
  AlignedBuffer<float> gate_, up_;  // [rows][intermediate_size]
  AlignedBuffer<float> delta_;      // [rows][hidden_size]
  AlignedBuffer<float> cos_, sin_;  // [rows][rotary_dim / 2]
  AlignedBuffer<float> logit_in_;   // [rows of LogitsOf()][hidden_size]
  ActCache acts_;
};

}  // namespace vericache
