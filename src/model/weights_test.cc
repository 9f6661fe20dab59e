#include "model/weights.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "gguf/writer.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

constexpr int64_t kHidden = 32, kFfn = 48, kHeads = 4, kKvHeads = 2, kHeadDim = 8, kVocab = 21;

struct TensorSpec {
  std::vector<int64_t> dims;
  TensorType type = TensorType::kF32;
  std::string data;  // empty: counted values
};
using Tensors = std::map<std::string, TensorSpec>;

// All tensors of a model of two layers.
Tensors WholeModel() {
  Tensors t;
  t["token_embd.weight"] = {{kHidden, kVocab}};
  t["output_norm.weight"] = {{kHidden}};
  t["output.weight"] = {{kHidden, kVocab}};
  for (const std::string& p : {std::string("blk.0."), std::string("blk.1.")}) {
    t[p + "attn_norm.weight"] = {{kHidden}};
    t[p + "attn_q.weight"] = {{kHidden, kHeads * kHeadDim}};
    t[p + "attn_k.weight"] = {{kHidden, kKvHeads * kHeadDim}};
    t[p + "attn_v.weight"] = {{kHidden, kKvHeads * kHeadDim}};
    t[p + "attn_output.weight"] = {{kHeads * kHeadDim, kHidden}};
    t[p + "ffn_norm.weight"] = {{kHidden}};
    t[p + "ffn_gate.weight"] = {{kHidden, kFfn}};
    t[p + "ffn_up.weight"] = {{kHidden, kFfn}};
    t[p + "ffn_down.weight"] = {{kFfn, kHidden}};
  }
  return t;
}

// Value i of the tensor: differs between tensors and places.
float CountedValue(const std::string& name, int64_t i) {
  return static_cast<float>(name.size() * 7 % 13) + static_cast<float>(i % 97) * 0.125f;
}

std::string Floats(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4);
}

std::string BytesOf(const Tensors& tensors) {
  GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  writer.AddUint32("llama.block_count", 2);
  writer.AddUint32("llama.context_length", 128);
  writer.AddUint32("llama.embedding_length", kHidden);
  writer.AddUint32("llama.feed_forward_length", kFfn);
  writer.AddUint32("llama.attention.head_count", kHeads);
  writer.AddUint32("llama.attention.head_count_kv", kKvHeads);
  writer.AddFloat32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  for (const auto& [name, spec] : tensors) {
    int64_t n = 1;
    for (int64_t dim : spec.dims) n *= dim;
    std::vector<float> values(n);
    for (int64_t i = 0; i < n; ++i) values[i] = CountedValue(name, i);
    writer.AddTensor(name, spec.type, spec.dims, spec.data.empty() ? Floats(values) : spec.data);
  }
  return writer.ToBytes();
}

// A file, its config and its weights, which live together.
struct Loaded {
  std::string bytes;
  std::unique_ptr<GgufFile> file;
  ModelConfig config;
  absl::StatusOr<Weights> weights;
};

Loaded Load(const Tensors& tensors, const LoadProgress& progress = nullptr) {
  Loaded l{BytesOf(tensors), nullptr, {}, absl::UnknownError("")};
  auto file = GgufFile::FromMemory(
      absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(l.bytes.data()), l.bytes.size()), "m");
  EXPECT_TRUE(file.ok()) << file.status();
  l.file = std::move(*file);
  const auto config = ReadModelConfig(*l.file);
  if (!config.ok()) {
    l.weights = config.status();
    return l;
  }
  l.config = *config;
  ThreadPool pool(2);
  l.weights = LoadWeights(*l.file, l.config, *AllKernelTables()[0], &pool, progress);
  return l;
}

void ExpectRefused(const Tensors& tensors, absl::StatusCode code,
                   const std::vector<std::string>& parts) {
  const Loaded l = Load(tensors);
  ASSERT_FALSE(l.weights.ok()) << parts[0];
  EXPECT_EQ(l.weights.status().code(), code) << l.weights.status();
  for (const std::string& part : parts)
    EXPECT_NE(l.weights.status().message().find(part), std::string::npos) << l.weights.status();
}

