#include "model/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/fp_env.h"
#include "base/types.h"

namespace vericache {
namespace {

// 1 / sqrt(head_dim) in fp32, whatever rounding mode the caller is in. The volatiles keep the
// compiler from moving the arithmetic out of the mode's scope.
float QueryScale(int head_dim) {
  const ScopedFpEnv fp_env;
  const volatile float n = static_cast<float>(head_dim);
  const volatile float scale = 1.0f / std::sqrt(n);
  return scale;
}

}  // namespace

Attention::Attention(const ModelConfig& config, const KernelTable* kernels, ThreadPool* pool)
    : config_(config),
      kernels_(kernels),
      pool_(pool),
      heads_per_kv_(config.heads_per_kv_head()),
      padded_dim_(config.kv_shape().padded_head_dim()),
      q_scale_(QueryScale(config.head_dim)),
      scratch_(pool->num_threads()) {
  for (Scratch& s : scratch_) {
    s.q.Resize(kMaxAttnRows * config.head_dim);
    s.state.Resize(StateFloats(kMaxAttnRows));
    s.next.Resize(StateFloats(kMaxAttnRows));
    s.out.Resize(kMaxAttnRows * config.head_dim);
    s.work.Resize(AttnScratchFloats(config.head_dim));
  }
}

// Every part starts on a 64-byte boundary.
int64_t Attention::StateFloats(int64_t flat_rows) const {
  return RoundUp(flat_rows, 16) + flat_rows * (16 + padded_dim_);
}

AttnState Attention::StateAt(float* base, int64_t flat_rows) const {
  AttnState state;
  state.max = base;
  state.sum = base + RoundUp(flat_rows, 16);
  state.acc = state.sum + flat_rows * 16;
  return state;
}

// Scratch for the longest draft KV, on every thread: which thread takes which tile is chance, and
// a steady step allocates nothing. Rounded up, because drafts grow by a key a step.
void Attention::ReserveDraftScratch(absl::Span<const AttentionJob> jobs) {
  int64_t num_keys = 0, num_ranked = 0;
  for (const AttentionJob& job : jobs) {
    for (const DraftHeadView& head : job.kv.draft) {
      num_keys = std::max(num_keys, head.num_keys());
      if (head.num_selected > 0) num_ranked = std::max(num_ranked, head.num_groups);
    }
  }
  if (num_keys == 0) return;
  const size_t floats = std::max<size_t>(
      AttnScratchFloats(config_.head_dim),
      DraftScratchFloats(heads_per_kv_, RoundUp(num_keys, kSegmentTokens), config_.head_dim));
  for (Scratch& s : scratch_) {
    s.work.Resize(floats);
    s.rank.Resize(RoundUp(num_ranked, 64));
    s.groups.Resize(RoundUp(num_ranked, 64));
  }
}

void Attention::PlanTiles(absl::Span<const AttentionJob> jobs) {
  tiles_.clear();
  combines_.clear();
  const int64_t tile_rows = std::max<int64_t>(1, kMaxAttnRows / heads_per_kv_);
  int64_t max_segments = 1;
  for (const AttentionJob& job : jobs) {
    for (int kv_head = job.head_begin; kv_head < job.head_end; ++kv_head) {
      if (job.kv.kind == KvView::Kind::kDraft) {
        for (int64_t row = 0; row < job.num_rows; ++row)
          tiles_.push_back({&job, kv_head, row, row + 1, 0, 1, nullptr});
        continue;
      }
      // Late rows see more keys: the long tiles first, so that the threads end together.
      for (int64_t tile = CeilDiv(job.num_rows, tile_rows) - 1; tile >= 0; --tile) {
        const int64_t end = std::min(job.num_rows, (tile + 1) * tile_rows);
        const int64_t segments = CeilDiv(job.first_pos + end, kSegmentTokens);
        max_segments = std::max(max_segments, segments);
        tiles_.push_back({&job, kv_head, tile * tile_rows, end, 0, segments, nullptr});
      }
    }
  }
  const int64_t enough = 4 * pool_->num_threads();
  if (pool_->num_threads() == 1 || max_segments == 1 ||
      static_cast<int64_t>(tiles_.size()) >= enough)
    return;
  // Few tiles, long context (decoding): every segment becomes a task of its own.
  whole_.assign(tiles_.begin(), tiles_.end());
  tiles_.clear();
  size_t floats = 0;
  for (const Tile& tile : whole_)
    if (tile.job->kv.kind == KvView::Kind::kFull)
      floats += tile.segment_end *
                RoundUp(StateFloats((tile.row_end - tile.row_begin) * heads_per_kv_), 16);
  partials_.Resize(floats);
  float* next = partials_.data();
  for (Tile& tile : whole_) {
    if (tile.job->kv.kind == KvView::Kind::kDraft || tile.segment_end == 1) {
      tiles_.push_back(tile);
      continue;
    }
    tile.partial = next;
    combines_.push_back(tile);
    const int64_t stride =
        RoundUp(StateFloats((tile.row_end - tile.row_begin) * heads_per_kv_), 16);
    for (int64_t segment = 0; segment < tile.segment_end; ++segment) {
      Tile part = tile;
      part.segment_begin = segment;
      part.segment_end = segment + 1;
      part.partial = next;
      tiles_.push_back(part);
      next += stride;
    }
  }
}

AttnRows Attention::LoadQueries(const Tile& tile, Scratch* scratch) const {
  const int64_t group = static_cast<int64_t>(heads_per_kv_) * config_.head_dim;
  const int64_t stride = static_cast<int64_t>(config_.num_heads) * config_.head_dim;
  for (int64_t row = tile.row_begin; row < tile.row_end; ++row)
    kernels_->scale(tile.job->q + row * stride + tile.kv_head * group, q_scale_, group,
                    scratch->q.data() + (row - tile.row_begin) * group);
  AttnRows rows;
  rows.q = scratch->q.data();
  rows.num_rows = (tile.row_end - tile.row_begin) * heads_per_kv_;
  rows.heads_per_kv = heads_per_kv_;
  rows.first_pos = tile.job->first_pos + tile.row_begin;
  return rows;
}

void Attention::StoreOutput(const Tile& tile, AttnState state, Scratch* scratch) {
  KeepRowSums(tile, state);
  const int64_t group = static_cast<int64_t>(heads_per_kv_) * config_.head_dim;
  const int64_t stride = static_cast<int64_t>(config_.num_heads) * config_.head_dim;
  const int64_t num_positions = tile.row_end - tile.row_begin;
  kernels_->attend_finish(num_positions * heads_per_kv_, config_.head_dim, state,
                          scratch->out.data(), config_.head_dim);
  for (int64_t i = 0; i < num_positions; ++i)
    std::memcpy(tile.job->out + (tile.row_begin + i) * stride + tile.kv_head * group,
                scratch->out.data() + i * group, group * sizeof(float));
}

void Attention::RunTile(const Tile& tile, Scratch* scratch) {
  AttnRows rows = LoadQueries(tile, scratch);
  const FullKvView& kv = tile.job->kv.full;
  if (tile.partial != nullptr) {
    rows.probs = ProbsOf(tile, tile.segment_begin);
    kernels_->attend_segment(kv, tile.kv_head, rows, tile.segment_begin,
                             StateAt(tile.partial, rows.num_rows), scratch->work.data());
    return;
  }
  const AttnState total = StateAt(scratch->state.data(), rows.num_rows);
  const AttnState next = StateAt(scratch->next.data(), rows.num_rows);
  for (int64_t segment = 0; segment < tile.segment_end; ++segment) {
    rows.probs = ProbsOf(tile, segment);
    kernels_->attend_segment(kv, tile.kv_head, rows, segment, segment == 0 ? total : next,
                             scratch->work.data());
    if (segment > 0) kernels_->attend_combine(rows.num_rows, padded_dim_, next, total);
  }
  StoreOutput(tile, total, scratch);
}

void Attention::CombineTile(const Tile& tile, Scratch* scratch) {
  const int64_t flat_rows = (tile.row_end - tile.row_begin) * heads_per_kv_;
  const int64_t stride = RoundUp(StateFloats(flat_rows), 16);
  const AttnState total = StateAt(tile.partial, flat_rows);
  for (int64_t segment = 1; segment < tile.segment_end; ++segment)
    kernels_->attend_combine(flat_rows, padded_dim_,
                             StateAt(tile.partial + segment * stride, flat_rows), total);
  StoreOutput(tile, total, scratch);
}

void Attention::SelectGroups(const float* q, DraftHeadView* view, Scratch* scratch) const {
  float* rank = scratch->rank.data();
  int32_t* groups = scratch->groups.data();
  int32_t* const end = groups + view->num_groups;
  kernels_->group_bounds(*view, q, heads_per_kv_, rank, scratch->work.data());
  std::iota(groups, end, 0);
  std::nth_element(groups, groups + view->num_selected, end, [rank](int32_t a, int32_t b) {
    return rank[a] > rank[b] || (rank[a] == rank[b] && a < b);
  });
  std::sort(groups, groups + view->num_selected);
  view->groups = groups;
}

void Attention::RunDraft(const Tile& tile, Scratch* scratch) {
  DraftHeadView view = tile.job->kv.draft[tile.kv_head];
  view.num_tail -= tile.job->num_rows - tile.row_end;  // rows behind this one
  VC_DCHECK(view.num_tail > 0);
  const AttnRows rows = LoadQueries(tile, scratch);
  if (view.num_selected > 0) SelectGroups(rows.q, &view, scratch);
  const int64_t group = static_cast<int64_t>(heads_per_kv_) * config_.head_dim;
  const int64_t stride = static_cast<int64_t>(config_.num_heads) * config_.head_dim;
  kernels_->attend_draft(view, rows.q, heads_per_kv_,
                         tile.job->out + tile.row_begin * stride + tile.kv_head * group,
                         config_.head_dim, scratch->work.data());
}

void Attention::Run(absl::Span<const AttentionJob> jobs) {
  ReserveDraftScratch(jobs);
  PlanTiles(jobs);
  PlanBallots(jobs);
  pool_->ParallelFor(tiles_.size(), [&](int64_t task, int thread) {
    const Tile& tile = tiles_[task];
    if (tile.job->kv.kind == KvView::Kind::kDraft) {
      RunDraft(tile, &scratch_[thread]);
    } else {
      RunTile(tile, &scratch_[thread]);
    }
  });
  if (!combines_.empty()) {
    pool_->ParallelFor(combines_.size(), [&](int64_t task, int thread) {
      CombineTile(combines_[task], &scratch_[thread]);
    });
  }
  CountVotes();
}

void Attention::PlanBallots(absl::Span<const AttentionJob> jobs) {
  ballots_.clear();
  size_t probs = 0, maxima = 0, row_values = 0;
  for (const AttentionJob& job : jobs) {
    if (job.votes == nullptr) continue;
    VC_CHECK(job.kv.kind == KvView::Kind::kFull && job.votes->num_keys <= job.first_pos &&
             job.votes->row_end <= job.num_rows);
    Ballot& b = ballots_.emplace_back();
    b.job = &job;
    b.num_rows = (job.votes->row_end - job.votes->row_begin) * heads_per_kv_;
    b.num_blocks = job.votes->votes_ld() / 64;
    b.probs = probs;
    b.maxima = maxima;
    b.row_values = row_values;
    const size_t rows = (job.head_end - job.head_begin) * b.num_rows;
    probs += rows * b.num_blocks * 64;
    maxima += rows * b.num_blocks;
    row_values += rows;
  }
  probs_.Resize(probs);
  prob_max_.Resize(maxima);
  row_max_.Resize(row_values);
  inverse_sum_.Resize(row_values);
}

const Attention::Ballot& Attention::BallotOf(const AttentionJob& job) const {
  return *std::find_if(ballots_.begin(), ballots_.end(),
                       [&](const Ballot& ballot) { return ballot.job == &job; });
}

// Where the rows of `tile` that vote leave what they give to the keys of `segment`.
AttnProbs Attention::ProbsOf(const Tile& tile, int64_t segment) {
  AttnProbs out;
  const VoteWish* wish = tile.job->votes;
  if (wish == nullptr) return out;
  const int64_t begin = std::max(wish->row_begin, tile.row_begin);
  const int64_t end = std::min(wish->row_end, tile.row_end);
  const Ballot& b = BallotOf(*tile.job);
  const int64_t first_block = segment * (kSegmentTokens / 64);
  if (begin >= end || first_block >= b.num_blocks) return out;
  const int64_t block = (tile.kv_head - tile.job->head_begin) * b.num_blocks + first_block;
  const int64_t row = block * b.num_rows + (begin - wish->row_begin) * heads_per_kv_;
  out.p = probs_.data() + b.probs + row * 64;
  out.max = prob_max_.data() + b.maxima + row;
  out.ld = b.num_rows;
  out.row_begin = (begin - tile.row_begin) * heads_per_kv_;
  out.num_rows = (end - begin) * heads_per_kv_;
  out.num_blocks = b.num_blocks - first_block;
  return out;
}

// total: the rows' state over all segments.
void Attention::KeepRowSums(const Tile& tile, AttnState total) {
  const AttnProbs probs = ProbsOf(tile, 0);
  if (probs.p == nullptr) return;
  const Ballot& b = BallotOf(*tile.job);
  const int64_t first = std::max<int64_t>(0, tile.row_begin - tile.job->votes->row_begin);
  const size_t to =
      b.row_values + (tile.kv_head - tile.job->head_begin) * b.num_rows + first * heads_per_kv_;
  for (int64_t r = 0; r < probs.num_rows; ++r) {
    const float* lanes = total.sum + (probs.row_begin + r) * 16;
    row_max_[to + r] = total.max[probs.row_begin + r];
    inverse_sum_[to + r] = 1.0f / std::accumulate(lanes, lanes + 16, 0.0f);
  }
}

void Attention::CountVotes() {
  if (ballots_.empty()) return;
  constexpr int64_t kBlocksPerTask = 16;
  for (const Ballot& b : ballots_) {
    const VoteWish& wish = *b.job->votes;
    const int64_t per_head = CeilDiv(b.num_blocks, kBlocksPerTask);
    pool_->ParallelFor(per_head * (b.job->head_end - b.job->head_begin), [&](int64_t task, int) {
      const int64_t head = task / per_head, first = task % per_head * kBlocksPerTask;
      const float* row_max = row_max_.data() + b.row_values + head * b.num_rows;
      const float* inverse_sum = inverse_sum_.data() + b.row_values + head * b.num_rows;
      for (int64_t i = first; i < std::min(b.num_blocks, first + kBlocksPerTask); ++i) {
        const int64_t row = (head * b.num_blocks + i) * b.num_rows;
        kernels_->sum_votes(probs_.data() + b.probs + row * 64, prob_max_.data() + b.maxima + row,
                            b.num_rows, row_max, inverse_sum,
                            wish.votes + (b.job->head_begin + head) * wish.votes_ld() + i * 64);
      }
    });
  }
}

}  // namespace vericache
