// What the tests and the fuzz target of src/gguf share.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "gguf/reader.h"
#include "gguf/writer.h"

namespace vericache {

inline absl::Span<const uint8_t> BytesOf(std::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

// The little-endian bytes of a number.
template <typename T>
std::string Le(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
void Patch(size_t offset, T value, std::string* bytes) {
  bytes->replace(offset, sizeof(value), Le(value));
}

// Every kind of metadata value and tensors of three types, in about 1.5 KB.
inline GgufWriter SmallModel(uint32_t version = 3) {
  GgufWriter writer(version);
  writer.AddString("general.architecture", "llama");
  writer.AddUint32("llama.block_count", 2);
  writer.AddInt32("test.i32", -7);
  writer.AddUint64("test.u64", uint64_t{1} << 40);
  writer.AddFloat32("llama.rope.freq_base", 10000.0f);
  writer.AddBool("tokenizer.ggml.add_bos_token", true);
  writer.AddStrings("tokenizer.ggml.tokens", {"<s>", "", "a b", "\xe2\x96\x81x"});
  writer.AddInt32s("tokenizer.ggml.token_type", {3, 1, 1, -1});
  writer.AddFloat32s("tokenizer.ggml.scores", {0.0f, -1.0f, -2.5f, 1e30f});
  writer.AddRaw("test.u8", 0, Le<uint8_t>(200));
  writer.AddRaw("test.i8", 1, Le<int8_t>(-100));
  writer.AddRaw("test.u16", 2, Le<uint16_t>(60000));
  writer.AddRaw("test.i16", 3, Le<int16_t>(-30000));
  writer.AddRaw("test.i64", 11, Le<int64_t>(-(int64_t{1} << 40)));
  writer.AddRaw("test.f64", 12, Le<double>(0.1));
  writer.AddRaw("test.bools", 9, Le<uint32_t>(7) + Le<uint64_t>(3) + std::string("\1\0\1", 3));
  writer.AddRaw("test.u64s", 9,
                Le<uint32_t>(10) + Le<uint64_t>(2) + Le<uint64_t>(5) + Le<uint64_t>(~uint64_t{0}));
  writer.AddTensor("output_norm.weight", TensorType::kF32, {8}, std::string(32, 'n'));
  writer.AddTensor("token_embd.weight", TensorType::kQ8_0, {32, 4}, std::string(4 * 34, 'e'));
  writer.AddTensor("blk.0.attn_q.weight", TensorType::kF16, {8, 3, 2}, std::string(96, 'q'));
  return writer;
}

// Reads every value, string and tensor end, by every accessor; the sum keeps the reads alive.
inline uint64_t TouchEverything(const GgufFile& file) {
  uint64_t sum = file.version() + file.file_bytes() + file.CheckStillWhole().ok();
  for (const auto& [key, value] : file.metadata()) {
    VC_CHECK(file.FindValue(key) == &value);
    sum += file.GetInt(key).ok() + file.GetFloat(key).ok() + file.GetBool(key).ok();
    sum +=
        file.GetIntOr(key, 1).ok() + file.GetFloatOr(key, 1).ok() + file.GetBoolOr(key, false).ok();
    if (const auto text = file.GetString(key); text.ok()) {
      for (const char c : *text) sum += static_cast<uint8_t>(c);
    }
    if (const auto strings = file.GetStrings(key); strings.ok()) {
      VC_CHECK(strings->size() == value.count);
      for (const std::string_view string : *strings) {
        for (const char c : string) sum += static_cast<uint8_t>(c);
      }
    }
    if (const auto ints = file.GetInts(key); ints.ok()) {
      VC_CHECK(ints->size() == value.count);
      for (const int64_t i : *ints) sum += static_cast<uint64_t>(i);
    }
    if (const auto floats = file.GetFloats(key); floats.ok()) {
      VC_CHECK(floats->size() == value.count);
      sum += floats->empty() ? 0 : floats->back() > 0;
    }
  }
  for (const GgufTensor& tensor : file.tensors()) {
    VC_CHECK(file.FindTensor(tensor.name) == &tensor);
    VC_CHECK(tensor.num_bytes > 0 && tensor.cols() >= 1 && tensor.rows() >= 1);
    VC_CHECK(tensor.num_values() % InfoOf(tensor.type).block_values == 0);
    VC_CHECK(tensor.data == file.bytes().data() + tensor.offset);
    sum += tensor.data[0] + tensor.data[tensor.num_bytes - 1];
    file.DropPages(tensor);
  }
  return sum;
}

// A fresh folder, removed at the end.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "vericache_XXXXXX").string();
    VC_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  // Writes the bytes and returns the path.
  std::string Write(std::string_view name, std::string_view bytes) const {
    const std::string path = path_ + "/" + std::string(name);
    std::ofstream(path, std::ios::binary).write(bytes.data(), bytes.size());
    return path;
  }

 private:
  std::string path_;
};

}  // namespace vericache