// y = W x through the packed matrix is what the file says; x picks one column.
void ExpectMatrixIs(const PackedMatrix& w, const std::string& name, int64_t rows, int64_t cols) {
  ASSERT_NE(w.data, nullptr) << name;
  ASSERT_EQ(w.rows, rows) << name;
  ASSERT_EQ(w.cols, cols) << name;
  for (int64_t column : {int64_t{0}, int64_t{5}, cols - 1}) {
    std::vector<float> x(cols, 0.0f), y(rows);
    x[column] = 1.0f;
    Activations acts;
    acts.cols = cols;
    acts.f32 = x.data();
    AllKernelTables()[0]->matmul(w, acts, 1, 0, rows, y.data(), rows);
    for (int64_t r = 0; r < rows; ++r)
      ASSERT_EQ(y[r], CountedValue(name, r * cols + column)) << name << " row " << r;
  }
}

void ExpectVectorIs(const float* v, const std::string& name, int64_t n) {
  ASSERT_NE(v, nullptr) << name;
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(v[i], CountedValue(name, i)) << name;
}

TEST(Weights, PutsEveryTensorInItsPlace) {
  const Loaded l = Load(WholeModel());
  ASSERT_TRUE(l.weights.ok()) << l.weights.status();
  const Weights& w = *l.weights;
  ASSERT_EQ(w.layers.size(), 2u);
  for (int layer = 0; layer < 2; ++layer) {
    const LayerWeights& lw = w.layers[layer];
    const std::string p = "blk." + std::to_string(layer) + ".";
    ExpectVectorIs(lw.attn_norm, p + "attn_norm.weight", kHidden);
    ExpectMatrixIs(lw.q, p + "attn_q.weight", kHeads * kHeadDim, kHidden);
    ExpectMatrixIs(lw.k, p + "attn_k.weight", kKvHeads * kHeadDim, kHidden);
    ExpectMatrixIs(lw.v, p + "attn_v.weight", kKvHeads * kHeadDim, kHidden);
    ExpectMatrixIs(lw.o, p + "attn_output.weight", kHidden, kHeads * kHeadDim);
    ExpectVectorIs(lw.ffn_norm, p + "ffn_norm.weight", kHidden);
    ExpectMatrixIs(lw.gate, p + "ffn_gate.weight", kFfn, kHidden);
    ExpectMatrixIs(lw.up, p + "ffn_up.weight", kFfn, kHidden);
    ExpectMatrixIs(lw.down, p + "ffn_down.weight", kHidden, kFfn);
    EXPECT_EQ(lw.q_bias, nullptr);
    EXPECT_EQ(lw.o_bias, nullptr);
  }
  ExpectVectorIs(w.output_norm, "output_norm.weight", kHidden);
  ExpectMatrixIs(w.output, "output.weight", kVocab, kHidden);
  EXPECT_EQ(w.embedding, l.file->FindTensor("token_embd.weight")->data);
  EXPECT_EQ(w.embedding_row_bytes, kHidden * sizeof(float));
  EXPECT_TRUE(w.rope_factors.empty());
  EXPECT_GE(w.packed_bytes, sizeof(float) * kVocab * kHidden);
}

TEST(Weights, TiedOutputIsTheEmbedding) {
  Tensors tensors = WholeModel();
  tensors.erase("output.weight");
  const Loaded l = Load(tensors);
  ASSERT_TRUE(l.weights.ok()) << l.weights.status();
  ExpectMatrixIs(l.weights->output, "token_embd.weight", kVocab, kHidden);
}

TEST(Weights, ReadsOptionalBiases) {
  Tensors tensors = WholeModel();
  tensors["blk.1.attn_q.bias"] = {{kHeads * kHeadDim}};
  tensors["blk.1.attn_k.bias"] = {{kKvHeads * kHeadDim}};
  tensors["blk.1.attn_v.bias"] = {{kKvHeads * kHeadDim}};
  tensors["blk.1.attn_output.bias"] = {{kHidden}};
  const Loaded l = Load(tensors);
  ASSERT_TRUE(l.weights.ok()) << l.weights.status();
  const LayerWeights& lw = l.weights->layers[1];
  ExpectVectorIs(lw.q_bias, "blk.1.attn_q.bias", kHeads * kHeadDim);
  ExpectVectorIs(lw.k_bias, "blk.1.attn_k.bias", kKvHeads * kHeadDim);
  ExpectVectorIs(lw.v_bias, "blk.1.attn_v.bias", kKvHeads * kHeadDim);
  ExpectVectorIs(lw.o_bias, "blk.1.attn_output.bias", kHidden);
  EXPECT_EQ(l.weights->layers[0].q_bias, nullptr);
}

