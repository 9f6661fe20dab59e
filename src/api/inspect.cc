#include "api/inspect.h"

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "kv/draft_kv.h"
#include "kv/selectors/selector.h"
#include "vericache/engine.h"

namespace vericache {
namespace {

constexpr size_t kMaxShown = 120;  // characters of one metadata value

template <typename T>
T Scalar(const GgufValue& value) {
  T scalar;
  std::memcpy(&scalar, value.data, sizeof(scalar));
  return scalar;
}

std::string Printable(const GgufValue& value) {
  switch (value.type) {
    case GgufValueType::kString: {
      std::string text = absl::CHexEscape(AsAbsl(value.string.substr(0, kMaxShown)));
      return value.string.size() > kMaxShown ? text + "..." : text;
    }
    case GgufValueType::kArray:
      return StrCat("[", value.count, " values]");
    case GgufValueType::kBool:
      return Scalar<uint8_t>(value) != 0 ? "true" : "false";
    case GgufValueType::kUint8:
      return StrCat(Scalar<uint8_t>(value));
    case GgufValueType::kInt8:
      return StrCat(static_cast<int>(Scalar<int8_t>(value)));
    case GgufValueType::kUint16:
      return StrCat(Scalar<uint16_t>(value));
    case GgufValueType::kInt16:
      return StrCat(Scalar<int16_t>(value));
    case GgufValueType::kUint32:
      return StrCat(Scalar<uint32_t>(value));
    case GgufValueType::kInt32:
      return StrCat(Scalar<int32_t>(value));
    case GgufValueType::kUint64:
      return StrCat(Scalar<uint64_t>(value));
    case GgufValueType::kInt64:
      return StrCat(Scalar<int64_t>(value));
    case GgufValueType::kFloat32:
      return absl::StrFormat("%g", Scalar<float>(value));
    case GgufValueType::kFloat64:
      return absl::StrFormat("%g", Scalar<double>(value));
  }
  return "?";
}

}  // namespace

ModelInfo DescribeModel(const GgufFile& file, const ModelConfig& config) {
  ModelInfo info;
  info.path = file.path();
  info.name = config.name;
  info.architecture = config.architecture;
  info.num_layers = config.num_layers;
  info.num_heads = config.num_heads;
  info.num_kv_heads = config.num_kv_heads;
  info.head_dim = config.head_dim;
  info.hidden_size = config.hidden_size;
  info.intermediate_size = config.intermediate_size;
  info.vocab_size = config.vocab_size;
  info.model_context = config.context_length;
  info.context_length = config.context_length;
  info.file_bytes = file.file_bytes();
  info.kv_bytes_per_token = config.kv_shape().bytes_per_token();
  info.has_chat_template = file.FindValue("tokenizer.chat_template") != nullptr;
  for (const auto& [key, value] : file.metadata())
    info.metadata.emplace_back(key, Printable(value));
  for (const GgufTensor& tensor : file.tensors())
    info.tensors.push_back({tensor.name, InfoOf(tensor.type).name, tensor.dims, tensor.num_bytes});
  return info;
}

absl::StatusOr<ModelInfo> InspectModel(const std::string& path) {
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  VC_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*file));
  return DescribeModel(*file, config);
}

absl::StatusOr<double> PredictKeptFraction(std::string_view spec_text, const ModelInfo& info,
                                           int64_t num_tokens) {
  VC_ASSIGN_OR_RETURN(const DraftSpec spec, ParseDraftSpec(spec_text));
  if (!spec.enabled || num_tokens < 1) return 1.0;
  const KvShape shape{1, 1, info.head_dim};
  double bytes = 0;
  for (int layer = 0; layer < info.num_layers; ++layer) {
    DraftSpec of_layer = spec;
    of_layer.fraction = spec.FractionOf(layer);
    const int64_t kept = KeptCount(of_layer, num_tokens, AlwaysKept(spec));
    QueryTimeReads reads = spec.reads();
    if (!reads.In(layer)) reads = {};
    reads.whole_layers = 0;
    bytes += static_cast<double>(DraftKv::LayoutBytes(shape, spec.CodecOf(layer), kept, reads));
  }
  return bytes / static_cast<double>(shape.bytes_per_token() * num_tokens * info.num_layers);
}

}  // namespace vericache
