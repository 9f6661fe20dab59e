// The pass reads like the paper: embed, then per layer attention and feed-forward, then a norm.
// Every parallel region is a loop over outputs; see docs/exactness.md for why that is enough.
#include "model/forward.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "base/fp_env.h"
#include "base/status_macros.h"

namespace vericache {
namespace {

// Activation rows a thread multiplies by one group of weight rows before it moves on: their int8
// codes should stay in the level-2 cache.
constexpr int64_t kRowBlock = 96;
// Outputs of the smallest piece of a matrix handed to a thread.
constexpr int64_t kPieceOutputs = 2 * kOutTile;
// Rows of element-wise work per task.
constexpr int64_t kRowsPerTask = 4;
// A look-up in the mapped embedding leaves some pages around its row in memory: after so many they
// are given back, lest a long prompt holds all of it.
constexpr int64_t kLookUpsPerDrop = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Load(std::shared_ptr<const GgufFile> file,
                                                   const KernelTable* kernels, ThreadPool* pool,
                                                   const LoadProgress& progress) {
  VC_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*file));
  return Load(std::move(file), config, kernels, pool, progress);
}

absl::StatusOr<std::unique_ptr<Model>> Model::Load(std::shared_ptr<const GgufFile> file,
                                                   const ModelConfig& config,
                                                   const KernelTable* kernels, ThreadPool* pool,
                                                   const LoadProgress& progress) {
  auto model = std::make_unique<Model>();
  model->config = config;
  VC_ASSIGN_OR_RETURN(model->weights, LoadWeights(*file, model->config, *kernels, pool, progress));
  model->kernels = kernels;
  model->file = std::move(file);
  return model;
}

Forward::Forward(const Model* model, ThreadPool* pool)
    : model_(model),
      pool_(pool),
      rope_(model->config, model->weights.rope_factors),
      attention_(model->config, model->kernels, pool) {
  logit_in_.Resize(kLogitsRows * model->config.hidden_size);
}

void Forward::Prepare(int64_t num_rows, absl::Span<const RowGroup> batch) {
  const ModelConfig& c = model_->config;
  x_.Resize(num_rows * c.hidden_size);
  normed_.Resize(num_rows * c.hidden_size);
  delta_.Resize(num_rows * c.hidden_size);
  q_.Resize(num_rows * c.num_heads * c.head_dim);
  attn_.Resize(num_rows * c.num_heads * c.head_dim);
  k_.Resize(num_rows * c.num_kv_heads * c.head_dim);
  v_.Resize(num_rows * c.num_kv_heads * c.head_dim);
  gate_.Resize(num_rows * c.intermediate_size);
  up_.Resize(num_rows * c.intermediate_size);
  cos_.Resize(num_rows * rope_.half_dim());
  sin_.Resize(num_rows * rope_.half_dim());
  int64_t row = 0;
  for (const RowGroup& group : batch)
    for (size_t i = 0; i < group.tokens.size(); ++i, ++row)
      rope_.AnglesOf(group.first_pos + i, cos_.data() + row * rope_.half_dim(),
                     sin_.data() + row * rope_.half_dim());
}

void Forward::Embed(absl::Span<const RowGroup> batch) {
  const Weights& w = model_->weights;
  float* x = x_.data();
  for (const RowGroup& group : batch) {
    for (TokenId token : group.tokens) {
      VC_CHECK(token >= 0 && token < model_->config.vocab_size);
      DequantizeRow(w.embedding_type, w.embedding + token * w.embedding_row_bytes,
                    model_->config.hidden_size, x);
      x += model_->config.hidden_size;
      ++num_looked_up_;
    }
  }
  if (num_looked_up_ < kLookUpsPerDrop) return;
  num_looked_up_ = 0;
  if (const GgufTensor* embedding = model_->file->FindTensor("token_embd.weight"))
    model_->file->DropPages(*embedding);
}

void Forward::NormRows(const float* x, const float* w, int64_t num_rows, float* y) {
  const int64_t n = model_->config.hidden_size;
  pool_->ParallelFor(CeilDiv(num_rows, kRowsPerTask), [&](int64_t task, int) {
    const int64_t end = std::min(num_rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row)
      model_->kernels->rms_norm(x + row * n, w, n, model_->config.rms_eps, y + row * n);
  });
}

void Forward::AddRows(const float* x, int64_t num_rows, float* y) {
  const int64_t n = model_->config.hidden_size;
  pool_->ParallelFor(CeilDiv(num_rows, kRowsPerTask), [&](int64_t task, int) {
    const int64_t begin = task * kRowsPerTask;
    const int64_t rows = std::min(num_rows, begin + kRowsPerTask) - begin;
    model_->kernels->add(x + begin * n, rows * n, y + begin * n);
  });
}

