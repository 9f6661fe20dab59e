#include "kv/selectors/query_moments.h"

#include <algorithm>
#include <cmath>

#include "base/aligned_buffer.h"
#include "base/float16.h"
#include "base/status_macros.h"
#include "kv/block_layout.h"
#include "kv/selectors/query_votes.h"

namespace vericache {
namespace {

// Rotates one vector of pairs in place by mean cosines and sines; channels behind rotary_dim stay.
void Rotate(const MeanRotation& r, double* x, int64_t stride) {
  const int64_t half = static_cast<int64_t>(r.cos.size());
  for (int64_t i = 0; i < half; ++i) {
    double& a = x[(r.adjacent ? 2 * i : i) * stride];
    double& b = x[(r.adjacent ? 2 * i + 1 : i + half) * stride];
    const double turned = a * r.cos[i] - b * r.sin[i];
    b = a * r.sin[i] + b * r.cos[i];
    a = turned;
  }
}

// Rows [begin, end) of one head of the full KV in fp32: k, v [end - begin][head_dim].
void ReadRows(const FullKvView& kv, int kv_head, int64_t begin, int64_t end, float* k, float* v) {
  const int d = kv.shape.head_dim;
  for (int64_t pos = begin; pos < end; ++pos) {
    const uint16_t* base = kv.Head(pos / kBlockTokens, kv_head);
    const int64_t slot = pos % kBlockTokens;
    const uint16_t* keys = base + KeyAt(kv.shape, slot);
    for (int c = 0; c < d; ++c) {
      k[(pos - begin) * d + c] = F16ToF32(keys[c * kKvLanes]);
      v[(pos - begin) * d + c] = F16ToF32(base[ValueAt(kv.shape, slot, c)]);
    }
  }
}

// A matrix in the layout that the kernel table multiplies with.
class Packed {
 public:
  Packed(const KernelTable& kernels, const std::vector<float>& values, int64_t n)
      : data_(kernels.packed_bytes(TensorType::kF32, n, n)) {
    kernels.pack(TensorType::kF32, n, n, reinterpret_cast<const uint8_t*>(values.data()),
                 data_.data(), 0, n);
    matrix_ = {TensorType::kF32, n, n, data_.data()};
  }
  const PackedMatrix& matrix() const { return matrix_; }

 private:
  AlignedBuffer<uint8_t> data_;
  PackedMatrix matrix_;
};

}  // namespace

QueryMoments::QueryMoments(const KvShape& shape, int num_heads, int num_sinks, ThreadPool* pool)
    : shape_(shape), num_heads_(num_heads), num_sinks_(num_sinks), pool_(pool) {
  const int d = shape.head_dim;
  moments_.assign(static_cast<size_t>(shape.num_layers) * num_heads,
                  {std::vector<float>(d), std::vector<float>(d * d)});
}

void QueryMoments::OnLayer(const LayerRows& rows) {
  const int64_t first = std::clamp<int64_t>(num_sinks_ - rows.first_pos, 0, rows.num_rows);
  if (rows.layer == 0) count_ += rows.num_rows - first;
  const int d = shape_.head_dim;
  pool_->ParallelFor(num_heads_, [&](int64_t head, int) {
    Moments& m = moments_[rows.layer * num_heads_ + head];
    for (int64_t row = first; row < rows.num_rows; ++row) {
      const float* q = rows.raw_q + (row * num_heads_ + head) * d;
      for (int i = 0; i < d; ++i) {
        m.sum[i] += q[i];
        const float x = q[i];
        float* product = m.product.data() + i * d;
        for (int j = 0; j < d; ++j) product[j] += x * q[j];
      }
    }
  });
}

QueryMoments::Expected QueryMoments::ExpectedOf(const Moments& m, const MeanRotation& r) const {
  const int d = shape_.head_dim;
  const double n = std::max<double>(1, static_cast<double>(count_));
  std::vector<double> mean(d), covariance(d * d);
  for (int i = 0; i < d; ++i) mean[i] = m.sum[i] / n;
  for (int i = 0; i < d; ++i)
    for (int j = 0; j < d; ++j)
      covariance[i * d + j] = m.product[i * d + j] / n - mean[i] * mean[j];
  Rotate(r, mean.data(), 1);
  for (int j = 0; j < d; ++j) Rotate(r, covariance.data() + j, d);      // R C
  for (int i = 0; i < d; ++i) Rotate(r, covariance.data() + i * d, 1);  // (R C) R^T
  return {std::vector<float>(mean.begin(), mean.end()),
          std::vector<float>(covariance.begin(), covariance.end())};
}

std::vector<float> QueryMoments::HeadScores(const FullKvView& kv, int layer, int kv_head,
                                            const MeanRotation& rotation,
                                            const KernelTable& kernels) const {
  const int d = shape_.head_dim, per_kv = num_heads_ / shape_.num_kv_heads;
  const int64_t num_tokens = kv.num_tokens;
  const int64_t sinks = std::min<int64_t>(num_sinks_, num_tokens - 1), n = num_tokens - sinks;
  AlignedBuffer<float> k(n * d), v(n * d), turned(n * d);
  ReadRows(kv, kv_head, sinks, num_tokens, k.data(), v.data());
  std::vector<float> logits(n), shares(n, 0.0f), scores(num_tokens);
  const float root = std::sqrt(static_cast<float>(d));
  for (int h = 0; h < per_kv; ++h) {
    const Expected e = ExpectedOf(moments_[layer * num_heads_ + kv_head * per_kv + h], rotation);
    const Packed covariance(kernels, e.covariance, d);
    Activations keys;
    keys.cols = d;
    keys.f32 = k.data();
    kernels.matmul(covariance.matrix(), keys, n, 0, d, turned.data(), d);
    for (int64_t j = 0; j < n; ++j) {
      float linear = 0, square = 0;
      for (int c = 0; c < d; ++c) {
        linear += k[j * d + c] * e.mean[c];
        square += k[j * d + c] * turned[j * d + c];
      }
      logits[j] = linear / root + square / (2 * static_cast<float>(d));
    }
    kernels.add_softmax(logits.data(), n, shares.data());
  }
  float largest = 0;
  for (int64_t j = 0; j < n; ++j) {
    float square = 0;
    for (int c = 0; c < d; ++c) square += v[j * d + c] * v[j * d + c];
    scores[sinks + j] = shares[j] / static_cast<float>(per_kv) * std::sqrt(square);
    largest = std::max(largest, scores[sinks + j]);
  }
  std::fill_n(scores.begin(), sinks, largest + 1);
  return scores;
}

absl::StatusOr<KeyScores> QueryMoments::Scores(const FullKv& full, const MeanRotation& rotation,
                                               const KernelTable& kernels) const {
  KeyScores scores;
  scores.num_scored = full.num_tokens();
  scores.of_head.resize(static_cast<size_t>(shape_.num_layers) * shape_.num_kv_heads);
  const auto score = [&](const LayerViews& layers) {
    const int64_t heads = shape_.num_kv_heads, first = layers.first_list();
    pool_->ParallelFor(layers.end_list() - first, [&](int64_t i, int) {
      const int layer = static_cast<int>((first + i) / heads);
      scores.of_head[first + i] = HeadScores(
          layers[layer], layer, static_cast<int>((first + i) % heads), rotation, kernels);
    });
  };
  VC_RETURN_IF_ERROR(ForEachLayers(full, score));
  return scores;
}

}  // namespace vericache
