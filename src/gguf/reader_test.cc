#include "gguf/reader.h"

#include <cstring>
#include <filesystem>
#include <limits>
#include <random>

#include "absl/status/status.h"
#include "gguf/test_util.h"
#include "gguf/writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<std::unique_ptr<GgufFile>> Parse(std::string_view bytes) {
  return GgufFile::FromMemory(BytesOf(bytes), "m.gguf");
}

class RoundTrip : public ::testing::TestWithParam<uint32_t> {};

TEST_P(RoundTrip, GivesBackEveryValueAndTensor) {
  const TempDir dir;
  const std::string path = dir.path() + "/m.gguf";
  ASSERT_TRUE(SmallModel(GetParam()).WriteFile(path).ok());
  const auto opened = GgufFile::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufFile& file = **opened;
  EXPECT_EQ(file.version(), GetParam());
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.file_bytes(), std::filesystem::file_size(path));
  EXPECT_EQ(*file.GetString("general.architecture"), "llama");
  EXPECT_EQ(*file.GetInt("llama.block_count"), 2);
  EXPECT_EQ(*file.GetInt("test.i32"), -7);
  EXPECT_EQ(*file.GetInt("test.u64"), int64_t{1} << 40);
  EXPECT_EQ(*file.GetInt("test.u8"), 200);
  EXPECT_EQ(*file.GetInt("test.i8"), -100);
  EXPECT_EQ(*file.GetInt("test.u16"), 60000);
  EXPECT_EQ(*file.GetInt("test.i16"), -30000);
  EXPECT_EQ(*file.GetInt("test.i64"), -(int64_t{1} << 40));
  EXPECT_EQ(*file.GetFloat("llama.rope.freq_base"), 10000.0);
  EXPECT_EQ(*file.GetFloat("test.f64"), 0.1);
  EXPECT_TRUE(*file.GetBool("tokenizer.ggml.add_bos_token"));
  EXPECT_THAT(*file.GetStrings("tokenizer.ggml.tokens"),
              ElementsAre("<s>", "", "a b", "\xe2\x96\x81x"));
  EXPECT_THAT(*file.GetInts("tokenizer.ggml.token_type"), ElementsAre(3, 1, 1, -1));
  EXPECT_THAT(*file.GetFloats("tokenizer.ggml.scores"), ElementsAre(0.0f, -1.0f, -2.5f, 1e30f));
  EXPECT_EQ(file.metadata()[0].first, "general.architecture");
  EXPECT_EQ(file.metadata().size(), 17u);

  ASSERT_EQ(file.tensors().size(), 3u);
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->type, TensorType::kQ8_0);
  EXPECT_THAT(embedding->dims, ElementsAre(32, 4));
  EXPECT_EQ(embedding->num_bytes, 4u * 34);
  EXPECT_EQ(embedding->num_values(), 128);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(embedding->data), embedding->num_bytes),
            std::string(4 * 34, 'e'));
  const GgufTensor* query = file.FindTensor("blk.0.attn_q.weight");
  ASSERT_NE(query, nullptr);
  EXPECT_THAT(query->dims, ElementsAre(8, 3, 2));
  EXPECT_EQ(query->data[95], 'q');
  EXPECT_EQ(query->offset + query->num_bytes, file.file_bytes());
  for (const GgufTensor& tensor : file.tensors()) EXPECT_EQ(tensor.offset % 32, 0u);
  EXPECT_EQ(file.FindTensor("absent"), nullptr);
  EXPECT_EQ(file.FindValue("absent"), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Versions, RoundTrip, ::testing::Values(2, 3));

TEST(Reader, HonoursAlignmentOfTheFile) {
  for (const uint32_t alignment : {8u, 64u, 4096u}) {
    GgufWriter writer;
    writer.AddUint32("general.alignment", alignment);
    writer.AddTensor("a", TensorType::kF32, {1}, "aaaa");
    writer.AddTensor("b", TensorType::kF32, {1}, "bbbb");
    const std::string bytes = writer.ToBytes();
    const auto file = Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->tensors()[1].offset % alignment, 0u);
    EXPECT_EQ((*file)->tensors()[1].offset - (*file)->tensors()[0].offset, alignment);
    EXPECT_EQ((*file)->tensors()[1].data[3], 'b');
  }
}

