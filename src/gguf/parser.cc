// The layout, in order: "GGUF", version u32, tensor count u64, entry count u64; the entries (key,
// value type u32, value); the tensor infos (name, dims count u32, dims u64[], type u32, offset
// u64); zeros up to a multiple of general.alignment; the tensor data, offsets counted from there.
// A string is a u64 length and its bytes; an array is its element type u32, a u64 count and the
// elements.
#include "gguf/parser.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "gguf/identify.h"
#include "gguf/messages.h"

namespace vericache {
namespace {

static_assert(std::endian::native == std::endian::little, "values are read by memcpy");

// Smallest forms: a key of 1 byte with a value of 1 byte; a name of 1 byte with 1 dimension.
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr uint64_t kMinStringBytes = 8;

constexpr absl::string_view kGetAgain =
    "the file is cut short or damaged; download or copy it again";

}  // namespace

GgufParser::GgufParser(GgufFile* file)
    : file_(file), data_(file->bytes_.data()), size_(file->bytes_.size()) {}

absl::Status GgufParser::Parse() {
  VC_RETURN_IF_ERROR(ReadHeader());
  VC_RETURN_IF_ERROR(ReadMetadata());
  VC_RETURN_IF_ERROR(ReadTensors());
  VC_RETURN_IF_ERROR(PlaceTensors());
  return CheckOverlap();
}

absl::Status GgufParser::ReadHeader() {
  if (size_ < 4 || std::memcmp(data_, "GGUF", 4) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(PathForMessage(file_->path_), " ", DescribeNonGguf(file_->bytes_)));
  }
  offset_ = 4;
  uint32_t version = 0;
  VC_RETURN_IF_ERROR(Read("version", &version));
  if (version != 2 && version != 3) {
    std::string problem = absl::StrCat("GGUF version ", version,
                                       " is not supported, only 2 and 3 are; get or convert the "
                                       "model again in version 3");
    if (version != 0 && (version & 0xffff) == 0) {
      problem = absl::StrCat("a big-endian GGUF (version ", __builtin_bswap32(version),
                             ") is not supported; get or convert a little-endian one");
    }
    return absl::UnimplementedError(Message("version", 4, problem));
  }
  file_->version_ = version;
  VC_RETURN_IF_ERROR(Read("tensor count", &num_tensors_));
  VC_RETURN_IF_ERROR(Read("metadata count", &num_entries_));
  VC_RETURN_IF_ERROR(
      CheckCount("tensor count", 8, num_tensors_, kMinTensorInfoBytes, kMaxGgufTensors));
  return CheckCount("metadata count", 16, num_entries_, kMinEntryBytes, kMaxGgufEntries);
}

