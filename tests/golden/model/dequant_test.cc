// Every quantised type means the values that llama.cpp's gguf package gives it (README.md here).
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/tensor_type.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"

namespace vericache {
namespace {

std::vector<uint8_t> FromHex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

TEST(Dequantize, EqualsGgufPackage) {
  const std::map<std::string, TensorType> types = {{"Q8_0", TensorType::kQ8_0},
                                                   {"Q4_1", TensorType::kQ4_1},
                                                   {"Q5_0", TensorType::kQ5_0},
                                                   {"Q4_K", TensorType::kQ4_K},
                                                   {"Q6_K", TensorType::kQ6_K}};
  std::ifstream in("tests/golden/model/dequant.json");
  ASSERT_TRUE(in) << "run from the repository's root";
  const nlohmann::json golden = nlohmann::json::parse(in);
  ASSERT_EQ(golden["types"].size(), types.size());
  for (const auto& [name, want] : golden["types"].items()) {
    SCOPED_TRACE(name);
    const TensorType type = types.at(name);
    ASSERT_EQ(InfoOf(type).block_values, want["block_size"].get<int64_t>());
    ASSERT_EQ(InfoOf(type).block_bytes, want["block_bytes"].get<int64_t>());
    // All blocks as one row, so that stepping from block to block is checked too.
    std::string hex;
    std::vector<float> expected;
    for (const auto& block : want["blocks_hex"]) hex += block.get<std::string>();
    for (const auto& block : want["expected"])
      for (const auto& value : block) expected.push_back(value.get<float>());
    const std::vector<uint8_t> blocks = FromHex(hex);
    std::vector<float> got(expected.size());
    DequantizeRow(type, blocks.data(), static_cast<int64_t>(got.size()), got.data());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected[i]) << "value " << i;
  }
}

}  // namespace
}  // namespace vericache
