// Every kernel table against the judge, bit for bit; the judge against a double-precision oracle.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/fp_env.h"
#include "base/split_mix.h"
#include "base/tensor_type.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"

namespace vericache {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr TensorType kTypes[] = {TensorType::kF32,  TensorType::kF16,  TensorType::kBF16,
                                 TensorType::kQ8_0, TensorType::kQ5_0, TensorType::kQ4_1,
                                 TensorType::kQ4_K, TensorType::kQ6_K};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return NextSplitMix(&state_); }
  int Below(int n) { return static_cast<int>(Next() % static_cast<uint64_t>(n)); }
  float Uniform() { return static_cast<float>(Next() >> 40) * 0x1p-23f - 1.0f; }  // [-1, 1)

 private:
  uint64_t state_;
};

// What the weights' bits are drawn from.
enum class Weights { kOrdinary, kExtremeCodes, kStrangeScales };

uint16_t RandomHalf(Weights kind, Random* random) {
  static constexpr uint16_t kStrange[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x7c00,
                                          0xfc00, 0x7e00, 0xfe01, 0x7bff, 0xfbff};
  if (kind == Weights::kStrangeScales) return kStrange[random->Below(10)];
  // +-2^-8 .. 2^-2
  return static_cast<uint16_t>((random->Next() & 0x83ff) | ((7 + random->Below(6)) << 10));
}

// Offsets of a block's f16 fields.
std::vector<int> HalfOffsets(TensorType type) {
  switch (type) {
    case TensorType::kQ8_0:
    case TensorType::kQ5_0:
      return {0};
    case TensorType::kQ4_1:
    case TensorType::kQ4_K:
      return {0, 2};
    case TensorType::kQ6_K:
      return {208};
    default:
      return {};
  }
}

std::vector<uint8_t> RandomMatrix(TensorType type, int64_t rows, int64_t cols, Weights kind,
                                  uint64_t seed) {
  Random random(seed);
  const TensorTypeInfo& info = InfoOf(type);
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * cols / info.block_values) *
                             info.block_bytes);
  static constexpr uint8_t kExtreme[] = {0x00, 0xff, 0x80, 0x7f};
  uint8_t extreme = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    // Runs of one byte, so that whole sums reach their bounds.
    if (i % 512 == 0) extreme = kExtreme[random.Below(4)];
    bytes[i] = kind == Weights::kExtremeCodes ? extreme : static_cast<uint8_t>(random.Next());
  }
  for (size_t block = 0; block < bytes.size(); block += info.block_bytes) {
    for (int offset : HalfOffsets(type)) {
      const uint16_t half = RandomHalf(kind, &random);
      std::memcpy(&bytes[block + offset], &half, 2);
    }
    if (type == TensorType::kF32) {
      const float value = kind == Weights::kStrangeScales && random.Below(4) == 0
                              ? (random.Below(2) == 0 ? kNan : -kInf)
                              : random.Uniform();
      std::memcpy(&bytes[block], &value, 4);
    } else if (type == TensorType::kF16) {
      const uint16_t half = RandomHalf(kind, &random);
      std::memcpy(&bytes[block], &half, 2);
    } else if (type == TensorType::kBF16) {
      const float value = random.Uniform();
      std::memcpy(&bytes[block], reinterpret_cast<const uint8_t*>(&value) + 2, 2);
    }
  }
  return bytes;
}

enum class Inputs { kOrdinary, kExtreme, kHostile };

std::vector<float> RandomInputs(int64_t n, Inputs kind, uint64_t seed) {
  Random random(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) {
    const float value = random.Uniform();
    if (kind == Inputs::kOrdinary) {
      x[i] = value * (random.Below(50) == 0 ? 30.0f : 1.0f);
    } else if (kind == Inputs::kExtreme) {  // every code is +-127, signs in long runs
      x[i] = (i / 700) % 2 == 0 ? 3.0f : -3.0f;
    } else {  // blocks of zeros, of denormals, of huge values, of NaN and infinities
      static constexpr float kHostile[] = {0.0f,    -0.0f,  1e-40f, 0x1p-100f, 0x0.ffffffp-100f,
                                           3.4e38f, 1e-20f, kNan,   kInf,      -kInf};
      const int pick = static_cast<int>((i / 64 + seed) % 10);
      x[i] = pick < 7 || random.Below(40) == 0 ? kHostile[pick] * (value > 0 ? 1.0f : 0.5f) : value;
    }
  }
  return x;
}

