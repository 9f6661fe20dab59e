#include "tests/support/tiny_model.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/float16.h"
#include "base/split_mix.h"
#include "gguf/writer.h"

namespace vericache {

uint64_t NextRandom(uint64_t* state) { return NextSplitMix(state); }

float NextUniform(uint64_t* state) {
  return static_cast<float>(NextRandom(state) >> 40) * 0x1p-23f - 1.0f;
}

namespace {

void PutF16(float value, std::string* out) {
  const uint16_t h = F32ToF16(value);
  out->append(reinterpret_cast<const char*>(&h), 2);
}

void PutRandomBytes(int count, uint64_t* state, std::string* out) {
  for (int i = 0; i < count; ++i) out->push_back(static_cast<char>(NextRandom(state)));
}

// One block; uniform codes, so a code's standard deviation is its range / sqrt(12).
void PutBlock(TensorType type, float stddev, uint64_t* state, std::string* out) {
  const float jitter = 1.0f + 0.25f * NextUniform(state);
  switch (type) {
    case TensorType::kQ8_0:
      PutF16(stddev / 74.0f * jitter, out);
      PutRandomBytes(32, state, out);
      return;
    case TensorType::kQ5_0:
      PutF16(stddev / 9.2f * jitter, out);
      PutRandomBytes(4 + 16, state, out);
      return;
    case TensorType::kQ4_1:
      PutF16(stddev / 4.6f * jitter, out);
      PutF16(-7.5f * stddev / 4.6f * jitter, out);
      PutRandomBytes(16, state, out);
      return;
    case TensorType::kQ4_K:
      PutF16(stddev / 4.6f / 40.0f * jitter, out);
      PutF16(7.5f * stddev / 4.6f / 40.0f * jitter, out);
      PutRandomBytes(12 + 128, state, out);
      return;
    case TensorType::kQ6_K:
      PutRandomBytes(128 + 64 + 16, state, out);
      PutF16(stddev / 18.5f / 74.0f * jitter, out);
      return;
    default:
      VC_CHECK(false);
  }
}

}  // namespace

std::string RandomBlocks(TensorType type, int64_t n, float stddev, uint64_t* state) {
  std::string out;
  const TensorTypeInfo& info = InfoOf(type);
  VC_CHECK(n % info.block_values == 0);
  if (info.block_values > 1) {
    for (int64_t block = 0; block < n / info.block_values; ++block)
      PutBlock(type, stddev, state, &out);
    return out;
  }
  for (int64_t i = 0; i < n; ++i) {
    const float value = NextUniform(state) * stddev * 1.732f;
    if (type == TensorType::kF32) {
      out.append(reinterpret_cast<const char*>(&value), 4);
    } else if (type == TensorType::kF16) {
      PutF16(value, &out);
    } else {
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      const uint16_t b = static_cast<uint16_t>(bits >> 16);
      out.append(reinterpret_cast<const char*>(&b), 2);
    }
  }
  return out;
}

void AddTinyModel(const TinyModelOptions& o, GgufWriter* writer) {
  uint64_t state = o.seed;
  const std::string arch = o.architecture;
  writer->AddString("general.architecture", arch);
  writer->AddUint32(arch + ".block_count", o.num_layers);
  writer->AddUint32(arch + ".context_length", o.context_length);
  writer->AddUint32(arch + ".embedding_length", o.hidden_size);
  writer->AddUint32(arch + ".feed_forward_length", o.intermediate_size);
  writer->AddUint32(arch + ".attention.head_count", o.num_heads);
  writer->AddUint32(arch + ".attention.head_count_kv", o.num_kv_heads);
  writer->AddUint32(arch + ".attention.key_length", o.head_dim);
  writer->AddUint32(arch + ".attention.value_length", o.head_dim);
  writer->AddFloat32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  const auto matrix = [&](const std::string& name, TensorType type, int64_t rows, int64_t cols,
                          float gain) {
    const float stddev = gain / std::sqrt(static_cast<float>(cols));
    writer->AddTensor(name, type, {cols, rows}, RandomBlocks(type, rows * cols, stddev, &state));
  };
  const auto vector = [&](const std::string& name, int64_t n, float base, float spread) {
    std::string data;
    for (int64_t i = 0; i < n; ++i) {
      const float value = base + spread * NextUniform(&state);
      data.append(reinterpret_cast<const char*>(&value), 4);
    }
    writer->AddTensor(name, TensorType::kF32, {n}, data);
  };
  const int64_t q = o.num_heads * o.head_dim, kv = o.num_kv_heads * o.head_dim;
  const TensorType down = o.down_type == TensorType::kF32 ? o.type : o.down_type;
  matrix("token_embd.weight", o.type, o.vocab_size, o.hidden_size, std::sqrt(o.hidden_size));
  for (int layer = 0; layer < o.num_layers; ++layer) {
    const std::string p = "blk." + std::to_string(layer) + ".";
    vector(p + "attn_norm.weight", o.hidden_size, 1.0f, 0.3f);
    matrix(p + "attn_q.weight", o.type, q, o.hidden_size, 2.0f);
    matrix(p + "attn_k.weight", o.type, kv, o.hidden_size, 2.0f);
    matrix(p + "attn_v.weight", o.type, kv, o.hidden_size, 1.0f);
    if (arch == "qwen2") {
      vector(p + "attn_q.bias", q, 0.0f, 0.5f);
      vector(p + "attn_k.bias", kv, 0.0f, 0.5f);
      vector(p + "attn_v.bias", kv, 0.0f, 0.5f);
    }
    matrix(p + "attn_output.weight", o.type, o.hidden_size, q, 1.0f);
    vector(p + "ffn_norm.weight", o.hidden_size, 1.0f, 0.3f);
    matrix(p + "ffn_gate.weight", o.type, o.intermediate_size, o.hidden_size, 1.0f);
    matrix(p + "ffn_up.weight", o.type, o.intermediate_size, o.hidden_size, 1.0f);
    matrix(p + "ffn_down.weight", down, o.hidden_size, o.intermediate_size, 1.0f);
  }
  vector("output_norm.weight", o.hidden_size, 1.0f, 0.3f);
  matrix("output.weight", o.type, o.vocab_size, o.hidden_size, 3.0f * o.scale);
}

std::string TinyModelBytes(const TinyModelOptions& options) {
  GgufWriter writer;
  AddTinyModel(options, &writer);
  return writer.ToBytes();
}

std::shared_ptr<const GgufFile> OpenBytes(std::string bytes) {
  auto owned = std::make_shared<std::string>(std::move(bytes));
  auto file = GgufFile::FromMemory(
      absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(owned->data()), owned->size()), "tiny");
  if (!file.ok()) std::fprintf(stderr, "%s\n", file.status().ToString().c_str());
  VC_CHECK(file.ok());
  std::shared_ptr<GgufFile> shared = std::move(*file);
  return std::shared_ptr<const GgufFile>(shared.get(), [owned, shared](const GgufFile*) {});
}

}  // namespace vericache