TEST(Reader, ReadsModelWithoutTensors) {
  GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  const std::string bytes = writer.ToBytes();
  EXPECT_TRUE(Parse(bytes).ok());
  const std::string empty_model = GgufWriter().ToBytes();
  EXPECT_TRUE(Parse(empty_model).ok());
}

TEST(Reader, AcceptsBytesBehindTheLastTensor) {  // other writers pad the end
  const std::string bytes = SmallModel().ToBytes() + std::string(31, '\0');
  EXPECT_TRUE(Parse(bytes).ok());
}

TEST(LookUp, NamesKeyAndTypesWhenTheTypeIsWrong) {
  const std::string bytes = SmallModel().ToBytes();
  const auto opened = Parse(bytes);
  ASSERT_TRUE(opened.ok());
  const GgufFile& file = **opened;
  const absl::Status as_int = file.GetInt("llama.rope.freq_base").status();
  EXPECT_EQ(as_int.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(as_int.message(),
            "m.gguf: metadata 'llama.rope.freq_base' is f32, but must be an integer");
  // Case 26: scores stored as integers must not be read as floats.
  const absl::Status as_floats = file.GetFloats("tokenizer.ggml.token_type").status();
  EXPECT_EQ(as_floats.message(),
            "m.gguf: metadata 'tokenizer.ggml.token_type' is array of 4 x i32,"
            " but must be an array of f32");
  for (const char* key : {"tokenizer.ggml.add_bos_token", "general.architecture", "test.f64",
                          "tokenizer.ggml.token_type"}) {
    EXPECT_EQ(file.GetInt(key).status().code(), absl::StatusCode::kInvalidArgument) << key;
  }
  EXPECT_EQ(file.GetFloat("test.i32").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.GetBool("test.u8").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.GetString("test.u8").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.GetString("tokenizer.ggml.tokens").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.GetStrings("general.architecture").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.GetStrings("test.bools").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.GetInts("test.bools").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.GetInts("test.i32").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.GetInts("tokenizer.ggml.tokens").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LookUp, RefusesIntegersBeyondInt64) {
  GgufWriter writer = SmallModel();
  writer.AddUint64("test.big", uint64_t{1} << 63);
  const std::string bytes = writer.ToBytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(std::string((*file)->GetInt("test.big").status().message()),
              HasSubstr("'test.big' holds 9223372036854775808, more than 2^63-1"));
  EXPECT_EQ((*file)->GetInts("test.u64s").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LookUp, FallsBackOnlyWhereTheKeyIsAbsent) {
  const std::string bytes = SmallModel().ToBytes();
  const auto opened = Parse(bytes);
  ASSERT_TRUE(opened.ok());
  const GgufFile& file = **opened;
  EXPECT_EQ(file.GetInt("absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(file.GetInt("absent").status().message(), "m.gguf: metadata 'absent' is missing");
  EXPECT_EQ(file.GetStrings("absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*file.GetIntOr("absent", 5), 5);
  EXPECT_EQ(*file.GetFloatOr("absent", 0.5), 0.5);
  EXPECT_TRUE(*file.GetBoolOr("absent", true));
  EXPECT_EQ(*file.GetIntOr("llama.block_count", 5), 2);
  EXPECT_FALSE(file.GetIntOr("general.architecture", 5).ok());
  EXPECT_FALSE(file.GetFloatOr("general.architecture", 5).ok());
  EXPECT_FALSE(file.GetBoolOr("general.architecture", true).ok());
}

// Case 25: cut anywhere, the file is refused with one line and never read beyond its end.
TEST(CutShort, IsRefusedAtEveryByte) {
  const std::string bytes = SmallModel().ToBytes();
  ASSERT_TRUE(Parse(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<uint8_t> exact(bytes.begin(), bytes.begin() + size);  // ASan sees its end
    const auto file = GgufFile::FromMemory(exact, "m.gguf");
    ASSERT_FALSE(file.ok()) << size;
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("again")) << size;
    EXPECT_THAT(std::string(file.status().message()), Not(HasSubstr("\n"))) << size;
  }
}

TEST(CutShort, NamesTensorAndBytesNeededAndPresent) {
  const TempDir dir;
  const std::string bytes = SmallModel().ToBytes();
  const std::string path = dir.Write("m.gguf", bytes.substr(0, bytes.size() - 1));
  const auto file = GgufFile::Open(path);
  ASSERT_FALSE(file.ok());
  const std::string message(file.status().message());
  EXPECT_THAT(message, HasSubstr("tensor 'blk.0.attn_q.weight': data at offset " +
                                 std::to_string(bytes.size() - 96)));
  EXPECT_THAT(message, HasSubstr("needs 96 bytes, 95 are present"));
  EXPECT_THAT(message, HasSubstr("the file has " + std::to_string(bytes.size() - 1) +
                                 " bytes, the whole model " + std::to_string(bytes.size())));
}

TEST(CutShort, NamesFieldAndOffsetInsideTheStructure) {
  const std::string bytes = SmallModel().ToBytes();
  EXPECT_EQ(Parse(bytes.substr(0, 20)).status().message(),
            "m.gguf: metadata count at offset 16: needs 8 bytes, 4 are present; the file is cut "
            "short or damaged; download or copy it again");
  GgufWriter writer;
  writer.AddUint32("llama.block_count", 2);
  const std::string small = writer.ToBytes();
  EXPECT_EQ(Parse(small.substr(0, small.size() - 1)).status().message(),
            "m.gguf: metadata 'llama.block_count': value at offset " +
                std::to_string(small.size() - 4) +
                ": needs 4 bytes, 3 are present; the file is cut short or damaged; download or "
                "copy it again");
}

TEST(CutShort, WhileMappedIsReportedAsDataLoss) {
  const TempDir dir;
  const std::string path = dir.Write("m.gguf", SmallModel().ToBytes());
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->CheckStillWhole().ok());
  const uint64_t size = (*file)->file_bytes();
  std::filesystem::resize_file(path, 100);
  const absl::Status status = (*file)->CheckStillWhole();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("had " + std::to_string(size) + " bytes when it was opened and has 100 now"));
  std::filesystem::resize_file(path, size);
  EXPECT_TRUE((*file)->CheckStillWhole().ok());
}

TEST(DropPages, KeepsTheContents) {
  const TempDir dir;
  GgufWriter writer;
  writer.AddTensor("a", TensorType::kF32, {5000}, std::string(20000, 'a'));
  writer.AddTensor("b", TensorType::kF32, {5000}, std::string(20000, 'b'));
  const std::string bytes = writer.ToBytes();
  const auto mapped = GgufFile::Open(dir.Write("m.gguf", bytes));
  const auto in_memory = Parse(bytes);
  ASSERT_TRUE(mapped.ok() && in_memory.ok());
  for (const GgufFile* file : {mapped->get(), in_memory->get()}) {
    for (const GgufTensor& tensor : file->tensors()) file->DropPages(tensor);
    for (const GgufTensor& tensor : file->tensors()) {
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(tensor.data), tensor.num_bytes),
                std::string(20000, tensor.name[0]));
    }
  }
}

TEST(Reader, SurvivesRandomByteFlips) {
  const std::string good = SmallModel().ToBytes();
  std::mt19937_64 random(20240917);
  uint64_t sum = 0;
  int num_accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> bytes(good.begin(), good.end());
    const int num_flips = 1 + static_cast<int>(random() % 4);
    for (int flip = 0; flip < num_flips; ++flip) {
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    }
    const auto file = GgufFile::FromMemory(bytes, "m.gguf");
    if (file.ok()) {
      sum += TouchEverything(**file);
      ++num_accepted;
      continue;
    }
    const std::string message(file.status().message());
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    EXPECT_EQ(message.substr(0, 6), "m.gguf");
    EXPECT_LT(message.size(), 1000u) << message;
  }
  // Flips inside names, values and tensor data are valid models; those elsewhere are not.
  EXPECT_GT(num_accepted, 1000);
  EXPECT_LT(num_accepted, 19000);
  EXPECT_NE(sum, 0u);
}

}  // namespace
}  // namespace vericache
