// Fills a GgufFile from its bytes. Internal to src/gguf.
//
// Trusts nothing: each count is compared with the bytes left before anything is reserved for it,
// and the limits below bound the memory that a hostile file of any size can make us allocate to
// less than 64 MiB (parser_memory_test.cc).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gguf/reader.h"

namespace vericache {

// Real models: about 30 to 100 entries and 100 to 20,000 tensors.
inline constexpr uint64_t kMaxGgufEntries = 16384;
inline constexpr uint64_t kMaxGgufTensors = 65536;
// Over all string arrays; a vocabulary of 262,144 with its merges has about 800,000.
inline constexpr uint64_t kMaxGgufStrings = 3 << 19;
// One key or tensor name (the specification's limit for keys), and all of them together.
inline constexpr uint64_t kMaxGgufNameBytes = 65535;
inline constexpr uint64_t kMaxGgufNameBytesTotal = 4 << 20;
inline constexpr int kMaxGgufDims = 4;
// general.alignment: at least 8 by the specification; above a huge page it only wastes space.
inline constexpr uint64_t kDefaultGgufAlignment = 32;
inline constexpr uint64_t kMinGgufAlignment = 8;
inline constexpr uint64_t kMaxGgufAlignment = 2 << 20;

class GgufParser {
 public:
  explicit GgufParser(GgufFile* file);
  // Reads all of the structure. On an error `*file` is to be thrown away.
  absl::Status Parse();

 private:
  absl::Status ReadHeader();
  absl::Status ReadMetadata();
  absl::Status ReadEntry();
  absl::Status ReadValue(GgufValue* value);
  absl::Status ReadScalar(GgufValue* value);
  absl::Status ReadArray(GgufValue* value);
  absl::Status ReadStringElements(uint64_t count_offset, GgufValue* value);
  absl::Status SetAlignment(uint64_t type_offset, const GgufValue& value);
  absl::Status ReadTensors();
  absl::Status ReadTensorInfo();
  absl::Status ReadDims(GgufTensor* tensor);
  absl::Status CheckShape(uint64_t dims_offset, GgufTensor* tensor);
  absl::Status PlaceTensors();
  absl::Status CheckOverlap() const;

  // Moves past `num_bytes` and gives where they start.
  absl::Status Take(uint64_t num_bytes, absl::string_view field, const uint8_t** start);
  template <typename T>
  absl::Status Read(absl::string_view field, T* value);
  absl::Status ReadString(absl::string_view field, std::string_view* value);
  // A key or tensor name: within the limits and not empty.
  absl::Status ReadName(absl::string_view field, std::string_view* value);
  absl::Status CheckCount(absl::string_view field, uint64_t offset, uint64_t count,
                          uint64_t min_bytes_each, uint64_t limit) const;

  uint64_t left() const { return size_ - offset_; }
  // "model.gguf: metadata 'a.b': string length at offset 40: <problem>"
  std::string Message(absl::string_view field, uint64_t offset, absl::string_view problem) const;
  absl::Status Damaged(absl::string_view field, uint64_t offset, absl::string_view problem) const;
  absl::Status CutShort(absl::string_view field, uint64_t offset, uint64_t needed) const;

  GgufFile* const file_;
  const uint8_t* const data_;
  const uint64_t size_;
  uint64_t offset_ = 0;
  std::string where_;  // "metadata 'a.b': ", for messages; empty within the header
  uint64_t num_tensors_ = 0;
  uint64_t num_entries_ = 0;
  uint64_t num_strings_ = 0;  // in arrays, so far
  uint64_t num_name_bytes_ = 0;
  uint64_t alignment_ = kDefaultGgufAlignment;
};

}  // namespace vericache
