// Writes GGUF v3 files: fixtures for tests and tiny random models. Not tuned.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/tensor_type.h"

namespace vericache {

class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  void AddUint32(std::string_view key, uint32_t value);
  void AddInt32(std::string_view key, int32_t value);
  void AddUint64(std::string_view key, uint64_t value);
  void AddFloat32(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddString(std::string_view key, std::string_view value);
  void AddStrings(std::string_view key, absl::Span<const std::string> values);
  void AddInt32s(std::string_view key, absl::Span<const int32_t> values);
  void AddFloat32s(std::string_view key, absl::Span<const float> values);
  // An entry whose type and payload bytes are given raw: for malformed fixtures.
  void AddRaw(std::string_view key, uint32_t value_type, std::string_view payload);

  // `data` is the tensor in `type`'s block format; dims[0] is contiguous.
  // REQUIRES: data.size() is the size of that many whole blocks.
  void AddTensor(std::string_view name, TensorType type, absl::Span<const int64_t> dims,
                 std::string data);
  // Any type number, dims and offset, unchecked: for malformed fixtures.
  void AddTensorInfoRaw(std::string_view name, uint32_t type, absl::Span<const uint64_t> dims,
                        uint64_t offset);

  std::string ToBytes() const;
  absl::Status WriteFile(const std::string& path) const;

 private:
  void AddEntry(std::string_view key, uint32_t type, std::string payload);
  struct Tensor {
    std::string name;
    uint32_t type;
    std::vector<uint64_t> dims;
    std::string data;
    bool raw_offset;
    uint64_t offset;
  };
  uint32_t version_;
  uint64_t alignment_ = 32;  // follows general.alignment
  uint64_t num_entries_ = 0;
  std::string entries_;
  std::vector<Tensor> tensors_;
};

}  // namespace vericache