// Activations in the form a weight type wants, made by one table.
class ActBuffer {
 public:
  ActBuffer(const KernelTable& table, TensorType type, const float* x, int64_t rows, int64_t cols)
      : f32_(x, x + rows * cols),
        q_(rows * cols),
        scale_(rows * cols / 32),
        sums_(rows * cols / 16) {
    view_.format = ActFormatOf(type);
    view_.cols = cols;
    view_.f32 = f32_.data();
    view_.q = q_.data();
    view_.scale = scale_.data();
    view_.sums = sums_.data();
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = f32_.data() + r * cols;
      if (view_.format == ActFormat::kInt8Per32) {
        table.quantize_per32(row, cols, &q_[r * cols], &scale_[r * cols / 32],
                             &sums_[r * cols / 32]);
      } else if (view_.format == ActFormat::kInt8Per256) {
        table.quantize_per256(row, cols, &q_[r * cols], &scale_[r * cols / 256],
                              &sums_[r * cols / 16]);
      }
    }
  }
  ActBuffer(const ActBuffer&) = delete;
  ActBuffer& operator=(const ActBuffer&) = delete;
  const Activations& view() const { return view_; }
  const std::vector<int8_t>& q() const { return q_; }
  const std::vector<float>& scale() const { return scale_; }
  const std::vector<int16_t>& sums() const { return sums_; }

 private:
  std::vector<float> f32_;
  std::vector<int8_t> q_;
  std::vector<float> scale_;
  std::vector<int16_t> sums_;
  Activations view_;
};

// A matrix packed by one table, with canaries behind it.
class Packed {
 public:
  Packed(const KernelTable& table, TensorType type, int64_t rows, int64_t cols,
         const std::vector<uint8_t>& src)
      : size_(table.packed_bytes(type, rows, cols)), data_(size_ + 64) {
    data_.Fill(0xa5);
    // In two parts, as two threads would.
    const int64_t middle = rows / 2 / kOutTile * kOutTile;
    table.pack(type, rows, cols, src.data(), data_.data(), middle, rows);
    table.pack(type, rows, cols, src.data(), data_.data(), 0, middle);
    for (size_t i = size_; i < size_ + 64; ++i) EXPECT_EQ(data_[i], 0xa5) << table.name;
    matrix_ = {type, rows, cols, data_.data()};
  }
  const PackedMatrix& matrix() const { return matrix_; }

 private:
  size_t size_;
  AlignedBuffer<uint8_t> data_;
  PackedMatrix matrix_;
};

// NaN is a class: its sign and payload are free.
uint32_t Bits(float x) { return x != x ? 0x7fc00000u : std::bit_cast<uint32_t>(x); }

constexpr float kCanary = 12345.0f;

// y [num_rows][rows + 7] with canaries between and behind the rows.
std::vector<float> Multiply(const KernelTable& table, const PackedMatrix& w, const Activations& x,
                            int64_t num_rows) {
  const int64_t ldy = w.rows + 7;
  std::vector<float> y(static_cast<size_t>(num_rows * ldy), kCanary);
  table.matmul(w, x, num_rows, 0, w.rows, y.data(), ldy);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t o = w.rows; o < ldy; ++o) EXPECT_EQ(y[r * ldy + o], kCanary) << table.name;
  }
  return y;
}

void ExpectSameBits(const std::vector<float>& want, const std::vector<float>& got,
                    const std::string& what) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(Bits(want[i]), Bits(got[i]))
        << what << " at " << i << ": " << want[i] << " and " << got[i];
  }
}

const KernelTable& Judge() { return *AllKernelTables()[0]; }

std::string Describe(TensorType type, int64_t rows, int64_t cols, int64_t num_rows) {
  return TensorTypeName(static_cast<uint32_t>(type)) + " " + std::to_string(rows) + "x" +
         std::to_string(cols) + " rows " + std::to_string(num_rows);
}

class MatmulTest : public testing::TestWithParam<TensorType> {
 protected:
  TensorType type() const { return GetParam(); }
  int64_t block() const { return std::max<int64_t>(InfoOf(type()).block_values, 32); }
  ScopedFpEnv fp_env_;
};

INSTANTIATE_TEST_SUITE_P(Types, MatmulTest, testing::ValuesIn(kTypes), [](const auto& info) {
  return TensorTypeName(static_cast<uint32_t>(info.param));
});