TEST(Weights, NamesEachMissingTensor) {
  for (const auto& [name, spec] : WholeModel()) {
    if (name == "output.weight") continue;  // tied
    Tensors tensors = WholeModel();
    tensors.erase(name);
    ExpectRefused(tensors, absl::StatusCode::kInvalidArgument, {name, "missing"});
  }
}

TEST(Weights, NamesEachWrongShape) {
  for (const auto& [name, spec] : WholeModel()) {
    if (name == "token_embd.weight") continue;  // its rows are the vocabulary
    for (size_t dim = 0; dim < spec.dims.size(); ++dim) {
      Tensors tensors = WholeModel();
      ++tensors[name].dims[dim];
      ExpectRefused(tensors, absl::StatusCode::kInvalidArgument, {name, "shape", "expected"});
    }
    Tensors tensors = WholeModel();
    tensors[name].dims.push_back(2);
    ExpectRefused(tensors, absl::StatusCode::kInvalidArgument, {name, "shape"});
  }
  Tensors tensors = WholeModel();
  tensors["token_embd.weight"].dims[0] = kHidden + 1;
  ExpectRefused(tensors, absl::StatusCode::kInvalidArgument, {"token_embd.weight", "shape"});
  tensors = WholeModel();
  tensors["blk.0.attn_q.bias"] = {{kHeads * kHeadDim - 1}};
  ExpectRefused(tensors, absl::StatusCode::kInvalidArgument, {"blk.0.attn_q.bias", "shape"});
}

TEST(Weights, RefusesUnknownTensorsByName) {
  for (const char* name : {"blk.0.attn_q_norm.weight", "blk.2.attn_norm.weight",
                           "blk.0.ffn_up.bias", "rope_factors_long.weight", "output.bias"}) {
    Tensors tensors = WholeModel();
    tensors[name] = {{kHidden}};
    ExpectRefused(tensors, absl::StatusCode::kUnimplemented, {name, "\"llama\""});
  }
}

TEST(Weights, ChecksRopeFactors) {
  Tensors tensors = WholeModel();
  tensors["rope_freqs.weight"] = {{4}, TensorType::kF32, Floats({1, 2, 4, 8.5f})};
  const Loaded l = Load(tensors);
  ASSERT_TRUE(l.weights.ok()) << l.weights.status();
  EXPECT_EQ(l.weights->rope_factors, (std::vector<float>{1, 2, 4, 8.5f}));
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float bad : {0.0f, -1.0f, 1e-30f, 0.2f, inf, nan}) {
    tensors["rope_freqs.weight"].data = Floats({1, 1, bad, 1});
    ExpectRefused(tensors, absl::StatusCode::kInvalidArgument, {"rope_freqs.weight"});
  }
  tensors["rope_freqs.weight"] = {{5}};
  ExpectRefused(tensors, absl::StatusCode::kInvalidArgument, {"rope_freqs.weight", "shape"});
}

TEST(Weights, ProgressRisesToTheTotal) {
  std::vector<std::pair<uint64_t, uint64_t>> calls;
  const Loaded l =
      Load(WholeModel(), [&](uint64_t done, uint64_t total) { calls.emplace_back(done, total); });
  ASSERT_TRUE(l.weights.ok());
  ASSERT_FALSE(calls.empty());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_LE(calls[i].first, calls[i].second);
    EXPECT_EQ(calls[i].second, calls[0].second);
    if (i > 0) {
      EXPECT_GT(calls[i].first, calls[i - 1].first);
    }
  }
  EXPECT_EQ(calls.back().first, calls.back().second);
}

}  // namespace
}  // namespace vericache
