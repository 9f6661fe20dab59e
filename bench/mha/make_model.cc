// Writes a random model of any llama shape: for times, not for text.
//
//   mha_model OUT.gguf [LAYERS HEADS KV_HEADS HEAD_DIM HIDDEN INTERMEDIATE VOCAB CONTEXT TYPE]
//
// Unless given: 24 layers of 16 heads, each with a KV head of its own (MHA), head size 64, hidden
// size 1024, 2816, 4096 tokens, a context of 65,536, Q4_K. The tokenizer knows no merges.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/support/tiny_model.h"

namespace {

constexpr char kUsage[] =
    "usage: mha_model OUT.gguf [LAYERS HEADS KV_HEADS HEAD_DIM HIDDEN INTERMEDIATE VOCAB CONTEXT "
    "TYPE]\n";

bool SetType(const std::string& name, vericache::TensorType* type) {
  for (const vericache::TensorType known :
       {vericache::TensorType::kF16, vericache::TensorType::kQ8_0, vericache::TensorType::kQ4_K,
        vericache::TensorType::kQ6_K}) {
    if (name != vericache::InfoOf(known).name) continue;
    *type = known;
    return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  vericache::TinyModelOptions o;
  o.num_layers = 24;
  o.num_heads = 16;
  o.num_kv_heads = 16;
  o.head_dim = 64;
  o.hidden_size = 1024;
  o.intermediate_size = 2816;
  o.vocab_size = 4096;
  o.context_length = 65536;
  o.type = vericache::TensorType::kQ4_K;
  if (argc != 2 && argc != 11) {
    std::fprintf(stderr, "%s", kUsage);
    return 2;
  }
  int* const numbers[] = {&o.num_layers,  &o.num_heads,         &o.num_kv_heads, &o.head_dim,
                          &o.hidden_size, &o.intermediate_size, &o.vocab_size,   &o.context_length};
  for (int i = 0; i < 8 && argc > 2; ++i) {
    *numbers[i] = std::atoi(argv[2 + i]);
    if (*numbers[i] < 1 || (argc > 10 && !SetType(argv[10], &o.type))) {
      std::fprintf(stderr, "%s", kUsage);
      return 2;
    }
  }
  if (o.num_heads % o.num_kv_heads != 0 ||
      o.hidden_size % vericache::InfoOf(o.type).block_values != 0 ||
      o.intermediate_size % vericache::InfoOf(o.type).block_values != 0 ||
      o.num_heads * o.head_dim % vericache::InfoOf(o.type).block_values != 0) {
    std::fprintf(stderr, "mha_model: heads or blocks of the weight type do not divide the sizes\n");
    return 2;
  }
  vericache::GgufWriter writer;
  vericache::AddTinyModel(o, &writer);
  writer.AddString("general.name", "random weights");
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddString("tokenizer.ggml.pre", "gpt-2");
  std::vector<std::string> tokens;
  for (int id = 0; id < o.vocab_size; ++id) tokens.push_back("t" + std::to_string(id));
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddStrings("tokenizer.ggml.merges", {});
  writer.AddInt32s("tokenizer.ggml.token_type", std::vector<int32_t>(o.vocab_size, 1));
  const absl::Status status = writer.WriteFile(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "mha_model: %s\n", std::string(status.message()).c_str());
  return 1;
}