absl::Status GgufParser::ReadMetadata() {
  file_->metadata_.reserve(num_entries_);
  file_->value_index_.reserve(num_entries_);
  for (uint64_t i = 0; i < num_entries_; ++i) {
    where_ = absl::StrCat("metadata entry ", i, ": ");
    VC_RETURN_IF_ERROR(ReadEntry());
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadEntry() {
  const uint64_t key_offset = offset_;
  std::string_view key;
  VC_RETURN_IF_ERROR(ReadName("key", &key));
  where_ = absl::StrCat("metadata ", Quoted(key), ": ");
  if (!file_->value_index_.emplace(std::string(key), file_->metadata_.size()).second) {
    return Damaged("key", key_offset, "the key is there twice; the file is damaged");
  }
  const uint64_t type_offset = offset_;
  GgufValue value;
  VC_RETURN_IF_ERROR(ReadValue(&value));
  if (key == "general.alignment") VC_RETURN_IF_ERROR(SetAlignment(type_offset, value));
  file_->metadata_.emplace_back(std::string(key), std::move(value));
  return absl::OkStatus();
}

absl::Status GgufParser::ReadValue(GgufValue* value) {
  const uint64_t type_offset = offset_;
  uint32_t type = 0;
  VC_RETURN_IF_ERROR(Read("value type", &type));
  value->type = value->element_type = static_cast<GgufValueType>(type);
  if (value->type == GgufValueType::kString) return ReadString("string", &value->string);
  if (value->type == GgufValueType::kArray) return ReadArray(value);
  if (GgufScalarBytes(type) > 0) return ReadScalar(value);
  return Damaged("value type", type_offset, absl::StrCat(type, " is not a GGUF value type"));
}

absl::Status GgufParser::ReadScalar(GgufValue* value) {
  const uint64_t start = offset_;
  VC_RETURN_IF_ERROR(
      Take(GgufScalarBytes(static_cast<uint32_t>(value->type)), "value", &value->data));
  if (value->type == GgufValueType::kBool && *value->data > 1) {
    return Damaged("value", start, absl::StrCat("a bool is 0 or 1, not ", *value->data));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadArray(GgufValue* value) {
  const uint64_t type_offset = offset_;
  uint32_t type = 0;
  VC_RETURN_IF_ERROR(Read("array element type", &type));
  const uint64_t count_offset = offset_;
  VC_RETURN_IF_ERROR(Read("array count", &value->count));
  value->element_type = static_cast<GgufValueType>(type);
  if (value->element_type == GgufValueType::kArray) {
    return Damaged("array element type", type_offset, "arrays of arrays are not supported");
  }
  if (value->element_type == GgufValueType::kString) {
    return ReadStringElements(count_offset, value);
  }
  const uint64_t element_bytes = GgufScalarBytes(type);
  if (element_bytes == 0) {
    return Damaged("array element type", type_offset,
                   absl::StrCat(type, " is not a GGUF value type"));
  }
  VC_RETURN_IF_ERROR(CheckCount("array count", count_offset, value->count, element_bytes,
                                std::numeric_limits<uint64_t>::max()));
  const uint64_t start = offset_;
  VC_RETURN_IF_ERROR(Take(value->count * element_bytes, "array", &value->data));
  if (value->element_type == GgufValueType::kBool) {
    for (uint64_t i = 0; i < value->count; ++i) {
      if (value->data[i] > 1) {
        return Damaged("array", start + i, absl::StrCat("a bool is 0 or 1, not ", value->data[i]));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadStringElements(uint64_t count_offset, GgufValue* value) {
  VC_RETURN_IF_ERROR(CheckCount("array count", count_offset, value->count, kMinStringBytes,
                                kMaxGgufStrings - num_strings_));
  num_strings_ += value->count;
  value->strings.resize(value->count);
  for (std::string_view& string : value->strings) {
    VC_RETURN_IF_ERROR(ReadString("array string", &string));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::SetAlignment(uint64_t type_offset, const GgufValue& value) {
  if (value.type != GgufValueType::kUint32) {
    return Damaged(
        "value type", type_offset,
        absl::StrCat("must be u32, not ", GgufValueTypeName(static_cast<uint32_t>(value.type))));
  }
  uint32_t alignment;
  std::memcpy(&alignment, value.data, sizeof(alignment));
  if (!std::has_single_bit(alignment) || alignment < kMinGgufAlignment ||
      alignment > kMaxGgufAlignment) {
    return Damaged("value", type_offset + sizeof(uint32_t),
                   absl::StrCat(alignment, " is not a power of two from ", kMinGgufAlignment,
                                " to ", kMaxGgufAlignment));
  }
  alignment_ = alignment;
  return absl::OkStatus();
}

absl::Status GgufParser::ReadTensors() {
  where_.clear();
  // Again: the metadata has used up bytes since the header was checked.
  VC_RETURN_IF_ERROR(
      CheckCount("tensor count", 8, num_tensors_, kMinTensorInfoBytes, kMaxGgufTensors));
  file_->tensors_.reserve(num_tensors_);
  file_->tensor_index_.reserve(num_tensors_);
  for (uint64_t i = 0; i < num_tensors_; ++i) {
    where_ = absl::StrCat("tensor info ", i, ": ");
    VC_RETURN_IF_ERROR(ReadTensorInfo());
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadTensorInfo() {
  const uint64_t name_offset = offset_;
  std::string_view name;
  VC_RETURN_IF_ERROR(ReadName("name", &name));
  where_ = absl::StrCat("tensor ", Quoted(name), ": ");
  if (!file_->tensor_index_.emplace(std::string(name), file_->tensors_.size()).second) {
    return Damaged("name", name_offset, "the tensor is there twice; the file is damaged");
  }
  GgufTensor tensor;
  tensor.name = std::string(name);
  const uint64_t dims_offset = offset_;
  VC_RETURN_IF_ERROR(ReadDims(&tensor));
  const uint64_t type_offset = offset_;
  uint32_t type = 0;
  VC_RETURN_IF_ERROR(Read("type", &type));
  if (FindTensorType(type) == nullptr) {
    return absl::UnimplementedError(
        Message("type", type_offset,
                absl::StrCat(TensorTypeName(type),
                             " is not supported; get the model as F32, F16, "
                             "BF16, Q4_1, Q5_0, Q8_0, Q4_K or Q6_K")));
  }
  tensor.type = static_cast<TensorType>(type);
  VC_RETURN_IF_ERROR(CheckShape(dims_offset, &tensor));
  const uint64_t offset_offset = offset_;
  VC_RETURN_IF_ERROR(Read("data offset", &tensor.offset));
  if (tensor.offset % alignment_ != 0) {
    return Damaged("data offset", offset_offset,
                   absl::StrCat(tensor.offset, " is not a multiple of the alignment ", alignment_));
  }
  file_->tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status GgufParser::ReadDims(GgufTensor* tensor) {
  const uint64_t count_offset = offset_;
  uint32_t num_dims = 0;
  VC_RETURN_IF_ERROR(Read("dimension count", &num_dims));
  if (num_dims < 1 || num_dims > kMaxGgufDims) {
    return Damaged("dimension count", count_offset,
                   absl::StrCat(num_dims, " dimensions, but 1 to ", kMaxGgufDims, " are allowed"));
  }
  tensor->dims.reserve(num_dims);
  for (uint32_t i = 0; i < num_dims; ++i) {
    const uint64_t dim_offset = offset_;
    uint64_t dim = 0;
    VC_RETURN_IF_ERROR(Read("dimension", &dim));
    if (dim == 0 || dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Damaged("dimension", dim_offset,
                     absl::StrCat("dimension ", i, " is ", dim, ", not from 1 to 2^63-1"));
    }
    tensor->dims.push_back(static_cast<int64_t>(dim));
  }
  return absl::OkStatus();
}

// Sets num_bytes from dims and type.
absl::Status GgufParser::CheckShape(uint64_t dims_offset, GgufTensor* tensor) {
  const TensorTypeInfo& info = InfoOf(tensor->type);
  if (tensor->cols() % info.block_values != 0) {
    return Damaged("dimensions", dims_offset,
                   absl::StrCat("rows of ", tensor->cols(), " values are not whole ", info.name,
                                " blocks of ", info.block_values));
  }
  int64_t num_values = 1;
  int64_t num_bytes = 0;
  bool overflow = false;
  for (const int64_t dim : tensor->dims) {
    overflow = overflow || __builtin_mul_overflow(num_values, dim, &num_values);
  }
  overflow = overflow ||
             __builtin_mul_overflow(num_values / info.block_values, info.block_bytes, &num_bytes);
  if (overflow) {
    return Damaged("dimensions", dims_offset,
                   absl::StrCat("the product of ", absl::StrJoin(tensor->dims, " x "),
                                " overflows; the file is damaged"));
  }
  tensor->num_bytes = static_cast<uint64_t>(num_bytes);
  return absl::OkStatus();
}

// Turns offsets within the data section into offsets within the file and checks them.
absl::Status GgufParser::PlaceTensors() {
  // No overflow: offset_ <= size_ < 2^63, and the alignment is small.
  const uint64_t data_start = (offset_ + alignment_ - 1) / alignment_ * alignment_;
  uint64_t whole_bytes = 0;
  for (GgufTensor& tensor : file_->tensors_) {
    where_ = absl::StrCat("tensor ", Quoted(tensor.name), ": ");
    uint64_t end;
    if (__builtin_add_overflow(tensor.offset, data_start, &tensor.offset) ||
        __builtin_add_overflow(tensor.offset, tensor.num_bytes, &end)) {
      return Damaged("data", tensor.offset, "offset and size overflow; the file is damaged");
    }
    whole_bytes = std::max(whole_bytes, end);
  }
  for (GgufTensor& tensor : file_->tensors_) {
    if (tensor.offset + tensor.num_bytes > size_) {
      where_ = absl::StrCat("tensor ", Quoted(tensor.name), ": ");
      return Damaged("data", tensor.offset,
                     absl::StrCat("needs ", tensor.num_bytes, " bytes, ",
                                  tensor.offset < size_ ? size_ - tensor.offset : 0,
                                  " are present (the file has ", size_, " bytes, the whole model ",
                                  whole_bytes, "); ", kGetAgain));
    }
    tensor.data = data_ + tensor.offset;
  }
  return absl::OkStatus();
}

// Tensors that share bytes would let a small file ask for any amount of memory when weights are
// copied into another layout. No writer makes them.
absl::Status GgufParser::CheckOverlap() const {
  const std::vector<GgufTensor>& tensors = file_->tensors_;
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(tensors[a].offset, a) < std::pair(tensors[b].offset, b);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = tensors[order[i - 1]];
    const GgufTensor& after = tensors[order[i]];
    if (before.offset + before.num_bytes > after.offset) {
      return absl::InvalidArgumentError(absl::StrCat(
          PathForMessage(file_->path_), ": tensor ", Quoted(after.name), ": data at offset ",
          after.offset, ": overlaps tensor ", Quoted(before.name), "; the file is damaged"));
    }
  }
  return absl::OkStatus();
}

absl::Status GgufParser::Take(uint64_t num_bytes, absl::string_view field, const uint8_t** start) {
  if (num_bytes > left()) return CutShort(field, offset_, num_bytes);
  *start = data_ + offset_;
  offset_ += num_bytes;
  return absl::OkStatus();
}

template <typename T>
absl::Status GgufParser::Read(absl::string_view field, T* value) {
  const uint8_t* start = nullptr;
  VC_RETURN_IF_ERROR(Take(sizeof(T), field, &start));
  std::memcpy(value, start, sizeof(T));
  return absl::OkStatus();
}

absl::Status GgufParser::ReadString(absl::string_view field, std::string_view* value) {
  uint64_t length = 0;
  VC_RETURN_IF_ERROR(Read(field, &length));
  const uint8_t* start = nullptr;
  VC_RETURN_IF_ERROR(Take(length, field, &start));
  *value = std::string_view(reinterpret_cast<const char*>(start), length);
  return absl::OkStatus();
}

absl::Status GgufParser::ReadName(absl::string_view field, std::string_view* value) {
  const uint64_t start = offset_;
  VC_RETURN_IF_ERROR(ReadString(field, value));
  if (value->empty()) return Damaged(field, start, "is empty");
  if (value->size() > kMaxGgufNameBytes) {
    return Damaged(field, start,
                   absl::StrCat("has ", value->size(), " bytes, the limit is ", kMaxGgufNameBytes));
  }
  num_name_bytes_ += value->size();
  if (num_name_bytes_ > kMaxGgufNameBytesTotal) {
    return Damaged(field, start,
                   absl::StrCat("all keys and names together exceed the limit of ",
                                kMaxGgufNameBytesTotal, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::CheckCount(absl::string_view field, uint64_t offset, uint64_t count,
                                    uint64_t min_bytes_each, uint64_t limit) const {
  if (count > left() / min_bytes_each) {
    return Damaged(field, offset,
                   absl::StrCat(count, " elements of at least ", min_bytes_each, " bytes, but ",
                                left(), " bytes are left; ", kGetAgain));
  }
  if (count > limit) {
    return Damaged(field, offset, absl::StrCat(count, " elements, the limit is ", limit));
  }
  return absl::OkStatus();
}

std::string GgufParser::Message(absl::string_view field, uint64_t offset,
                                absl::string_view problem) const {
  return absl::StrCat(PathForMessage(file_->path_), ": ", where_, field, " at offset ", offset,
                      ": ", problem);
}

absl::Status GgufParser::Damaged(absl::string_view field, uint64_t offset,
                                 absl::string_view problem) const {
  return absl::InvalidArgumentError(Message(field, offset, problem));
}

absl::Status GgufParser::CutShort(absl::string_view field, uint64_t offset, uint64_t needed) const {
  return Damaged(field, offset,
                 absl::StrCat("needs ", needed, " bytes, ", left(), " are present; ", kGetAgain));
}

}  // namespace vericache
