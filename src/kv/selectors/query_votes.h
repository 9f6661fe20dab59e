// What exact queries attend to: the votes of snapkv, verify and vegas, and the pieces that other
// scores are made of. All keys are those of a full KV, in natural units.
#pragma once

#include <vector>

#include "kv/selectors/selector.h"

namespace vericache {

// Query rows of one KV head, scaled by 1 / sqrt(head_dim), in pieces that a kernel takes.
//
// q: [num_rows][num_heads * head_dim] of one layer, after rope, row 0 at position first_pos.
struct HeadQueries {
  const float* q;
  int64_t num_rows;
  int64_t first_pos;
  int num_heads;
  int kv_head;
};
// Rows of one piece: at least one.
int64_t QueryPieceRows(const HeadQueries& queries, const KvShape& shape);
// Calls key_scores for rows [begin, end) of `queries` and keys [key_begin, key_end); scores:
// [(end - begin) * heads_per_kv][ld], column = position; scaled: scratch of (end - begin) *
// heads_per_kv * head_dim. REQUIRES: end - begin <= QueryPieceRows().
void ScoreKeys(const KernelTable& kernels, const FullKvView& kv, const HeadQueries& queries,
               int64_t begin, int64_t end, int64_t key_begin, int64_t key_end, float* scaled,
               float* scores, int64_t ld);

// The causal softmax over all keys of query rows [row_begin, row_end) of input.queries, summed over
// rows and over the heads of one KV head: [num_tokens].
std::vector<float> VotesOf(const SelectInput& input, int layer, int kv_head, int64_t row_begin,
                           int64_t row_end);

}  // namespace vericache
