// Tensor element types of GGUF files, by their numbers in the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace vericache {

// Numbers as in the GGUF format (ggml_type). Only those our kernels read are named.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ6_K = 14,
  kBF16 = 30,
};

// Values in one quantisation block (1 for plain floats) and the bytes that block takes.
struct TensorTypeInfo {
  const char* name;
  int64_t block_values;
  int64_t block_bytes;
};

// Null if the type is not supported.
const TensorTypeInfo* FindTensorType(uint32_t type);
inline const TensorTypeInfo& InfoOf(TensorType type) {
  return *FindTensorType(static_cast<uint32_t>(type));
}
// The field's name for any GGUF type number ("Q2_K"), or "type 99".
std::string TensorTypeName(uint32_t type);

}  // namespace vericache