void Forward::QuantizeFor(const float* x, int64_t cols, int64_t num_rows, ActFormat format) {
  if (format == ActFormat::kF32) return;
  const bool per32 = format == ActFormat::kInt8Per32;
  bool& done = per32 ? acts_.has32 : acts_.has256;
  if (done) return;
  done = true;
  AlignedBuffer<int8_t>& q = per32 ? acts_.q32 : acts_.q256;
  AlignedBuffer<float>& scale = per32 ? acts_.scale32 : acts_.scale256;
  AlignedBuffer<int16_t>& sums = per32 ? acts_.sums32 : acts_.sums256;
  const int64_t num_scales = cols / (per32 ? 32 : 256), num_sums = cols / (per32 ? 32 : 16);
  // The tail lets kernels load whole vectors behind the last row.
  q.Resize(num_rows * cols + 64);
  scale.Resize(num_rows * num_scales + 16);
  sums.Resize(num_rows * num_sums + 32);
  const auto quantize = per32 ? model_->kernels->quantize_per32 : model_->kernels->quantize_per256;
  pool_->ParallelFor(CeilDiv(num_rows, kRowsPerTask), [&](int64_t task, int) {
    const int64_t end = std::min(num_rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row)
      quantize(x + row * cols, cols, q.data() + row * cols, scale.data() + row * num_scales,
               sums.data() + row * num_sums);
  });
}

Activations Forward::ActsOf(ActFormat format, const float* x, int64_t cols,
                            int64_t first_row) const {
  Activations acts;
  acts.format = format;
  acts.cols = cols;
  if (format == ActFormat::kF32) {
    acts.f32 = x + first_row * cols;
  } else if (format == ActFormat::kInt8Per32) {
    acts.q = acts_.q32.data() + first_row * cols;
    acts.scale = acts_.scale32.data() + first_row * (cols / 32);
    acts.sums = acts_.sums32.data() + first_row * (cols / 32);
  } else {
    acts.q = acts_.q256.data() + first_row * cols;
    acts.scale = acts_.scale256.data() + first_row * (cols / 256);
    acts.sums = acts_.sums256.data() + first_row * (cols / 16);
  }
  return acts;
}

// Pieces shrink towards the end, so that all threads end together although each begins with long
// streams of weights. The largest keeps its weights within level 2.
void Forward::PlanPieces(int64_t total_outputs, absl::Span<const MatmulJob> jobs) {
  pieces_.clear();
  int64_t left = total_outputs;
  for (const MatmulJob& job : jobs) {
    const OutRange whole{0, job.w->rows};
    for (const OutRange& range : job.ranges.empty() ? absl::MakeConstSpan(&whole, 1) : job.ranges) {
      for (int64_t begin = range.begin; begin < range.end;) {
        const int64_t size = std::clamp<int64_t>(
            RoundUp(left / (4 * pool_->num_threads()), kPieceOutputs), kPieceOutputs, 256);
        const int64_t end = std::min(range.end, begin + size);
        pieces_.push_back({&job, begin, end});
        left -= end - begin;
        begin = end;
      }
    }
  }
}

// All matrices that share one input run in one region: fewer barriers, better balance.
void Forward::MatmulAll(const float* x, int64_t cols, int64_t num_rows,
                        absl::Span<const MatmulJob> jobs) {
  acts_.has32 = acts_.has256 = false;
  int64_t total_outputs = 0;
  for (const MatmulJob& job : jobs) {
    QuantizeFor(x, cols, num_rows, ActFormatOf(job.w->type));
    if (job.ranges.empty()) total_outputs += job.w->rows;
    for (const OutRange& range : job.ranges) total_outputs += range.end - range.begin;
  }
  PlanPieces(total_outputs, jobs);
  pool_->ParallelFor(pieces_.size(), [&](int64_t task, int) {
    const MatmulJob* job = pieces_[task].job;
    const int64_t out_begin = pieces_[task].out_begin, out_end = pieces_[task].out_end;
    const ActFormat format = ActFormatOf(job->w->type);
    for (int64_t row = 0; row < num_rows; row += kRowBlock) {
      const int64_t rows = std::min(kRowBlock, num_rows - row);
      model_->kernels->matmul(*job->w, ActsOf(format, x, cols, row), rows, out_begin, out_end,
                              job->y + row * job->w->rows, job->w->rows);
    }
    if (job->bias == nullptr) return;
    for (int64_t row = 0; row < num_rows; ++row)
      model_->kernels->add(job->bias + out_begin, out_end - out_begin,
                           job->y + row * job->w->rows + out_begin);
  });
}

