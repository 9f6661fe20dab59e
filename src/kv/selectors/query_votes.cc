#include "kv/selectors/query_votes.h"

#include <algorithm>
#include <cmath>

#include "base/aligned_buffer.h"
#include "base/types.h"

namespace vericache {

int64_t QueryPieceRows(const HeadQueries& queries, const KvShape& shape) {
  return std::max<int64_t>(1, kMaxAttnRows / (queries.num_heads / shape.num_kv_heads));
}

void ScoreKeys(const KernelTable& kernels, const FullKvView& kv, const HeadQueries& queries,
               int64_t begin, int64_t end, int64_t key_begin, int64_t key_end, float* scaled,
               float* scores, int64_t ld) {
  const int per_kv = queries.num_heads / kv.shape.num_kv_heads, d = kv.shape.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const int64_t group = static_cast<int64_t>(per_kv) * d;
  for (int64_t row = begin; row < end; ++row)
    kernels.scale(queries.q + row * queries.num_heads * d + queries.kv_head * group, scale, group,
                  scaled + (row - begin) * group);
  AttnRows rows;
  rows.q = scaled;
  rows.num_rows = (end - begin) * per_kv;
  rows.heads_per_kv = per_kv;
  rows.first_pos = queries.first_pos + begin;
  kernels.key_scores(kv, queries.kv_head, rows, key_begin, key_end, scores, ld);
}

std::vector<float> VotesOf(const SelectInput& input, int layer, int kv_head, int64_t row_begin,
                           int64_t row_end) {
  const KvShape& shape = input.layers->shape();
  const int64_t num_tokens = input.num_tokens();
  const HeadQueries queries{input.queries->q[layer].data(), input.queries->num_rows,
                            input.queries->first_pos, input.queries->num_heads, kv_head};
  const int per_kv = queries.num_heads / shape.num_kv_heads;
  const FullKvView kv = (*input.layers)[layer];
  std::vector<float> votes(num_tokens, 0.0f);
  // As many query rows a call as the kernel takes: each block of keys is converted once for all.
  const int64_t batch = std::min(row_end - row_begin, QueryPieceRows(queries, shape));
  const int64_t ld = RoundUp(num_tokens, 16);
  AlignedBuffer<float> scaled(batch * per_kv * shape.head_dim), scores(batch * per_kv * ld);
  for (int64_t begin = row_begin; begin < row_end; begin += batch) {
    const int64_t end = std::min(row_end, begin + batch);
    ScoreKeys(*input.kernels, kv, queries, begin, end, 0, num_tokens, scaled.data(), scores.data(),
              ld);
    for (int64_t r = 0; r < (end - begin) * per_kv; ++r)
      // Queries of a pass that is under way have keys of their own, which are not at hand.
      input.kernels->add_softmax(scores.data() + r * ld,
                                 std::min(num_tokens, queries.first_pos + begin + r / per_kv + 1),
                                 votes.data());
  }
  return votes;
}

}  // namespace vericache
