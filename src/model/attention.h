// Runs attention of one layer for all row groups of a pass, spread over the thread pool.
//
// Work is cut into tiles of query rows of one KV head and, where there are few tiles, also into
// segments of 1,024 positions. Both cuts leave the bits alone: rows are independent outputs, and
// segments are combined in order of position either way (docs/exactness.md, "Attention").
// Over draft KV every query row of a KV head is a tile. Where a step reads only some groups of keys
// (DraftHeadView::num_selected), each row chooses its own: those with the largest bounds for any of
// its heads, the lower group of equals.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "model/config.h"

namespace vericache {

// Query rows of one row group in one layer.
struct AttentionJob {
  KvView kv;                 // all rows' own K/V included; draft: they are the end of the tail
  const float* q = nullptr;  // [num_rows][num_heads * head_dim], after rope
  float* out = nullptr;      // the same shape
  int64_t num_rows = 0;
  int64_t first_pos = 0;
  int head_begin = 0, head_end = 0;  // KV heads to do
  const VoteWish* votes = nullptr;   // of these rows; over full KV only
};

class Attention {
 public:
  Attention(const ModelConfig& config, const KernelTable* kernels, ThreadPool* pool);

  // Row r of n sees the keys up to its own: over draft KV all but the last n - 1 - r of the tail.
  void Run(absl::Span<const AttentionJob> jobs);

 private:
  struct Tile {
    const AttentionJob* job;
    int kv_head;
    int64_t row_begin, row_end;          // positions
    int64_t segment_begin, segment_end;  // of this task
    float* partial;                      // states [segment][max | sum | acc], or null: finish here
  };
  // What a job's votes are made of, and where the next job's begin.
  struct Ballot {
    const AttentionJob* job;
    int64_t num_rows, num_blocks;      // flattened rows that vote; blocks they vote on
    size_t probs, maxima, row_values;  // offsets in probs_, prob_max_, row_max_ and inverse_sum_
  };
  struct Scratch {  // of one thread
    AlignedBuffer<float> q, state, next, out, work;
    AlignedBuffer<float> rank;      // [num_groups] of a draft KV
    AlignedBuffer<int32_t> groups;  // the same, best first
  };
  int64_t StateFloats(int64_t flat_rows) const;
  AttnState StateAt(float* base, int64_t flat_rows) const;
  void ReserveDraftScratch(absl::Span<const AttentionJob> jobs);
  void PlanTiles(absl::Span<const AttentionJob> jobs);
  void RunTile(const Tile& tile, Scratch* scratch);
  void CombineTile(const Tile& tile, Scratch* scratch);
  void RunDraft(const Tile& tile, Scratch* scratch);
  void SelectGroups(const float* q, DraftHeadView* view, Scratch* scratch) const;
  void PlanBallots(absl::Span<const AttentionJob> jobs);
  const Ballot& BallotOf(const AttentionJob& job) const;  // REQUIRES: it has a wish
  AttnProbs ProbsOf(const Tile& tile, int64_t segment);
  void KeepRowSums(const Tile& tile, AttnState total);
  void CountVotes();
  AttnRows LoadQueries(const Tile& tile, Scratch* scratch) const;
  void StoreOutput(const Tile& tile, AttnState state, Scratch* scratch);

  const ModelConfig& config_;
  const KernelTable* kernels_;
  ThreadPool* pool_;
  const int heads_per_kv_;
  const int64_t padded_dim_;
  const float q_scale_;  // 1 / sqrt(head_dim) in fp32
  std::vector<Tile> tiles_, combines_;
  std::vector<Tile> whole_;  // tiles_ before they were cut into segments
  std::vector<Scratch> scratch_;
  AlignedBuffer<float> partials_;
  std::vector<Ballot> ballots_;    // of jobs with a wish, in their order
  AlignedBuffer<uint16_t> probs_;  // per ballot [heads of the job][num_blocks][num_rows][64]
  AlignedBuffer<float> prob_max_;  // per ballot [heads of the job][num_blocks][num_rows]
  AlignedBuffer<float> row_max_, inverse_sum_;  // per ballot [heads of the job][num_rows]
};

}  // namespace vericache
