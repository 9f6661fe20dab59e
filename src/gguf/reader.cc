#include "gguf/reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "gguf/identify.h"
#include "gguf/messages.h"
#include "gguf/parser.h"

namespace vericache {
namespace {

// GetInts and GetFloats copy; the limit keeps a hostile file from asking for gigabytes.
constexpr uint64_t kMaxCopiedElements = kMaxGgufStrings;

absl::Status OpenError(const std::string& path, int error) {
  const std::string shown = PathForMessage(path);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(
          absl::StrCat(shown, ": no such file: check the path, or fetch the model first"));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(absl::StrCat(
          shown, ": may not be read by this user: check its permissions (ls -l, chmod u+r)"));
    default:
      return absl::ErrnoToStatus(error, absl::StrCat(shown, ": cannot be opened"));
  }
}

template <typename T>
T Load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// The integer of `type` at `at`; nothing if the type is no integer or the value needs 64 unsigned
// bits.
std::optional<int64_t> LoadInt(GgufValueType type, const uint8_t* at) {
  switch (type) {
    case GgufValueType::kUint8:
      return Load<uint8_t>(at);
    case GgufValueType::kInt8:
      return Load<int8_t>(at);
    case GgufValueType::kUint16:
      return Load<uint16_t>(at);
    case GgufValueType::kInt16:
      return Load<int16_t>(at);
    case GgufValueType::kUint32:
      return Load<uint32_t>(at);
    case GgufValueType::kInt32:
      return Load<int32_t>(at);
    case GgufValueType::kInt64:
      return Load<int64_t>(at);
    case GgufValueType::kUint64: {
      const uint64_t value = Load<uint64_t>(at);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

bool IsInt(GgufValueType type) {
  switch (type) {
    case GgufValueType::kFloat32:
    case GgufValueType::kFloat64:
    case GgufValueType::kBool:
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return false;
    default:
      return true;
  }
}

std::string DescribeType(const GgufValue& value) {
  const std::string element = GgufValueTypeName(static_cast<uint32_t>(value.element_type));
  if (value.type != GgufValueType::kArray) return element;
  return absl::StrCat("array of ", value.count, " x ", element);
}

absl::Status Missing(const GgufFile& file, std::string_view key) {
  return absl::NotFoundError(
      absl::StrCat(PathForMessage(file.path()), ": metadata ", Quoted(key), " is missing"));
}

absl::Status WrongType(const GgufFile& file, std::string_view key, const GgufValue& value,
                       absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(PathForMessage(file.path()), ": metadata ",
                                                 Quoted(key), " is ", DescribeType(value),
                                                 ", but must be ", wanted));
}

absl::Status OutOfRange(const GgufFile& file, std::string_view key, const uint8_t* at) {
  return absl::InvalidArgumentError(absl::StrCat(PathForMessage(file.path()), ": metadata ",
                                                 Quoted(key), " holds ", Load<uint64_t>(at),
                                                 ", more than 2^63-1"));
}

absl::Status CheckCopyable(const GgufFile& file, std::string_view key, const GgufValue& value) {
  if (value.count <= kMaxCopiedElements) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(PathForMessage(file.path()), ": metadata ",
                                                 Quoted(key), " has ", value.count,
                                                 " elements, the limit is ", kMaxCopiedElements));
}

}  // namespace

int64_t GgufTensor::num_values() const {
  int64_t product = 1;  // cannot overflow: the parser has checked it
  for (const int64_t dim : dims) product *= dim;
  return product;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->path_ = path;
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  file->fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd_ < 0) return OpenError(path, errno);
  struct stat info;
  if (fstat(file->fd_, &info) != 0) return OpenError(path, errno);
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(PathForMessage(path), " is a directory: give the path of a .gguf file in it"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(PathForMessage(path), " is a pipe or device: give the path of a .gguf file"));
  }
  if (info.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(PathForMessage(path), " ", DescribeNonGguf({})));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file->fd_, 0);
  if (mapping == MAP_FAILED) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat(PathForMessage(path), ": ", size, " bytes cannot be mapped"));
  }
  file->mapping_ = mapping;
  file->bytes_ = absl::MakeConstSpan(static_cast<const uint8_t*>(mapping), size);
  VC_RETURN_IF_ERROR(GgufParser(file.get()).Parse());
  return file;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::FromMemory(absl::Span<const uint8_t> bytes,
                                                               std::string name) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->path_ = std::move(name);
  file->bytes_ = bytes;
  VC_RETURN_IF_ERROR(GgufParser(file.get()).Parse());
  return file;
}

