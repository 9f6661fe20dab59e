// SnapKV: the last W exact queries vote for the keys they attend to. snapkv asks them once, at the
// end of the prompt, verify after every round.
//
// Per KV head: causal softmax of the W queries of every head of the group over all keys, summed
// over queries and heads, max-pooled over neighbouring positions; the window itself is always kept,
// and the best of the rest fill up the count (ties: the lower position).
// SOURCE: arXiv 2404.14469, with W = 32 and a max-pool of 7 as measured in acceptance.md.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/aligned_buffer.h"
#include "base/types.h"
#include "kv/selectors/selector.h"

namespace vericache {
namespace {

// Adds the softmax of one query over keys [0, num_keys) to `votes`. scores: [num_keys] in place.
void AddSoftmax(const KernelTable& kernels, float* scores, int64_t num_keys, float* votes) {
  const float max = *std::max_element(scores, scores + num_keys);
  for (int64_t j = 0; j < num_keys; ++j) scores[j] -= max;
  kernels.exp(scores, num_keys, scores);
  double sum = 0;
  for (int64_t j = 0; j < num_keys; ++j) sum += scores[j];
  const float inv = static_cast<float>(1.0 / sum);
  for (int64_t j = 0; j < num_keys; ++j) votes[j] += scores[j] * inv;
}

std::vector<float> MaxPool(const std::vector<float>& x, int width) {
  const int64_t n = x.size(), half = width / 2;
  std::vector<float> y(n);
  for (int64_t i = 0; i < n; ++i) {
    y[i] = *std::max_element(x.begin() + std::max<int64_t>(0, i - half),
                             x.begin() + std::min<int64_t>(n, i + half + 1));
    if (!(y[i] >= 0)) y[i] = 0;  // a NaN row is refused elsewhere; sorting needs an order
  }
  return y;
}

// votes: [num_tokens] of one KV head of one layer.
std::vector<float> HeadVotes(const SelectInput& input, int layer, int kv_head) {
  const QueryRows& queries = *input.queries;
  const KvShape& shape = input.full->shape();
  const int64_t num_tokens = input.full->num_tokens();
  const int per_kv = queries.num_heads / shape.num_kv_heads, d = shape.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  std::vector<float> votes(num_tokens, 0.0f);
  // As many query rows a call as the kernel takes: each block of keys is converted once for all.
  const int64_t batch =
      std::max<int64_t>(1, std::min<int64_t>(queries.num_rows, kMaxAttnRows / per_kv));
  const int64_t ld = RoundUp(num_tokens, 16), group = static_cast<int64_t>(per_kv) * d;
  AlignedBuffer<float> q(batch * group), scores(batch * per_kv * ld);
  for (int64_t begin = 0; begin < queries.num_rows; begin += batch) {
    const int64_t num_rows = std::min(batch, queries.num_rows - begin);
    for (int64_t i = 0; i < num_rows; ++i)
      input.kernels->scale(
          queries.q[layer].data() + (begin + i) * queries.num_heads * d + kv_head * group, scale,
          group, q.data() + i * group);
    AttnRows rows;
    rows.q = q.data();
    rows.num_rows = num_rows * per_kv;
    rows.heads_per_kv = per_kv;
    rows.first_pos = queries.first_pos + begin;
    input.kernels->key_scores(input.full->Committed(layer), kv_head, rows, 0, num_tokens,
                              scores.data(), ld);
    for (int64_t r = 0; r < rows.num_rows; ++r)
      AddSoftmax(*input.kernels, scores.data() + r * ld, rows.first_pos + r / per_kv + 1,
                 votes.data());
  }
  return votes;
}

}  // namespace

KeptSet SelectSnapKv(const DraftSpec& spec, const SelectInput& input) {
  const KvShape& shape = input.full->shape();
  const int64_t num_tokens = input.full->num_tokens();
  const int64_t window = std::min<int64_t>(spec.window, num_tokens);
  const int64_t num_kept = KeptCount(spec, num_tokens, window);
  KeptSet kept;
  kept.positions.resize(static_cast<size_t>(shape.num_layers) * shape.num_kv_heads);
  input.pool->ParallelFor(kept.positions.size(), [&](int64_t task, int) {
    std::vector<int32_t> order(num_tokens - window);
    std::iota(order.begin(), order.end(), 0);
    if (num_kept < num_tokens) {
      const std::vector<float> score =
          MaxPool(HeadVotes(input, static_cast<int>(task / shape.num_kv_heads),
                            static_cast<int>(task % shape.num_kv_heads)),
                  spec.pool);
      std::nth_element(
          order.begin(), order.begin() + (num_kept - window), order.end(),
          [&](int32_t a, int32_t b) { return score[a] != score[b] ? score[a] > score[b] : a < b; });
      order.resize(num_kept - window);
      std::sort(order.begin(), order.end());
    }
    for (int64_t pos = num_tokens - window; pos < num_tokens; ++pos)
      order.push_back(static_cast<int32_t>(pos));
    kept.positions[task] = std::move(order);
  });
  return kept;
}

}  // namespace vericache
