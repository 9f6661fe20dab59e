// Hand-made hostile files (shared case 23): each is refused with one line that names the field and
// its offset.
#include <string>

#include "absl/status/status.h"
#include "gguf/reader.h"
#include "gguf/test_util.h"
#include "gguf/writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint32_t kU32 = 4, kBool = 7, kString = 8, kArray = 9, kU64 = 10;
constexpr uint32_t kF32 = 0;

absl::Status ParseError(const std::string& bytes) {
  const auto file = GgufFile::FromMemory(BytesOf(bytes), "m.gguf");
  EXPECT_FALSE(file.ok());
  if (file.ok()) return absl::OkStatus();
  EXPECT_THAT(std::string(file.status().message()),
              AllOf(StartsWith("m.gguf"), Not(HasSubstr("\n"))));
  return file.status();
}

std::string Message(const std::string& bytes) {
  const absl::Status status = ParseError(bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

// A file with one metadata entry "k": key length at 24, "k" at 32, type at 33, payload at 37.
std::string OneEntry(uint32_t type, const std::string& payload) {
  GgufWriter writer;
  writer.AddRaw("k", type, payload);
  return writer.ToBytes();
}

// A file with one tensor "t" and `num_data` bytes of data behind its info: name length at 24, "t"
// at 32, dimension count at 33, dimensions at 37.
std::string OneTensor(uint32_t type, absl::Span<const uint64_t> dims, uint64_t offset = 0,
                      size_t num_data = 4096) {
  GgufWriter writer;
  writer.AddTensorInfoRaw("t", type, dims, offset);
  return writer.ToBytes() + std::string(num_data, 'x');
}

TEST(Malformed, MetadataCountBeyondTheFile) {
  for (const uint64_t count : {uint64_t{1} << 60, uint64_t{1} << 63, ~uint64_t{0}}) {
    std::string bytes = SmallModel().ToBytes();
    Patch<uint64_t>(16, count, &bytes);
    EXPECT_THAT(Message(bytes),
                StartsWith("m.gguf: metadata count at offset 16: " + std::to_string(count) +
                           " elements of at least 14 bytes, but "));
  }
}

TEST(Malformed, MetadataCountOneTooHighOrLow) {
  std::string bytes = SmallModel().ToBytes();
  Patch<uint64_t>(16, 18, &bytes);
  Message(bytes);
  Patch<uint64_t>(16, 16, &bytes);
  Message(bytes);
}

TEST(Malformed, TensorCountBeyondTheFile) {
  for (const uint64_t count : {uint64_t{1} << 60, ~uint64_t{0}}) {
    std::string bytes = SmallModel().ToBytes();
    Patch<uint64_t>(8, count, &bytes);
    EXPECT_THAT(Message(bytes), HasSubstr("tensor count at offset 8: " + std::to_string(count)));
  }
}

TEST(Malformed, CountsBeyondTheLimits) {
  std::string bytes = GgufWriter().ToBytes() + std::string(4 << 20, '\0');
  Patch<uint64_t>(16, 16385, &bytes);
  EXPECT_EQ(Message(bytes),
            "m.gguf: metadata count at offset 16: 16385 elements, the limit is 16384");
  Patch<uint64_t>(16, 0, &bytes);
  Patch<uint64_t>(8, 65537, &bytes);
  EXPECT_EQ(Message(bytes), "m.gguf: tensor count at offset 8: 65537 elements, the limit is 65536");
}

TEST(Malformed, StringLengthBeyondTheFile) {
  for (const uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{5}}) {
    EXPECT_THAT(Message(OneEntry(kString, Le(length) + "abcd")),
                StartsWith("m.gguf: metadata 'k': string at offset 45: needs " +
                           std::to_string(length) + " bytes, 4 are present"));
  }
}

TEST(Malformed, KeyLengthBeyondTheFile) {
  std::string bytes = OneEntry(kU32, Le<uint32_t>(1));
  Patch<uint64_t>(24, uint64_t{1} << 63, &bytes);
  EXPECT_THAT(Message(bytes),
              StartsWith("m.gguf: metadata entry 0: key at offset 32: needs 9223372036854775808"));
}

TEST(Malformed, ArrayCountWhoseBytesWrapAround) {
  EXPECT_THAT(Message(OneEntry(kArray, Le(kU64) + Le(uint64_t{1} << 61))),
              StartsWith("m.gguf: metadata 'k': array count at offset 41: 2305843009213693952 "
                         "elements of at least 8 bytes, but 0 bytes are left"));
  EXPECT_THAT(Message(OneEntry(kArray, Le(kString) + Le(uint64_t{1} << 61))),
              HasSubstr("array count at offset 41: 2305843009213693952"));
  EXPECT_THAT(Message(OneEntry(kArray, Le(kU64) + Le(uint64_t{2}) + Le(uint64_t{7}))),
              HasSubstr("array count at offset 41: 2 elements"));
}

TEST(Malformed, ArraysOfArrays) {
  EXPECT_EQ(Message(OneEntry(kArray, Le(kArray) + Le(uint64_t{1}) + Le(kU32) + Le(uint64_t{0}))),
            "m.gguf: metadata 'k': array element type at offset 37: arrays of arrays are not "
            "supported");
  std::string deep;
  for (int i = 0; i < 10000; ++i) deep += Le(kArray) + Le(uint64_t{1});
  EXPECT_THAT(Message(OneEntry(kArray, deep)), HasSubstr("arrays of arrays"));
}

TEST(Malformed, UnknownValueTypes) {
  EXPECT_EQ(Message(OneEntry(13, "payload")),
            "m.gguf: metadata 'k': value type at offset 33: 13 is not a GGUF value type");
  EXPECT_EQ(Message(OneEntry(kArray, Le<uint32_t>(99) + Le(uint64_t{0}))),
            "m.gguf: metadata 'k': array element type at offset 37: 99 is not a GGUF value type");
}

TEST(Malformed, BoolsThatAreNeitherZeroNorOne) {
  EXPECT_EQ(Message(OneEntry(kBool, "\x02")),
            "m.gguf: metadata 'k': value at offset 37: a bool is 0 or 1, not 2");
  EXPECT_EQ(Message(OneEntry(kArray, Le(kBool) + Le(uint64_t{2}) + "\x01\xff")),
            "m.gguf: metadata 'k': array at offset 50: a bool is 0 or 1, not 255");
}

TEST(Malformed, KeysAndNamesEmptyLongOrTwice) {
  GgufWriter empty_key;
  empty_key.AddBool("", true);
  empty_key.AddUint32("x", 1);
  EXPECT_EQ(Message(empty_key.ToBytes()), "m.gguf: metadata entry 0: key at offset 24: is empty");
  GgufWriter long_key;
  long_key.AddBool(std::string(65536, 'k'), true);
  EXPECT_THAT(Message(long_key.ToBytes()),
              HasSubstr("key at offset 24: has 65536 bytes, the limit is 65535"));
  GgufWriter twice;
  twice.AddUint32("a.b", 1);
  twice.AddUint32("a.b", 2);
  EXPECT_EQ(Message(twice.ToBytes()),
            "m.gguf: metadata 'a.b': key at offset 43: the key is there "
            "twice; the file is damaged");
  GgufWriter two_tensors;
  two_tensors.AddTensor("t", TensorType::kF32, {1}, "abcd");
  two_tensors.AddTensor("t", TensorType::kF32, {1}, "abcd");
  EXPECT_THAT(Message(two_tensors.ToBytes()), HasSubstr("tensor 't': name at offset 57: the tensor "
                                                        "is there twice"));
  GgufWriter no_name;
  no_name.AddTensor("", TensorType::kF32, {8}, std::string(32, 'x'));
  EXPECT_EQ(Message(no_name.ToBytes()), "m.gguf: tensor info 0: name at offset 24: is empty");
}

TEST(Malformed, NamesAreShownOnOneLineAndShort) {
  GgufWriter writer;
  writer.AddRaw("a\nb\x1b[31m", 99, "");
  EXPECT_THAT(Message(writer.ToBytes()), HasSubstr("metadata 'a\\nb\\x1b[31m': value type"));
  GgufWriter long_name;
  long_name.AddRaw(std::string(5000, 'k'), 99, "");
  EXPECT_LT(Message(long_name.ToBytes()).size(), 200u);
  const std::string bytes = "junk file";
  const auto file = GgufFile::FromMemory(BytesOf(bytes), "a\nb.gguf");
  EXPECT_THAT(std::string(file.status().message()), StartsWith("a?b.gguf is "));
}

TEST(Malformed, DimensionCounts) {
  EXPECT_EQ(Message(OneTensor(kF32, {})),
            "m.gguf: tensor 't': dimension count at offset 33: 0 "
            "dimensions, but 1 to 4 are allowed");
  EXPECT_THAT(Message(OneTensor(kF32, {1, 1, 1, 1, 1})), HasSubstr("5 dimensions"));
  EXPECT_THAT(Message(OneTensor(kF32, {1, 1, 1, 1, 1, 1, 1, 1, 1})), HasSubstr("9 dimensions"));
  std::string bytes = OneTensor(kF32, {1});
  Patch<uint32_t>(33, ~uint32_t{0}, &bytes);
  EXPECT_THAT(Message(bytes), HasSubstr("4294967295 dimensions"));
}

TEST(Malformed, DimensionsZeroHugeOrOverflowing) {
  EXPECT_EQ(Message(OneTensor(kF32, {4, 0})),
            "m.gguf: tensor 't': dimension at offset 45: "
            "dimension 1 is 0, not from 1 to 2^63-1");
  EXPECT_THAT(Message(OneTensor(kF32, {uint64_t{1} << 63})),
              HasSubstr("dimension 0 is 9223372036854775808"));
  // The product is 2^64 + 2^22: unchecked it wraps around to 2^22.
  EXPECT_EQ(Message(OneTensor(kF32, {(uint64_t{1} << 42) + 1, uint64_t{1} << 22})),
            "m.gguf: tensor 't': dimensions at offset 33: the product of 4398046511105 x 4194304 "
            "overflows; the file is damaged");
  // 2^62 values fit, 2^64 bytes do not.
  EXPECT_THAT(Message(OneTensor(kF32, {uint64_t{1} << 62})), HasSubstr("overflows"));
  EXPECT_THAT(Message(OneTensor(kF32, {uint64_t{1} << 40})),
              HasSubstr("needs 4398046511104 bytes, 4089 are present"));
}

TEST(Malformed, RowsThatAreNotWholeBlocks) {
  EXPECT_EQ(Message(OneTensor(8, {33, 32})),
            "m.gguf: tensor 't': dimensions at offset 33: rows of "
            "33 values are not whole Q8_0 blocks of 32");
  EXPECT_THAT(Message(OneTensor(12, {128, 2})), HasSubstr("not whole Q4_K blocks of 256"));
}

TEST(Malformed, DataOffsets) {
  EXPECT_EQ(Message(OneTensor(kF32, {1}, 4)),
            "m.gguf: tensor 't': data offset at offset 49: 4 is "
            "not a multiple of the alignment 32");
  EXPECT_THAT(Message(OneTensor(kF32, {1}, ~uint64_t{0} - 31)), HasSubstr("overflow"));
  EXPECT_THAT(Message(OneTensor(kF32, {1}, uint64_t{1} << 62)),
              HasSubstr("needs 4 bytes, 0 are present"));
  EXPECT_THAT(Message(OneTensor(kF32, {8}, 64, 64)), HasSubstr("tensor 't': data at offset 128"));
}

TEST(Malformed, TensorsThatShareBytes) {
  GgufWriter writer;
  const uint64_t dims[] = {16};
  writer.AddTensorInfoRaw("a", kF32, dims, 0);
  writer.AddTensorInfoRaw("b", kF32, dims, 32);
  EXPECT_THAT(Message(writer.ToBytes() + std::string(256, 'x')),
              HasSubstr("tensor 'b': data at offset 128: overlaps tensor 'a'"));
}

TEST(Malformed, Alignment) {
  for (const uint32_t alignment : {0u, 1u, 4u, 24u, 33u, 1u << 31, ~0u}) {
    GgufWriter writer;
    writer.AddUint32("general.alignment", alignment);
    EXPECT_EQ(Message(writer.ToBytes()),
              "m.gguf: metadata 'general.alignment': value at offset 53: " +
                  std::to_string(alignment) + " is not a power of two from 8 to 2097152");
  }
  GgufWriter text;
  text.AddString("general.alignment", "32");
  EXPECT_EQ(Message(text.ToBytes()),
            "m.gguf: metadata 'general.alignment': value type at offset "
            "49: must be u32, not string");
}

TEST(Unsupported, TensorTypesAreNamed) {
  const absl::Status q2_k = ParseError(OneTensor(10, {256}));
  EXPECT_EQ(q2_k.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(q2_k.message()),
              StartsWith("m.gguf: tensor 't': type at offset 45: Q2_K is not supported; get the "
                         "model as F32, F16,"));
  EXPECT_THAT(std::string(ParseError(OneTensor(39, {32})).message()), HasSubstr("MXFP4"));
  EXPECT_THAT(std::string(ParseError(OneTensor(99, {32})).message()), HasSubstr("type 99"));
  EXPECT_EQ(ParseError(OneTensor(~0u, {32})).code(), absl::StatusCode::kUnimplemented);
}

TEST(Unsupported, Versions) {
  for (const uint32_t version : {0u, 1u, 4u}) {
    const absl::Status status = ParseError(SmallModel(version).ToBytes());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()),
                StartsWith("m.gguf: version at offset 4: GGUF version " + std::to_string(version) +
                           " is not supported, only 2 and 3 are"));
  }
  const absl::Status big_endian = ParseError(SmallModel(0x03000000).ToBytes());
  EXPECT_EQ(big_endian.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(big_endian.message()), HasSubstr("a big-endian GGUF (version 3)"));
}

}  // namespace
}  // namespace vericache
