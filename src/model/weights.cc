// Loading goes in two passes: first every tensor is looked up and checked and its place in the one
// big allocation is fixed; only then bytes are repacked. So a damaged file costs nothing.
#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_join.h"
#include "base/fp_env.h"
#include "base/huge_memory.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/types.h"

namespace vericache {
namespace {

class Loader {
 public:
  Loader(const GgufFile& file, const ModelConfig& config, const KernelTable& kernels)
      : file_(file), config_(config), kernels_(kernels) {}

  absl::Status Plan(Weights* weights);
  absl::Status Fill(Weights* weights, ThreadPool* pool, const LoadProgress& progress);

 private:
  struct Job {
    const GgufTensor* tensor;
    PackedMatrix* matrix;  // or
    const float** vector;
    size_t offset;
    size_t bytes;
  };

  absl::StatusOr<const GgufTensor*> Find(const std::string& name, std::vector<int64_t> dims) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr)
      return absl::InvalidArgumentError(StrCat(file_.path(), ": tensor ", name, " is missing"));
    if (tensor->dims != dims)
      return absl::InvalidArgumentError(StrCat(file_.path(), ": tensor ", name, " has shape [",
                                               absl::StrJoin(tensor->dims, ", "), "], expected [",
                                               absl::StrJoin(dims, ", "), "]"));
    used_.insert(name);
    return tensor;
  }

  absl::Status Matrix(const std::string& name, int64_t rows, int64_t cols, PackedMatrix* matrix) {
    VC_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, {cols, rows}));
    *matrix = {tensor->type, rows, cols, nullptr};
    Add({tensor, matrix, nullptr, 0, kernels_.packed_bytes(tensor->type, rows, cols)});
    return absl::OkStatus();
  }

  absl::Status Vector(const std::string& name, int64_t n, const float** vector) {
    VC_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, {n}));
    Add({tensor, nullptr, vector, 0, static_cast<size_t>(n) * sizeof(float)});
    return absl::OkStatus();
  }

  absl::Status OptionalVector(const std::string& name, int64_t n, const float** vector) {
    if (file_.FindTensor(name) == nullptr) return absl::OkStatus();
    return Vector(name, n, vector);
  }

  void Add(Job job) {
    job.offset = total_;
    total_ += RoundUp(job.bytes, 64);
    jobs_.push_back(job);
  }

  absl::Status PlanLayer(int layer, LayerWeights* w);
  absl::Status RefuseUnknown() const;

  const GgufFile& file_;
  const ModelConfig& config_;
  const KernelTable& kernels_;
  std::vector<Job> jobs_;
  size_t total_ = 0;
  absl::flat_hash_set<std::string> used_;
};

absl::Status Loader::PlanLayer(int layer, LayerWeights* w) {
  const std::string prefix = StrCat("blk.", layer, ".");
  const int64_t hidden = config_.hidden_size, ffn = config_.intermediate_size;
  const int64_t q_size = static_cast<int64_t>(config_.num_heads) * config_.head_dim;
  const int64_t kv_size = static_cast<int64_t>(config_.num_kv_heads) * config_.head_dim;
  VC_RETURN_IF_ERROR(Vector(prefix + "attn_norm.weight", hidden, &w->attn_norm));
  VC_RETURN_IF_ERROR(Matrix(prefix + "attn_q.weight", q_size, hidden, &w->q));
  VC_RETURN_IF_ERROR(Matrix(prefix + "attn_k.weight", kv_size, hidden, &w->k));
  VC_RETURN_IF_ERROR(Matrix(prefix + "attn_v.weight", kv_size, hidden, &w->v));
  VC_RETURN_IF_ERROR(OptionalVector(prefix + "attn_q.bias", q_size, &w->q_bias));
  VC_RETURN_IF_ERROR(OptionalVector(prefix + "attn_k.bias", kv_size, &w->k_bias));
  VC_RETURN_IF_ERROR(OptionalVector(prefix + "attn_v.bias", kv_size, &w->v_bias));
  VC_RETURN_IF_ERROR(Matrix(prefix + "attn_output.weight", hidden, q_size, &w->o));
  VC_RETURN_IF_ERROR(OptionalVector(prefix + "attn_output.bias", hidden, &w->o_bias));
  VC_RETURN_IF_ERROR(Vector(prefix + "ffn_norm.weight", hidden, &w->ffn_norm));
  VC_RETURN_IF_ERROR(Matrix(prefix + "ffn_gate.weight", ffn, hidden, &w->gate));
  VC_RETURN_IF_ERROR(Matrix(prefix + "ffn_up.weight", ffn, hidden, &w->up));
  return Matrix(prefix + "ffn_down.weight", hidden, ffn, &w->down);
}

