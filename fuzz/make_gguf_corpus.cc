// Writes the seeds of fuzz/corpus/gguf: a good model of either version, and near misses whose
// fields are a few bytes away from trouble.
#include <cstdio>
#include <string>

#include "gguf/test_util.h"
#include "gguf/writer.h"

namespace {

void Write(const std::string& folder, const std::string& name, const std::string& bytes) {
  std::ofstream(folder + "/" + name, std::ios::binary).write(bytes.data(), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  using vericache::GgufWriter;
  using vericache::Le;
  using vericache::TensorType;
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_gguf_corpus FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  Write(folder, "small_v2.gguf", vericache::SmallModel(2).ToBytes());
  Write(folder, "small_v3.gguf", vericache::SmallModel(3).ToBytes());
  Write(folder, "empty_v3.gguf", GgufWriter().ToBytes());

  GgufWriter aligned;
  aligned.AddUint32("general.alignment", 8);
  aligned.AddTensor("a", TensorType::kF32, {1, 1, 1, 1}, "aaaa");
  aligned.AddTensor("b", TensorType::kBF16, {4}, "bbbbbbbb");
  aligned.AddTensor("c", TensorType::kQ4_1, {32}, std::string(20, 'c'));
  Write(folder, "aligned_8.gguf", aligned.ToBytes());

  GgufWriter nested;
  nested.AddRaw("k", 9, Le<uint32_t>(9) + Le<uint64_t>(1) + Le<uint32_t>(4) + Le<uint64_t>(0));
  Write(folder, "nested_array.gguf", nested.ToBytes());

  GgufWriter wrap;
  const uint64_t dims[] = {(uint64_t{1} << 42) + 1, uint64_t{1} << 22};
  wrap.AddTensorInfoRaw("t", 0, dims, 0);
  Write(folder, "dims_wrap.gguf", wrap.ToBytes() + std::string(64, 'x'));

  GgufWriter overlap;
  const uint64_t small_dims[] = {16};
  overlap.AddTensorInfoRaw("a", 0, small_dims, 0);
  overlap.AddTensorInfoRaw("b", 0, small_dims, 32);
  Write(folder, "overlap.gguf", overlap.ToBytes() + std::string(160, 'x'));

  Write(folder, "lfs_pointer.gguf", "version https://git-lfs.github.com/spec/v1\nsize 491400064\n");
  return 0;
}
