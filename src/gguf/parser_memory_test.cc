// Memory on hostile files: what they claim allocates nothing, and the worst that they can really
// hold stays under 64 MiB (shared case 23). Counts the bytes behind operator new.
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>

#include "absl/strings/str_format.h"
#include "gguf/parser.h"
#include "gguf/reader.h"
#include "gguf/test_util.h"
#include "gguf/writer.h"
#include "gtest/gtest.h"

namespace {
int64_t current_bytes = 0;
int64_t peak_bytes = 0;

void Uncount(void* block) {
  if (block != nullptr) current_bytes -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}
}  // namespace

void* operator new(size_t size) {
  void* block = std::malloc(std::max<size_t>(size, 1));
  if (block == nullptr) throw std::bad_alloc();
  current_bytes += static_cast<int64_t>(malloc_usable_size(block));
  peak_bytes = std::max(peak_bytes, current_bytes);
  return block;
}
void operator delete(void* block) noexcept { Uncount(block); }
void operator delete(void* block, size_t) noexcept { Uncount(block); }

namespace vericache {
namespace {

// Most bytes held at once while `bytes` is parsed, beyond what was held before.
int64_t PeakBytesOf(const std::string& bytes, absl::StatusCode expected) {
  const int64_t before = current_bytes;
  peak_bytes = before;
  const auto file = GgufFile::FromMemory(BytesOf(bytes), "m.gguf");
  EXPECT_EQ(file.status().code(), expected) << file.status();
  return peak_bytes - before;
}

TEST(ParserMemory, ClaimedNumbersAllocateNothing) {
  constexpr uint32_t kString = 8, kArray = 9, kU64 = 10;
  std::string many_entries = SmallModel().ToBytes();
  Patch<uint64_t>(16, uint64_t{1} << 60, &many_entries);
  std::string many_tensors = SmallModel().ToBytes();
  Patch<uint64_t>(8, uint64_t{1} << 60, &many_tensors);
  GgufWriter long_string, long_array, many_strings, nested, huge_tensor;
  long_string.AddRaw("k", kString, Le(uint64_t{1} << 63));
  long_array.AddRaw("k", kArray, Le(kU64) + Le(uint64_t{1} << 61));
  many_strings.AddRaw("k", kArray, Le(kString) + Le(uint64_t{1} << 61));
  std::string deep;
  for (int i = 0; i < 10000; ++i) deep += Le(kArray) + Le(uint64_t{1});
  nested.AddRaw("k", kArray, deep);
  const uint64_t dims[] = {(uint64_t{1} << 42) + 1, uint64_t{1} << 22};
  huge_tensor.AddTensorInfoRaw("t", 0, dims, 0);
  for (const std::string& bytes :
       {many_entries, many_tensors, long_string.ToBytes(), long_array.ToBytes(),
        many_strings.ToBytes(), nested.ToBytes(), huge_tensor.ToBytes()}) {
    EXPECT_LT(PeakBytesOf(bytes, absl::StatusCode::kInvalidArgument), 64 << 10);
  }
}

TEST(ParserMemory, LimitsBoundTheWorstFile) {
  // As many entries, tensors, strings and bytes of names as the limits allow. The last tensor is a
  // duplicate, so that the whole structure is built before the refusal.
  GgufWriter writer;
  const std::string strings(8 * kMaxGgufStrings, '\0');  // each a length of 0
  writer.AddRaw("strings", 9, Le<uint32_t>(8) + Le(kMaxGgufStrings) + strings);
  for (uint64_t i = 1; i < kMaxGgufEntries; ++i) {
    writer.AddRaw(absl::StrFormat("key.with.more.than.16.bytes.%020d.and.more", i), 0, "\1");
  }
  const uint64_t dims[] = {1, 1, 1, 1};
  for (uint64_t i = 0; i < kMaxGgufTensors; ++i) {
    writer.AddTensorInfoRaw(
        absl::StrFormat("tensor.with.a.name.of.%020d", std::min(i, kMaxGgufTensors - 2)), 0, dims,
        i * 32);
  }
  const std::string bytes = writer.ToBytes();
  const int64_t peak = PeakBytesOf(bytes, absl::StatusCode::kInvalidArgument);
  RecordProperty("peak_bytes", std::to_string(peak));
  EXPECT_GT(peak, 30 << 20);  // the fixture does reach the limits
  EXPECT_LT(peak, 64 << 20);
}

TEST(ParserMemory, StringsBeyondTheLimitAreRefused) {
  GgufWriter writer;
  const std::string strings(8 * kMaxGgufStrings, '\0');
  writer.AddRaw("a", 9, Le<uint32_t>(8) + Le(kMaxGgufStrings) + strings);
  writer.AddRaw("b", 9, Le<uint32_t>(8) + Le(uint64_t{1}) + Le(uint64_t{0}));
  const auto file = GgufFile::FromMemory(BytesOf(writer.ToBytes()), "m.gguf");
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.status().message().find("metadata 'b': array count"), std::string::npos);
}

TEST(ParserMemory, NamesBeyondTheLimitAreRefused) {
  GgufWriter writer;
  for (int i = 0; i < 65; ++i) {
    writer.AddBool(absl::StrFormat("%065000d", i), true);
  }
  const std::string bytes = writer.ToBytes();
  EXPECT_LT(PeakBytesOf(bytes, absl::StatusCode::kInvalidArgument), 16 << 20);
}

TEST(ParserMemory, CopiesOfHugeArraysAreRefused) {
  GgufWriter writer;
  const uint64_t count = kMaxGgufStrings + 1;
  writer.AddRaw("bytes", 9, Le<uint32_t>(0) + Le(count) + std::string(count, 'x'));
  const std::string bytes = writer.ToBytes();
  const auto file = GgufFile::FromMemory(BytesOf(bytes), "m.gguf");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->FindValue("bytes")->count, count);
  EXPECT_EQ((*file)->GetInts("bytes").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace vericache
