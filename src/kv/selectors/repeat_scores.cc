#include "kv/selectors/repeat_scores.h"

#include <algorithm>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/types.h"
#include "kv/selectors/query_votes.h"

namespace vericache {
namespace {

constexpr int64_t kSinks = 4;  // keys that every softmax sees
constexpr int kParts = 8;      // pieces of a head's work; maxima may meet in any order

// Four lanes of the base instruction set.
typedef float Floats __attribute__((vector_size(16), aligned(4)));

float SumOf(const float* x, int64_t n) {
  const Floats* v = reinterpret_cast<const Floats*>(x);
  Floats a = {}, b = {};
  int64_t i = 0;
  for (; i + 2 <= n / 4; i += 2) {
    a += v[i];
    b += v[i + 1];
  }
  a += b;
  float sum = (a[0] + a[1]) + (a[2] + a[3]);
  for (int64_t j = i * 4; j < n; ++j) sum += x[j];
  return sum;
}

// Largest of n >= 1 values; any value if one is NaN.
float LargestOf(const float* x, int64_t n) {
  const Floats* v = reinterpret_cast<const Floats*>(x);
  float max = x[0];
  if (n >= 4) {
    Floats lanes = v[0];
    for (int64_t i = 1; i < n / 4; ++i) lanes = v[i] > lanes ? v[i] : lanes;
    max = std::max(std::max(lanes[0], lanes[1]), std::max(lanes[2], lanes[3]));
  }
  for (int64_t j = n / 4 * 4; j < n; ++j) max = std::max(max, x[j]);
  return max;
}

// scores[j] = exp(scores[j] - max); their sum.
float ExpOfScores(const KernelTable& kernels, float max, float* scores, int64_t num_keys) {
  for (int64_t j = 0; j < num_keys; ++j) scores[j] -= max;
  kernels.exp(scores, num_keys, scores);
  return SumOf(scores, num_keys);
}

// One row of scores by position, and the ranges of it that its softmax runs over.
struct RepeatRow {
  float* scores;
  int64_t sinks, chunk_begin, chunk_end, own_begin, own_end;
};

// best[j] = max(best[j], the softmax at key chunk_begin + j).
void RaiseToSoftmax(const KernelTable& kernels, const RepeatRow& row, float* best) {
  const int64_t ranges[3][2] = {
      {0, row.sinks}, {row.chunk_begin, row.chunk_end}, {row.own_begin, row.own_end}};
  float max = row.scores[row.chunk_begin], sum = 0;
  for (auto [begin, end] : ranges)
    if (begin < end) max = std::max(max, LargestOf(row.scores + begin, end - begin));
  for (auto [begin, end] : ranges)
    if (begin < end) sum += ExpOfScores(kernels, max, row.scores + begin, end - begin);
  const float inv = 1.0f / sum;
  const float* p = row.scores + row.chunk_begin;
  for (int64_t j = 0; j < row.chunk_end - row.chunk_begin; ++j) {
    const float share = p[j] * inv;
    best[j] = share > best[j] ? share : best[j];
  }
}

}  // namespace

RepeatScores::RepeatScores(const KvShape& shape, int num_heads, int64_t num_tokens,
                           const KernelTable* kernels, ThreadPool* pool)
    : shape_(shape),
      num_heads_(num_heads),
      num_tokens_(num_tokens),
      kernels_(kernels),
      pool_(pool) {
  scores_.num_scored = num_tokens;
  scores_.of_head.assign(shape.num_layers * shape.num_kv_heads,
                         std::vector<float>(num_tokens, 0.0f));
}

void RepeatScores::StartChunk(int64_t begin, int64_t end) {
  VC_CHECK(begin % 16 == 0 && begin < end && end <= num_tokens_);
  begin_ = begin;
  end_ = end;
}

void RepeatScores::OnKeys(const LayerRows& rows, const LayerKeys& keys) {
  const int64_t num_keys = rows.first_pos + rows.num_rows, ld = RoundUp(num_keys, 16);
  const int per_kv = num_heads_ / shape_.num_kv_heads;
  const int64_t sinks = std::min(kSinks, begin_);
  std::vector<std::vector<float>> parts((keys.head_end - keys.head_begin) * kParts);
  pool_->ParallelFor(parts.size(), [&](int64_t task, int) {
    const HeadQueries queries{rows.q, rows.num_rows, rows.first_pos, num_heads_,
                              keys.head_begin + static_cast<int>(task / kParts)};
    const int64_t piece = QueryPieceRows(queries, shape_);
    AlignedBuffer<float> scaled(piece * per_kv * shape_.head_dim), scores(piece * per_kv * ld);
    std::vector<float>& best = parts[task];
    best.assign(end_ - begin_, 0.0f);
    for (int64_t begin = task % kParts * piece; begin < rows.num_rows; begin += kParts * piece) {
      const int64_t end = std::min(rows.num_rows, begin + piece);
      // Kernels take whole groups of 16 keys; a column always means the same key.
      const auto score = [&](int64_t from, int64_t to) {
        ScoreKeys(*kernels_, keys.kv.full, queries, begin, end, from / 16 * 16,
                  std::min<int64_t>(RoundUp(to, 16), num_keys), scaled.data(), scores.data(), ld);
      };
      if (sinks > 0) score(0, sinks);
      score(begin_, end_);
      score(num_tokens_, num_keys);
      for (int64_t r = 0; r < (end - begin) * per_kv; ++r)
        RaiseToSoftmax(*kernels_,
                       {scores.data() + r * ld, sinks, begin_, end_, num_tokens_,
                        rows.first_pos + begin + r / per_kv + 1},
                       best.data());
    }
  });
  for (size_t task = 0; task < parts.size(); ++task) {
    float* scores = scores_
                        .of_head[rows.layer * shape_.num_kv_heads + keys.head_begin +
                                 static_cast<int>(task) / kParts]
                        .data() +
                    begin_;
    for (int64_t j = 0; j < end_ - begin_; ++j) scores[j] = std::max(scores[j], parts[task][j]);
  }
}

}  // namespace vericache