void Forward::RotateRows(int64_t num_rows) {
  const ModelConfig& c = model_->config;
  const auto rotate = c.rope_pairs == RopePairs::kAdjacent ? model_->kernels->rope_adjacent
                                                           : model_->kernels->rope_neox;
  pool_->ParallelFor(CeilDiv(num_rows, kRowsPerTask), [&](int64_t task, int) {
    const int64_t end = std::min(num_rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) {
      const float* cos = cos_.data() + row * rope_.half_dim();
      const float* sin = sin_.data() + row * rope_.half_dim();
      for (int h = 0; h < c.num_heads; ++h)
        rotate(q_.data() + (row * c.num_heads + h) * c.head_dim, cos, sin, c.rotary_dim);
      for (int h = 0; h < c.num_kv_heads; ++h)
        rotate(k_.data() + (row * c.num_kv_heads + h) * c.head_dim, cos, sin, c.rotary_dim);
    }
  });
}

// Rotation is in place; the few who want queries from before it pay for a copy.
void Forward::KeepRawQueries(absl::Span<const RowGroup> batch, int64_t num_floats) {
  for (const RowGroup& group : batch) {
    if (group.observer == nullptr || !group.observer->wants_raw_queries()) continue;
    raw_q_.Resize(num_floats);
    std::memcpy(raw_q_.data(), q_.data(), num_floats * sizeof(float));
    return;
  }
}

// KV head `head` of the groups whose K/V come in by heads; with head 0 all heads of the others.
void Forward::AttendHeads(int layer, absl::Span<const RowGroup> batch, int head) {
  const ModelConfig& c = model_->config;
  const int64_t q_size = static_cast<int64_t>(c.num_heads) * c.head_dim;
  attention_jobs_.clear();
  for (size_t i = 0; i < batch.size(); ++i) {
    const Observed& seen = observed_[i];
    if (head > 0 && !seen.by_head) continue;
    AttentionJob& job = attention_jobs_.emplace_back();
    job.kv = seen.by_head ? batch[i].kv->Head(layer, head) : batch[i].kv->Layer(layer);
    job.q = q_.data() + seen.row * q_size;
    job.out = attn_.data() + seen.row * q_size;
    job.num_rows = std::ssize(batch[i].tokens);
    job.first_pos = batch[i].first_pos;
    job.head_begin = head;
    job.head_end = seen.by_head ? head + 1 : c.num_kv_heads;
    job.votes = seen.votes;
    if (batch[i].observer != nullptr)
      batch[i].observer->OnKeys(seen.rows, {job.kv, job.head_begin, job.head_end});
  }
  attention_.Run(attention_jobs_);
  const AttentionJob* job = attention_jobs_.data();
  for (size_t i = 0; i < batch.size(); ++i) {
    if (head > 0 && !observed_[i].by_head) continue;
    if (job->votes != nullptr)
      batch[i].observer->OnVotes(layer, {job->kv, job->head_begin, job->head_end});
    if (observed_[i].by_head) batch[i].kv->DoneWith(layer, head);
    ++job;
  }
}

void Forward::AttentionBlock(int layer, absl::Span<const RowGroup> batch, int64_t num_rows) {
  const ModelConfig& c = model_->config;
  const LayerWeights& w = model_->weights.layers[layer];
  const int64_t q_size = static_cast<int64_t>(c.num_heads) * c.head_dim;
  const int64_t kv_size = static_cast<int64_t>(c.num_kv_heads) * c.head_dim;
  NormRows(x_.data(), w.attn_norm, num_rows, normed_.data());
  const MatmulJob qkv[] = {
      {&w.q, q_.data(), w.q_bias}, {&w.k, k_.data(), w.k_bias}, {&w.v, v_.data(), w.v_bias}};
  MatmulAll(normed_.data(), c.hidden_size, num_rows, qkv);
  KeepRawQueries(batch, num_rows * q_size);
  RotateRows(num_rows);
  int64_t row = 0;
  observed_.clear();
  for (const RowGroup& group : batch) {
    const int64_t n = group.tokens.size();
    const float *k = k_.data() + row * kv_size, *v = v_.data() + row * kv_size;
    group.kv->Append(layer, k, v, n);
    Observed& seen = observed_.emplace_back();
    seen.row = row;
    seen.by_head = group.kv->by_head();
    row += n;
    if (group.observer == nullptr) continue;
    const bool raw = group.observer->wants_raw_queries();
    seen.rows = {layer,
                 group.first_pos,
                 n,
                 x_.data() + seen.row * c.hidden_size,
                 q_.data() + seen.row * q_size,
                 k,
                 v,
                 raw ? raw_q_.data() + seen.row * q_size : nullptr};
    group.observer->OnLayer(seen.rows);
    seen.votes = group.observer->WantsVotes(layer);
  }
  const bool by_head = std::any_of(observed_.begin(), observed_.end(),
                                   [](const Observed& seen) { return seen.by_head; });
  AttendHeads(layer, batch, 0);
  for (int head = 1; by_head && head < c.num_kv_heads; ++head) AttendHeads(layer, batch, head);
  const MatmulJob o[] = {{&w.o, delta_.data(), w.o_bias}};
  MatmulAll(attn_.data(), q_size, num_rows, o);
  AddRows(delta_.data(), num_rows, x_.data());
}

