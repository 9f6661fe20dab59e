// Reads GGUF model files (versions 2 and 3, little-endian) through mmap.
//
// The file is hostile: every count, length and offset is checked against the bytes left before it
// is used, and nothing is allocated from a number the file merely claims. Errors are one line that
// names the field and its offset. SOURCE: the GGUF specification (ggml docs/gguf.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor_type.h"

namespace vericache {

// Value types by their numbers in the format.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// One metadata value: a scalar, a string, or a flat array of scalars or strings. Arrays of arrays
// are refused. String and array payloads point into the mapped file, which must outlive them.
struct GgufValue {
  GgufValueType type;             // kArray for arrays
  GgufValueType element_type;     // of arrays; == type otherwise
  uint64_t count = 1;             // elements of an array
  const uint8_t* data = nullptr;  // scalars and arrays of scalars: raw little-endian, unaligned
  std::string_view string;        // of a kString
  std::vector<std::string_view> strings;  // of an array of kString
};

struct GgufTensor {
  std::string name;
  TensorType type;
  std::vector<int64_t> dims;  // [cols (contiguous), rows, ...], 1 to 4 of them, each >= 1
  uint64_t offset = 0;        // of the data from the start of the file
  uint64_t num_bytes = 0;
  const uint8_t* data = nullptr;  // in the mapping

  int64_t cols() const { return dims[0]; }
  int64_t rows() const { return dims.size() > 1 ? dims[1] : 1; }
  int64_t num_values() const;
};

class GgufFile {
 public:
  // Maps the file read-only and checks all of its structure.
  // ERRORS: kNotFound (no such path), kInvalidArgument (not a GGUF, damaged, or cut short: the
  //         message says what the file is instead, or which tensor needs how many bytes and how
  //         many there are), kUnimplemented (a tensor type or version we do not read, by name),
  //         kPermissionDenied (not readable).
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // The same over bytes in memory, which must outlive the object (fuzzing, tests).
  static absl::StatusOr<std::unique_ptr<GgufFile>> FromMemory(absl::Span<const uint8_t> bytes,
                                                              std::string name);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  uint64_t file_bytes() const { return bytes_.size(); }
  absl::Span<const uint8_t> bytes() const { return bytes_; }

  // In file order. Keys are unique (a duplicate is an error).
  const std::vector<std::pair<std::string, GgufValue>>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  const GgufValue* FindValue(std::string_view key) const;     // null if absent
  const GgufTensor* FindTensor(std::string_view name) const;  // null if absent

  // Typed look-ups. Integers of any width convert when the value fits; bool and floats do not.
  // ERRORS: kNotFound if absent, kInvalidArgument if of another type or out of range (names the
  //         key).
  absl::StatusOr<int64_t> GetInt(std::string_view key) const;
  absl::StatusOr<double> GetFloat(std::string_view key) const;  // F32 or F64
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  absl::StatusOr<std::vector<std::string_view>> GetStrings(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(std::string_view key) const;
  absl::StatusOr<std::vector<float>> GetFloats(std::string_view key) const;
  // The fallback where the key is absent; an error only if present and wrong.
  absl::StatusOr<int64_t> GetIntOr(std::string_view key, int64_t fallback) const;
  absl::StatusOr<double> GetFloatOr(std::string_view key, double fallback) const;
  absl::StatusOr<bool> GetBoolOr(std::string_view key, bool fallback) const;

  // Re-checks that the file on disk still has the mapped length (a file cut while mapped would
  // fault later). ERRORS: kDataLoss naming both sizes.
  absl::Status CheckStillWhole() const;
  // Tells the kernel that the pages of a tensor's first `num_bytes` bytes may be dropped from this
  // process (they have been repacked). They are read again if they are touched.
  void DropPages(const GgufTensor& tensor, uint64_t num_bytes) const;
  void DropPages(const GgufTensor& tensor) const { DropPages(tensor, tensor.num_bytes); }

 private:
  GgufFile() = default;
  friend class GgufParser;
  std::string path_;
  int fd_ = -1;
  void* mapping_ = nullptr;
  absl::Span<const uint8_t> bytes_;
  uint32_t version_ = 0;
  std::vector<std::pair<std::string, GgufValue>> metadata_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> value_index_, tensor_index_;
};

}  // namespace vericache