void CompareTables(TensorType type, int64_t rows, int64_t cols, int64_t num_rows, Weights weights,
                   Inputs inputs) {
  const auto src = RandomMatrix(type, rows, cols, weights, rows * 1000 + cols);
  const auto x = RandomInputs(num_rows * cols, inputs, num_rows * 77 + cols);
  const ActBuffer judge_acts(Judge(), type, x.data(), num_rows, cols);
  const Packed judge_packed(Judge(), type, rows, cols, src);
  const auto want = Multiply(Judge(), judge_packed.matrix(), judge_acts.view(), num_rows);
  for (const KernelTable* table : AllKernelTables()) {
    const ActBuffer acts(*table, type, x.data(), num_rows, cols);
    const Packed packed(*table, type, rows, cols, src);
    ExpectSameBits(want, Multiply(*table, packed.matrix(), acts.view(), num_rows),
                   std::string(table->name) + " " + Describe(type, rows, cols, num_rows));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(MatmulTest, AllTablesGiveTheJudgesBits) {
  for (int64_t rows : {1, 15, 16, 17, 40}) {
    for (int64_t blocks : {1, 2, 3, 5}) {
      for (int64_t num_rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33}) {
        CompareTables(type(), rows, blocks * block(), num_rows, Weights::kOrdinary,
                      Inputs::kOrdinary);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(MatmulTest, AllTablesAgreeBeyondOneChunkOfColumnsAndRows) {
  // The AVX2 kernels cut at 1,024, 2,048 or 9,216 columns, depending on the rows, and at 96 rows.
  for (int64_t cols : {1024, 1280, 2304, 9472}) {
    for (int64_t num_rows : {1, 3, 5, 12, 13, 100}) {
      if (cols * num_rows > 250'000) continue;
      CompareTables(type(), 17, cols, num_rows, Weights::kOrdinary, Inputs::kOrdinary);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(MatmulTest, AllTablesAgreeAtTheBoundsOfTheIntegerSums) {
  for (int64_t num_rows : {1, 3, 7}) {
    CompareTables(type(), 48, 4 * block(), num_rows, Weights::kExtremeCodes, Inputs::kExtreme);
    CompareTables(type(), 48, 4 * block(), num_rows, Weights::kExtremeCodes, Inputs::kOrdinary);
    if (HasFatalFailure()) return;
  }
}

TEST_P(MatmulTest, AllTablesAgreeOnNanInfinityZeroAndDenormals) {
  for (int64_t num_rows : {1, 2, 3, 4, 7, 16}) {
    for (int64_t blocks : {1, 4, 21}) {
      CompareTables(type(), 24, blocks * block(), num_rows, Weights::kStrangeScales,
                    Inputs::kOrdinary);
      CompareTables(type(), 24, blocks * block(), num_rows, Weights::kOrdinary, Inputs::kHostile);
      CompareTables(type(), 24, blocks * block(), num_rows, Weights::kStrangeScales,
                    Inputs::kHostile);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(MatmulTest, ARowIsTheSameAloneAndAmongOthers) {
  const int64_t rows = 40, cols = 3 * block(), num_rows = 33;
  const auto src = RandomMatrix(type(), rows, cols, Weights::kOrdinary, 5);
  const auto x = RandomInputs(num_rows * cols, Inputs::kOrdinary, 6);
  for (const KernelTable* table : AllKernelTables()) {
    const Packed packed(*table, type(), rows, cols, src);
    const ActBuffer all(*table, type(), x.data(), num_rows, cols);
    const auto many = Multiply(*table, packed.matrix(), all.view(), num_rows);
    for (int64_t r = 0; r < num_rows; ++r) {
      const ActBuffer one(*table, type(), x.data() + r * cols, 1, cols);
      const auto alone = Multiply(*table, packed.matrix(), one.view(), 1);
      const auto begin = many.begin() + r * (rows + 7);
      ExpectSameBits(alone, {begin, begin + rows + 7}, table->name);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(MatmulTest, PartsOfTheOutputsAreThoseOfTheWholeAndNothingElseIsWritten) {
  const int64_t rows = 88, cols = 2 * block();  // the last tile is half full
  const auto src = RandomMatrix(type(), rows, cols, Weights::kOrdinary, 7);
  for (const KernelTable* table : AllKernelTables()) {
    const Packed packed(*table, type(), rows, cols, src);
    for (int64_t num_rows : {1, 5}) {
      const auto x = RandomInputs(num_rows * cols, Inputs::kOrdinary, 8);
      const ActBuffer acts(*table, type(), x.data(), num_rows, cols);
      const auto whole = Multiply(*table, packed.matrix(), acts.view(), num_rows);
      for (int64_t begin = 0; begin < rows; begin += 16) {
        for (int64_t end : {begin + 16, begin + 32, rows}) {
          if (end > rows) continue;
          std::vector<float> want(whole.size(), kCanary), got(whole.size(), kCanary);
          for (int64_t r = 0; r < num_rows; ++r) {
            const int64_t row = r * (rows + 7);
            for (int64_t o = begin; o < end; ++o) want[row + o] = whole[row + o];
          }
          table->matmul(packed.matrix(), acts.view(), num_rows, begin, end, got.data(), rows + 7);
          ExpectSameBits(want, got, table->name);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(MatmulTest, ABadRowChangesNoOther) {
  const int64_t rows = 40, cols = 3 * block(), num_rows = 7;
  const auto src = RandomMatrix(type(), rows, cols, Weights::kOrdinary, 9);
  const auto good = RandomInputs(num_rows * cols, Inputs::kOrdinary, 10);
  for (const KernelTable* table : AllKernelTables()) {
    const Packed packed(*table, type(), rows, cols, src);
    const ActBuffer good_acts(*table, type(), good.data(), num_rows, cols);
    const auto want = Multiply(*table, packed.matrix(), good_acts.view(), num_rows);
    for (float bad : {kNan, kInf, -kInf}) {
      auto x = good;
      x[3 * cols + cols / 2] = bad;
      const ActBuffer acts(*table, type(), x.data(), num_rows, cols);
      auto got = Multiply(*table, packed.matrix(), acts.view(), num_rows);
      for (int64_t o = 0; o < rows; ++o) {
        EXPECT_FALSE(std::isfinite(got[3 * (rows + 7) + o])) << table->name;
        got[3 * (rows + 7) + o] = want[3 * (rows + 7) + o];
      }
      ExpectSameBits(want, got, table->name);
    }
  }
}

// The source with scales and minima so signed that all terms of a weight add up in magnitude.
std::vector<uint8_t> WithPositiveTerms(TensorType type, std::vector<uint8_t> src) {
  const auto offsets = HalfOffsets(type);
  const size_t bytes = static_cast<size_t>(InfoOf(type).block_bytes);
  for (size_t block = 0; offsets.size() == 2 && block < src.size(); block += bytes) {
    src[block + 1] &= 0x7f;
    src[block + 3] &= 0x7f;
    if (type == TensorType::kQ4_K) src[block + 3] |= 0x80;  // its minimum is subtracted
  }
  return src;
}

// The judge against exact sums in double. Each rounding is at most u = 2^-24 of a value that is no
// larger than the sum of all magnitudes: one per term of the chain, one each for float(S), d * dx
// and the dequantised weight the oracle uses.
TEST_P(MatmulTest, TheJudgeIsNearADoublePrecisionOracle) {
  const int64_t rows = 24, cols = 6 * block(), num_rows = 3;
  const auto src = RandomMatrix(type(), rows, cols, Weights::kOrdinary, 11);
  const auto magnitudes = WithPositiveTerms(type(), src);
  const auto x = RandomInputs(num_rows * cols, Inputs::kOrdinary, 12);
  const Packed packed(Judge(), type(), rows, cols, src);
  const ActBuffer acts(Judge(), type(), x.data(), num_rows, cols);
  const auto y = Multiply(Judge(), packed.matrix(), acts.view(), num_rows);
  const int64_t act_block = acts.view().format == ActFormat::kInt8Per256 ? 256 : 32;
  const int64_t row_bytes = static_cast<int64_t>(src.size()) / rows;
  std::vector<float> w(cols), magnitude(cols);
  for (int64_t o = 0; o < rows; ++o) {
    DequantizeRow(type(), &src[o * row_bytes], cols, w.data());
    DequantizeRow(type(), &magnitudes[o * row_bytes], cols, magnitude.data());
    for (int64_t r = 0; r < num_rows; ++r) {
      double sum = 0, bound = 0;
      for (int64_t k = 0; k < cols; ++k) {
        const int64_t i = r * cols + k;
        const double value = acts.view().format == ActFormat::kF32
                                 ? x[i]
                                 : double{acts.scale()[i / act_block]} * acts.q()[i];
        sum += double{w[k]} * value;
        bound += std::abs(double{magnitude[k]} * value);
      }
      const double num_roundings =
          acts.view().format == ActFormat::kF32 ? cols : 2.0 * cols / act_block + 3;
      EXPECT_NEAR(y[r * (rows + 7) + o], sum, bound * num_roundings * 0x1p-24);
    }
  }
}

TEST_P(MatmulTest, QuantisedInputsAreNearTheInputs) {
  if (ActFormatOf(type()) == ActFormat::kF32) return;
  const int64_t cols = 4 * block();
  const auto x = RandomInputs(cols, Inputs::kOrdinary, 13);
  const ActBuffer acts(Judge(), type(), x.data(), 1, cols);
  const int64_t act_block = acts.view().format == ActFormat::kInt8Per256 ? 256 : 32;
  for (int64_t k = 0; k < cols; ++k) {
    const float scale = acts.scale()[k / act_block];
    EXPECT_NEAR(scale * static_cast<float>(acts.q()[k]), x[k], 0.5001f * scale);
  }
}

void ExpectSameActs(TensorType type, const std::vector<float>& x) {
  const int64_t cols = static_cast<int64_t>(x.size());
  const ActBuffer want(Judge(), type, x.data(), 1, cols);
  for (const KernelTable* table : AllKernelTables()) {
    const ActBuffer got(*table, type, x.data(), 1, cols);
    EXPECT_EQ(want.q(), got.q()) << table->name;
    EXPECT_EQ(want.sums(), got.sums()) << table->name;
    ExpectSameBits(want.scale(), got.scale(), table->name);
  }
}

TEST(Quantize, AllTablesGiveTheJudgesCodesScalesAndSums) {
  const ScopedFpEnv fp_env;
  for (TensorType type : {TensorType::kQ8_0, TensorType::kQ4_K}) {
    for (Inputs kind : {Inputs::kOrdinary, Inputs::kExtreme, Inputs::kHostile}) {
      for (uint64_t seed = 0; seed < 50; ++seed) {
        ExpectSameActs(type, RandomInputs(2560, kind, seed));
      }
    }
  }
}

TEST(Quantize, TiesGoToTheEvenCode) {
  const ScopedFpEnv fp_env;
  for (const KernelTable* table : AllKernelTables()) {
    // amax = 127, so the codes are the values themselves.
    std::vector<float> x(256, 0.0f);
    for (int i = 0; i < 31; ++i) x[i] = static_cast<float>(i - 15) + 0.5f;
    x[31] = -127.0f;
    x[40] = 127.0f;
    for (TensorType type : {TensorType::kQ8_0, TensorType::kQ4_K}) {
      const ActBuffer acts(*table, type, x.data(), 1, 256);
      int sum = 0;
      for (int i = 0; i < 31; ++i) {
        const int want = (i - 15) % 2 == 0 ? i - 15 : i - 14;
        EXPECT_EQ(acts.q()[i], want) << table->name;
        if (type == TensorType::kQ8_0 || i >= 16) sum += want;
      }
      EXPECT_EQ(acts.q()[31], -127);
      EXPECT_EQ(acts.sums()[type == TensorType::kQ8_0 ? 0 : 1], sum - 127) << table->name;
      EXPECT_EQ(acts.scale()[0], 1.0f);
    }
  }
}

TEST(Quantize, BadAndTinyBlocksHaveNoCodes) {
  const ScopedFpEnv fp_env;
  for (const KernelTable* table : AllKernelTables()) {
    for (float bad : {kNan, -kNan, kInf, -kInf, 0x0.ffffffp-100f, 1e-40f, 0.0f}) {
      std::vector<float> x(512, 0.0f);
      for (int i = 256; i < 512; ++i) x[i] = 1.0f;
      x[17] = bad;
      for (TensorType type : {TensorType::kQ8_0, TensorType::kQ4_K}) {
        const ActBuffer acts(*table, type, x.data(), 1, 512);
        EXPECT_EQ(std::isnan(acts.scale()[0]), !std::isfinite(bad)) << table->name << bad;
        if (std::isfinite(bad)) {
          EXPECT_EQ(acts.scale()[0], 0.0f);
        }
        for (int i = 0; i < 256; ++i) EXPECT_EQ(acts.q()[i], 0);
        EXPECT_EQ(acts.q()[300], 127);  // the next block is untouched
      }
    }
    std::vector<float> x(256, 0.0f);
    x[3] = 0x1p-100f;  // the smallest block that counts
    EXPECT_EQ(ActBuffer(*table, TensorType::kQ8_0, x.data(), 1, 256).q()[3], 127) << table->name;
  }
}

TEST(SelectKernels, NamesTheTablesAndRefusesOthers) {
  ASSERT_TRUE(SelectKernels().ok());
  for (const KernelTable* table : AllKernelTables()) {
    ASSERT_TRUE(SelectKernels(table->name).ok());
    EXPECT_EQ(*SelectKernels(table->name), table);
  }
  const auto unknown = SelectKernels("sse9");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("scalar"), std::string::npos);
}

}  // namespace
}  // namespace vericache