void Forward::FeedForwardBlock(int layer, int64_t num_rows) {
  const ModelConfig& c = model_->config;
  const LayerWeights& w = model_->weights.layers[layer];
  NormRows(x_.data(), w.ffn_norm, num_rows, normed_.data());
  const MatmulJob gate_up[] = {{&w.gate, gate_.data()}, {&w.up, up_.data()}};
  MatmulAll(normed_.data(), c.hidden_size, num_rows, gate_up);
  const int64_t n = c.intermediate_size;
  pool_->ParallelFor(CeilDiv(num_rows, kRowsPerTask), [&](int64_t task, int) {
    const int64_t begin = task * kRowsPerTask;
    const int64_t rows = std::min(num_rows, begin + kRowsPerTask) - begin;
    model_->kernels->swiglu(gate_.data() + begin * n, up_.data() + begin * n, rows * n,
                            gate_.data() + begin * n);
  });
  const MatmulJob down[] = {{&w.down, delta_.data()}};
  MatmulAll(gate_.data(), n, num_rows, down);
  AddRows(delta_.data(), num_rows, x_.data());
}

void Forward::Run(absl::Span<const RowGroup> batch, HiddenRows* hidden) {
  const ScopedFpEnv fp_env;  // for the rows that are not worth a parallel region
  const ModelConfig& c = model_->config;
  int64_t num_rows = 0, num_hidden = 0;
  for (const RowGroup& group : batch) {
    num_rows += group.tokens.size();
    num_hidden += group.tokens.size() - group.logits_begin;
  }
  VC_CHECK(num_rows >= 1 && num_rows <= kMaxPassRows);
  Prepare(num_rows, batch);
  Embed(batch);
  for (int layer = 0; layer < c.num_layers; ++layer) {
    AttentionBlock(layer, batch, num_rows);
    FeedForwardBlock(layer, num_rows);
  }
  hidden->x.Resize(num_hidden * c.hidden_size);
  hidden->num_rows = num_hidden;
  float* out = hidden->x.data();
  const float* x = x_.data();
  for (const RowGroup& group : batch) {
    const int64_t n = group.tokens.size();
    for (int64_t i = group.logits_begin; i < n; ++i, out += c.hidden_size)
      model_->kernels->rms_norm(x + i * c.hidden_size, model_->weights.output_norm, c.hidden_size,
                                c.rms_eps, out);
    x += n * c.hidden_size;
  }
}

void Forward::Logits(const HiddenRows& hidden, int64_t row_begin, int64_t num_rows, float* logits) {
  VC_CHECK(row_begin >= 0 && row_begin + num_rows <= hidden.num_rows);
  const MatmulJob job[] = {{&model_->weights.output, logits}};
  MatmulAll(hidden.x.data() + row_begin * model_->config.hidden_size, model_->config.hidden_size,
            num_rows, job);
}

void Forward::LogitsOf(absl::Span<const float* const> rows, float* logits) {
  LogitsOf(rows, {}, logits);
}

void Forward::LogitsOf(absl::Span<const float* const> rows, absl::Span<const OutRange> ids,
                       float* logits) {
  const int64_t n = model_->config.hidden_size;
  logit_in_.Resize(rows.size() * n);
  for (size_t i = 0; i < rows.size(); ++i)
    std::memcpy(logit_in_.data() + i * n, rows[i], n * sizeof(float));
  const MatmulJob job[] = {{&model_->weights.output, logits, nullptr, ids}};
  MatmulAll(logit_in_.data(), n, rows.size(), job);
}

}  // namespace vericache