// A tensor we do not use would be a part of the model that we silently leave out.
absl::Status Loader::RefuseUnknown() const {
  for (const GgufTensor& tensor : file_.tensors())
    if (!used_.contains(tensor.name))
      return absl::UnimplementedError(StrCat(file_.path(), ": tensor ", tensor.name,
                                             " is not known for architecture \"",
                                             config_.architecture, "\""));
  return absl::OkStatus();
}

absl::Status Loader::Plan(Weights* weights) {
  const int64_t hidden = config_.hidden_size;
  VC_ASSIGN_OR_RETURN(const GgufTensor* embedding,
                      Find("token_embd.weight", {hidden, config_.vocab_size}));
  weights->embedding_type = embedding->type;
  weights->embedding = embedding->data;
  weights->embedding_row_bytes = embedding->num_bytes / config_.vocab_size;
  weights->layers.resize(config_.num_layers);  // before pointers into it are taken
  for (int layer = 0; layer < config_.num_layers; ++layer)
    VC_RETURN_IF_ERROR(PlanLayer(layer, &weights->layers[layer]));
  VC_RETURN_IF_ERROR(Vector("output_norm.weight", hidden, &weights->output_norm));
  const bool tied = file_.FindTensor("output.weight") == nullptr;  // then the embedding serves both
  VC_RETURN_IF_ERROR(Matrix(tied ? "token_embd.weight" : "output.weight", config_.vocab_size,
                            hidden, &weights->output));
  if (file_.FindTensor("rope_freqs.weight") != nullptr) {
    VC_ASSIGN_OR_RETURN(const GgufTensor* factors,
                        Find("rope_freqs.weight", {config_.rotary_dim / 2}));
    weights->rope_factors.resize(config_.rotary_dim / 2);
    DequantizeRow(factors->type, factors->data, factors->num_values(),
                  weights->rope_factors.data());
    // A smaller divisor would take the angles out of the range of ContractSinCos.
    for (float factor : weights->rope_factors)
      if (!(factor >= 0.25f) || !std::isfinite(factor))
        return absl::InvalidArgumentError(StrCat(file_.path(),
                                                 ": tensor rope_freqs.weight holds the factor ",
                                                 factor, ", expected a number of at least 0.25"));
  }
  return RefuseUnknown();
}

absl::Status Loader::Fill(Weights* weights, ThreadPool* pool, const LoadProgress& progress) {
  const std::shared_ptr<uint8_t[]> arena = AllocateHuge(total_);
  if (arena == nullptr)
    return absl::ResourceExhaustedError(StrCat("no memory for ", total_ >> 20, " MiB of weights"));
  // Rows a task repacks: large enough to amortise the hand-out, small enough to balance.
  constexpr int64_t kRowsPerTask = 16 * kOutTile;
  // Source bytes between two looks at what need not be in memory twice.
  constexpr size_t kSliceBytes = size_t{4} << 20;
  uint64_t done = 0;
  for (const Job& job : jobs_) {
    uint8_t* dst = arena.get() + job.offset;
    if (job.matrix != nullptr) {
      const int64_t rows = job.matrix->rows, cols = job.matrix->cols;
      const size_t row_bytes = job.tensor->num_bytes / rows;
      const int64_t slice = std::max(kRowsPerTask, static_cast<int64_t>(kSliceBytes / row_bytes) /
                                                       kRowsPerTask * kRowsPerTask);
      for (int64_t begin = 0; begin < rows; begin += slice) {
        const int64_t end = std::min(rows, begin + slice);
        pool->ParallelFor(CeilDiv(end - begin, kRowsPerTask), [&](int64_t task, int) {
          const int64_t first = begin + task * kRowsPerTask;
          kernels_.pack(job.matrix->type, rows, cols, job.tensor->data, dst, first,
                        std::min(end, first + kRowsPerTask));
        });
        file_.DropPages(*job.tensor, end * row_bytes);
      }
      job.matrix->data = dst;
      weights->packed_bytes += job.bytes;
    } else {
      DequantizeRow(job.tensor->type, job.tensor->data, job.tensor->num_values(),
                    reinterpret_cast<float*>(dst));
      *job.vector = reinterpret_cast<const float*>(dst);
    }
    done = job.offset + RoundUp(job.bytes, 64);
    if (progress) progress(done, total_);
  }
  weights->storage = arena;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Weights> LoadWeights(const GgufFile& file, const ModelConfig& config,
                                    const KernelTable& kernels, ThreadPool* pool,
                                    const LoadProgress& progress) {
  const ScopedFpEnv fp_env;
  Weights weights;
  Loader loader(file, config, kernels);
  VC_RETURN_IF_ERROR(loader.Plan(&weights));
  VC_RETURN_IF_ERROR(loader.Fill(&weights, pool, progress));
  return weights;
}

}  // namespace vericache
