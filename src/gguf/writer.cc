#include "gguf/writer.h"

#include <bit>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gguf/parser.h"
#include "gguf/reader.h"

namespace vericache {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie");

template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string RawString(std::string_view text) { return Raw<uint64_t>(text.size()).append(text); }

std::string RawArrayHead(GgufValueType element_type, uint64_t count) {
  return Raw(static_cast<uint32_t>(element_type)) + Raw(count);
}

template <typename T>
std::string RawScalars(GgufValueType element_type, absl::Span<const T> values) {
  std::string payload = RawArrayHead(element_type, values.size());
  for (const T value : values) payload += Raw(value);
  return payload;
}

constexpr uint32_t Number(GgufValueType type) { return static_cast<uint32_t>(type); }

uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

void GgufWriter::AddUint32(std::string_view key, uint32_t value) {
  // A value that readers must refuse (a malformed fixture) leaves the layout at the default.
  if (key == "general.alignment" && std::has_single_bit(value) && value <= kMaxGgufAlignment) {
    alignment_ = value;
  }
  AddEntry(key, Number(GgufValueType::kUint32), Raw(value));
}
void GgufWriter::AddInt32(std::string_view key, int32_t value) {
  AddEntry(key, Number(GgufValueType::kInt32), Raw(value));
}
void GgufWriter::AddUint64(std::string_view key, uint64_t value) {
  AddEntry(key, Number(GgufValueType::kUint64), Raw(value));
}
void GgufWriter::AddFloat32(std::string_view key, float value) {
  AddEntry(key, Number(GgufValueType::kFloat32), Raw(value));
}
void GgufWriter::AddBool(std::string_view key, bool value) {
  AddEntry(key, Number(GgufValueType::kBool), Raw<uint8_t>(value ? 1 : 0));
}
void GgufWriter::AddString(std::string_view key, std::string_view value) {
  AddEntry(key, Number(GgufValueType::kString), RawString(value));
}
void GgufWriter::AddStrings(std::string_view key, absl::Span<const std::string> values) {
  std::string payload = RawArrayHead(GgufValueType::kString, values.size());
  for (const std::string& value : values) payload += RawString(value);
  AddEntry(key, Number(GgufValueType::kArray), std::move(payload));
}
void GgufWriter::AddInt32s(std::string_view key, absl::Span<const int32_t> values) {
  AddEntry(key, Number(GgufValueType::kArray), RawScalars(GgufValueType::kInt32, values));
}
void GgufWriter::AddFloat32s(std::string_view key, absl::Span<const float> values) {
  AddEntry(key, Number(GgufValueType::kArray), RawScalars(GgufValueType::kFloat32, values));
}
void GgufWriter::AddRaw(std::string_view key, uint32_t value_type, std::string_view payload) {
  AddEntry(key, value_type, std::string(payload));
}

void GgufWriter::AddEntry(std::string_view key, uint32_t type, std::string payload) {
  absl::StrAppend(&entries_, RawString(key), Raw(type), payload);
  ++num_entries_;
}

void GgufWriter::AddTensor(std::string_view name, TensorType type, absl::Span<const int64_t> dims,
                           std::string data) {
  const TensorTypeInfo& info = InfoOf(type);
  uint64_t num_values = 1;
  for (const int64_t dim : dims) num_values *= static_cast<uint64_t>(dim);
  VC_CHECK(data.size() == num_values / info.block_values * info.block_bytes);
  tensors_.push_back({.name = std::string(name),
                      .type = static_cast<uint32_t>(type),
                      .dims = std::vector<uint64_t>(dims.begin(), dims.end()),
                      .data = std::move(data),
                      .raw_offset = false,
                      .offset = 0});
}

void GgufWriter::AddTensorInfoRaw(std::string_view name, uint32_t type,
                                  absl::Span<const uint64_t> dims, uint64_t offset) {
  tensors_.push_back({.name = std::string(name),
                      .type = type,
                      .dims = std::vector<uint64_t>(dims.begin(), dims.end()),
                      .data = "",
                      .raw_offset = true,
                      .offset = offset});
}

std::string GgufWriter::ToBytes() const {
  std::string bytes = absl::StrCat("GGUF", Raw(version_), Raw<uint64_t>(tensors_.size()),
                                   Raw(num_entries_), entries_);
  uint64_t next_offset = 0;  // within the data section
  for (const Tensor& tensor : tensors_) {
    absl::StrAppend(&bytes, RawString(tensor.name), Raw<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) bytes += Raw(dim);
    absl::StrAppend(&bytes, Raw(tensor.type), Raw(tensor.raw_offset ? tensor.offset : next_offset));
    next_offset = AlignUp(next_offset + tensor.data.size(), alignment_);
  }
  // Padding goes before each tensor and not behind the last, so that no byte of the file is spare:
  // cut anywhere, it is incomplete.
  for (const Tensor& tensor : tensors_) {
    if (tensor.raw_offset) continue;
    bytes.resize(AlignUp(bytes.size(), alignment_));
    bytes += tensor.data;
  }
  return bytes;
}

absl::Status GgufWriter::WriteFile(const std::string& path) const {
  const std::string bytes = ToBytes();
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be created"));
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  const int error = errno;
  if (std::fclose(file) != 0 || !written) {
    return absl::ErrnoToStatus(written ? errno : error, absl::StrCat(path, ": cannot be written"));
  }
  return absl::OkStatus();
}

}  // namespace vericache