GgufFile::~GgufFile() {
  if (mapping_ != nullptr) munmap(mapping_, bytes_.size());
  if (fd_ >= 0) close(fd_);
}

const GgufValue* GgufFile::FindValue(std::string_view key) const {
  const auto it = value_index_.find(AsAbsl(key));
  return it == value_index_.end() ? nullptr : &metadata_[it->second].second;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(AsAbsl(name));
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

absl::StatusOr<int64_t> GgufFile::GetInt(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return Missing(*this, key);
  if (!IsInt(value->type)) return WrongType(*this, key, *value, "an integer");
  const std::optional<int64_t> loaded = LoadInt(value->type, value->data);
  if (!loaded.has_value()) return OutOfRange(*this, key, value->data);
  return *loaded;
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return Missing(*this, key);
  if (value->type == GgufValueType::kFloat32) return Load<float>(value->data);
  if (value->type == GgufValueType::kFloat64) return Load<double>(value->data);
  return WrongType(*this, key, *value, "f32 or f64");
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return Missing(*this, key);
  if (value->type != GgufValueType::kBool) return WrongType(*this, key, *value, "bool");
  return *value->data != 0;
}

absl::StatusOr<std::string_view> GgufFile::GetString(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return Missing(*this, key);
  if (value->type != GgufValueType::kString) return WrongType(*this, key, *value, "string");
  return value->string;
}

absl::StatusOr<std::vector<std::string_view>> GgufFile::GetStrings(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return Missing(*this, key);
  if (value->type != GgufValueType::kArray || value->element_type != GgufValueType::kString) {
    return WrongType(*this, key, *value, "an array of strings");
  }
  return value->strings;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return Missing(*this, key);
  if (value->type != GgufValueType::kArray || !IsInt(value->element_type)) {
    return WrongType(*this, key, *value, "an array of integers");
  }
  VC_RETURN_IF_ERROR(CheckCopyable(*this, key, *value));
  const uint64_t step = GgufScalarBytes(static_cast<uint32_t>(value->element_type));
  std::vector<int64_t> ints(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const uint8_t* at = value->data + i * step;
    const std::optional<int64_t> loaded = LoadInt(value->element_type, at);
    if (!loaded.has_value()) return OutOfRange(*this, key, at);
    ints[i] = *loaded;
  }
  return ints;
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloats(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return Missing(*this, key);
  if (value->type != GgufValueType::kArray || value->element_type != GgufValueType::kFloat32) {
    return WrongType(*this, key, *value, "an array of f32");
  }
  VC_RETURN_IF_ERROR(CheckCopyable(*this, key, *value));
  std::vector<float> floats(value->count);
  if (!floats.empty()) std::memcpy(floats.data(), value->data, floats.size() * sizeof(float));
  return floats;
}

absl::StatusOr<int64_t> GgufFile::GetIntOr(std::string_view key, int64_t fallback) const {
  if (FindValue(key) == nullptr) return fallback;
  return GetInt(key);
}

absl::StatusOr<double> GgufFile::GetFloatOr(std::string_view key, double fallback) const {
  if (FindValue(key) == nullptr) return fallback;
  return GetFloat(key);
}

absl::StatusOr<bool> GgufFile::GetBoolOr(std::string_view key, bool fallback) const {
  if (FindValue(key) == nullptr) return fallback;
  return GetBool(key);
}

absl::Status GgufFile::CheckStillWhole() const {
  if (fd_ < 0) return absl::OkStatus();
  struct stat info;
  if (fstat(fd_, &info) != 0) return OpenError(path_, errno);
  if (static_cast<uint64_t>(info.st_size) == file_bytes()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      PathForMessage(path_), ": had ", file_bytes(), " bytes when it was opened and has ",
      info.st_size, " now: it was changed while in use; restore it and start again"));
}

void GgufFile::DropPages(const GgufTensor& tensor, uint64_t num_bytes) const {
  if (mapping_ == nullptr) return;  // memory of the caller would be lost, not re-read
  // Whole pages only: those at the edges hold bytes of the neighbours as well.
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = (tensor.offset + page - 1) / page * page;
  const uint64_t end = (tensor.offset + std::min(num_bytes, tensor.num_bytes)) / page * page;
  if (begin < end) {
    // Advice only: nothing to do if the kernel declines.
    (void)madvise(static_cast<uint8_t*>(mapping_) + begin, end - begin, MADV_DONTNEED);
  }
}

}  // namespace vericache
