#include "base/tensor_type.h"

#include <array>

namespace vericache {

const TensorTypeInfo* FindTensorType(uint32_t type) {
  static constexpr TensorTypeInfo kF32{"F32", 1, 4}, kF16{"F16", 1, 2}, kBF16{"BF16", 1, 2};
  static constexpr TensorTypeInfo kQ4_1{"Q4_1", 32, 20}, kQ5_0{"Q5_0", 32, 22};
  static constexpr TensorTypeInfo kQ8_0{"Q8_0", 32, 34};
  static constexpr TensorTypeInfo kQ4_K{"Q4_K", 256, 144}, kQ6_K{"Q6_K", 256, 210};
  switch (static_cast<TensorType>(type)) {
    case TensorType::kF32:
      return &kF32;
    case TensorType::kF16:
      return &kF16;
    case TensorType::kBF16:
      return &kBF16;
    case TensorType::kQ4_1:
      return &kQ4_1;
    case TensorType::kQ5_0:
      return &kQ5_0;
    case TensorType::kQ8_0:
      return &kQ8_0;
    case TensorType::kQ4_K:
      return &kQ4_K;
    case TensorType::kQ6_K:
      return &kQ6_K;
  }
  return nullptr;
}

std::string TensorTypeName(uint32_t type) {
  // All numbers the format has given out, so that a refusal can name the type.
  static constexpr std::array<const char*, 31> kNames = {"F32",
                                                         "F16",
                                                         "Q4_0",
                                                         "Q4_1",
                                                         "Q4_2 (removed)",
                                                         "Q4_3 (removed)",
                                                         "Q5_0",
                                                         "Q5_1",
                                                         "Q8_0",
                                                         "Q8_1",
                                                         "Q2_K",
                                                         "Q3_K",
                                                         "Q4_K",
                                                         "Q5_K",
                                                         "Q6_K",
                                                         "Q8_K",
                                                         "IQ2_XXS",
                                                         "IQ2_XS",
                                                         "IQ3_XXS",
                                                         "IQ1_S",
                                                         "IQ4_NL",
                                                         "IQ3_S",
                                                         "IQ2_S",
                                                         "IQ4_XS",
                                                         "I8",
                                                         "I16",
                                                         "I32",
                                                         "I64",
                                                         "F64",
                                                         "IQ1_M",
                                                         "BF16"};
  if (type < kNames.size()) return kNames[type];
  if (type == 34) return "TQ1_0";
  if (type == 35) return "TQ2_0";
  if (type == 39) return "MXFP4";
  return "type " + std::to_string(type);
}

}  // namespace vericache
