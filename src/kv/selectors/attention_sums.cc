#include "kv/selectors/attention_sums.h"

#include <algorithm>

#include "base/types.h"

namespace vericache {
namespace {

// Pieces of a head's queries that are worked on at once.
constexpr int64_t kPiecesAtOnce = 8;

void AddTo(const std::vector<float>& sum, std::vector<float>* total) {
  const size_t n = std::min(sum.size(), total->size());
  for (size_t j = 0; j < n; ++j) (*total)[j] += sum[j];
}

}  // namespace

AttentionSums::AttentionSums(const KvShape& shape, int num_heads, int64_t num_tokens,
                             const KernelTable* kernels, ThreadPool* pool)
    : shape_(shape), num_heads_(num_heads), kernels_(kernels), pool_(pool) {
  sums_.num_scored = num_tokens;
  sums_.of_head.assign(shape.num_layers * shape.num_kv_heads, std::vector<float>(num_tokens, 0.0f));
  open_.resize(sums_.of_head.size());
}

// Rows of piece number `piece`, those of its rows that are in `rows`: their attention, added to
// what an earlier pass left of the same piece.
void AttentionSums::AddPiece(const LayerRows& rows, const FullKvView& kv,
                             const HeadQueries& queries, int64_t piece, Scratch* scratch,
                             std::vector<float>* sum) const {
  const int64_t size = QueryPieceRows(queries, shape_), per_kv = num_heads_ / shape_.num_kv_heads;
  const int64_t begin = std::max<int64_t>(0, piece * size - rows.first_pos);
  const int64_t end = std::min(rows.num_rows, (piece + 1) * size - rows.first_pos);
  const int64_t num_keys = rows.first_pos + end, ld = RoundUp(num_keys, 16);
  scratch->scaled.Resize(size * per_kv * shape_.head_dim);
  scratch->scores.Resize(size * per_kv * ld);
  float* scores = scratch->scores.data();
  ScoreKeys(*kernels_, kv, queries, begin, end, 0, num_keys, scratch->scaled.data(), scores, ld);
  sum->resize(num_keys, 0.0f);
  for (int64_t r = 0; r < (end - begin) * per_kv; ++r)
    kernels_->add_softmax(scores + r * ld, rows.first_pos + begin + r / per_kv + 1, sum->data());
}

void AttentionSums::OnKeys(const LayerRows& rows, const LayerKeys& keys) {
  const int num_heads = keys.head_end - keys.head_begin;
  const int first_list = rows.layer * shape_.num_kv_heads + keys.head_begin;
  const auto queries = [&](int kv_head) {
    return HeadQueries{rows.q, rows.num_rows, rows.first_pos, num_heads_, kv_head};
  };
  const int64_t size = QueryPieceRows(queries(0), shape_), end = rows.first_pos + rows.num_rows;
  const int64_t first_piece = rows.first_pos / size,
                num_pieces = (end - 1) / size + 1 - first_piece;
  // A few pieces at a time: each sum takes as much memory as the result.
  std::vector<Scratch> scratch(pool_->num_threads());
  std::vector<std::vector<float>> sums(num_heads * kPiecesAtOnce);
  for (int64_t done = 0; done < num_pieces; done += kPiecesAtOnce) {
    const int64_t now = std::min(kPiecesAtOnce, num_pieces - done);
    pool_->ParallelFor(num_heads * now, [&](int64_t task, int thread) {
      const int kv_head = static_cast<int>(task / now);
      const int64_t piece = first_piece + done + task % now;
      std::vector<float>& sum = sums[kv_head * kPiecesAtOnce + task % now];
      sum.clear();
      if (piece == first_piece) sum.swap(open_[first_list + kv_head]);
      AddPiece(rows, keys.kv.full, queries(keys.head_begin + kv_head), piece, &scratch[thread],
               &sum);
    });
    pool_->ParallelFor(num_heads, [&](int64_t kv_head, int) {
      for (int64_t i = 0; i < now; ++i) {
        std::vector<float>& sum = sums[kv_head * kPiecesAtOnce + i];
        if ((first_piece + done + i + 1) * size > end)
          open_[first_list + kv_head].swap(sum);
        else
          AddTo(sum, &sums_.of_head[first_list + kv_head]);
      }
    });
  }
}

KeyScores AttentionSums::Take() {
  for (size_t list = 0; list < open_.size(); ++list) AddTo(open_[list], &sums_.of_head[list]);
  return std::move(sums_);
}

}  // namespace vericache
