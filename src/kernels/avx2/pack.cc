// GGUF blocks to the AVX2 layout (weights.h): 32 codes of 8 rows at a time, transposed in
// registers. Loading a model is bound by memory, not by this.
#include "kernels/avx2/weights.h"
#include "kernels/gguf_blocks.h"

namespace vericache::avx2 {
namespace {

// A row that is missing in the last tile reads from here: codes and scales of zero.
alignas(64) constexpr uint8_t kZeroBlock[256] = {};

struct Rows8 {
  const uint8_t* row[8];  // first block of each row
  int64_t stride[8];      // bytes from block to block; 0 for missing rows
  const uint8_t* Block(int r, int64_t b) const { return row[r] + stride[r] * b; }
};

uint16_t Half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return bits;
}

// codes[r] = 32 codes of row r in order of k; on return codes[v] = k group v of the 8 rows.
void Transpose8x8(__m256i codes[8]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi32(codes[2 * i], codes[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi32(codes[2 * i], codes[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    codes[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
    codes[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
  }
}

// Low nibbles of 16 bytes, then the high ones.
__m256i NibblesSplit(const uint8_t* p) {
  const __m128i bytes = Load128(p);
  const __m256i both = _mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes);
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

__m256i CodesOfQ5_0(const uint8_t* block) {
  int32_t bits;
  std::memcpy(&bits, block + 2, sizeof(bits));
  const __m256i byte_of =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit_of = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte_of);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of), bit_of);
  return _mm256_or_si256(NibblesSplit(block + 6), _mm256_and_si256(set, _mm256_set1_epi8(16)));
}

// Sub-block j (32 values) of a Q4_K block.
__m256i CodesOfQ4_K(const uint8_t* block, int j) {
  const __m256i bytes = Load256(block + 16 + j / 2 * 32);
  const __m256i shifted = j % 2 == 0 ? bytes : _mm256_srli_epi16(bytes, 4);
  return _mm256_and_si256(shifted, _mm256_set1_epi8(15));
}

// Values 32j .. 32j + 31 of a Q6_K block.
__m256i CodesOfQ6_K(const uint8_t* block, int j) {
  const int half = j / 4;
  const int quarter = j % 4;
  const __m256i low = Load256(block + half * 64 + quarter % 2 * 32);
  const __m256i high = Load256(block + 128 + half * 32);
  const __m256i nibble = quarter < 2 ? low : _mm256_srli_epi16(low, 4);
  const __m256i pair = _mm256_srl_epi16(high, _mm_cvtsi32_si128(2 * quarter));
  return _mm256_or_si256(_mm256_and_si256(nibble, _mm256_set1_epi8(15)),
                         _mm256_slli_epi16(_mm256_and_si256(pair, _mm256_set1_epi8(3)), 4));
}

// Vector i holds k group i in its low and k group i + 4 in its high nibbles.
void StoreNibbles(const __m256i codes[8], int group, uint8_t* dst) {
  const __m256i low = _mm256_set1_epi8(15);
  for (int i = 0; i < 4; ++i) {
    const __m256i upper = _mm256_slli_epi16(_mm256_and_si256(codes[i + 4], low), 4);
    Store256(dst + (2 * i + group) * 32, _mm256_or_si256(_mm256_and_si256(codes[i], low), upper));
  }
}

void StoreHalfs(const Rows8& rows, int64_t b, int offset, uint8_t* dst) {
  for (int r = 0; r < 8; ++r) {
    const uint16_t bits = Half(rows.Block(r, b) + offset);
    std::memcpy(dst + 2 * r, &bits, sizeof(bits));
  }
}

void PackQ8_0(const Rows8& rows, int64_t b, int group, uint8_t* dst) {
  __m256i codes[8];
  for (int r = 0; r < 8; ++r) codes[r] = Load256(rows.Block(r, b) + 2);
  Transpose8x8(codes);
  for (int v = 0; v < 8; ++v) Store256(dst + (2 * v + group) * 32, codes[v]);
  StoreHalfs(rows, b, 0, dst + 512 + 16 * group);
}

void PackQ5_0(const Rows8& rows, int64_t b, int group, uint8_t* dst) {
  __m256i codes[8];
  for (int r = 0; r < 8; ++r) codes[r] = CodesOfQ5_0(rows.Block(r, b));
  Transpose8x8(codes);
  StoreNibbles(codes, group, dst);
  __m256i high = _mm256_setzero_si256();
  for (int v = 0; v < 8; ++v) {
    const __m256i bit = _mm256_and_si256(_mm256_srli_epi16(codes[v], 4), _mm256_set1_epi8(1));
    high = _mm256_or_si256(high, _mm256_sll_epi16(bit, _mm_cvtsi32_si128(v)));
  }
  Store256(dst + 256 + 32 * group, high);
  StoreHalfs(rows, b, 0, dst + 320 + 16 * group);
}

void PackQ4_1(const Rows8& rows, int64_t b, int group, uint8_t* dst) {
  __m256i codes[8];
  for (int r = 0; r < 8; ++r) codes[r] = NibblesSplit(rows.Block(r, b) + 4);
  Transpose8x8(codes);
  StoreNibbles(codes, group, dst);
  StoreHalfs(rows, b, 0, dst + 256 + 16 * group);
  StoreHalfs(rows, b, 2, dst + 288 + 16 * group);
}

void PackQ4_K(const Rows8& rows, int64_t b, int group, uint8_t* dst) {
  for (int j = 0; j < 8; ++j) {
    __m256i codes[8];
    for (int r = 0; r < 8; ++r) codes[r] = CodesOfQ4_K(rows.Block(r, b), j);
    Transpose8x8(codes);
    StoreNibbles(codes, group, dst + 256 * j);
  }
  for (int r = 0; r < 8; ++r) {
    const int row = 8 * group + r;
    for (int j = 0; j < 8; ++j) {
      int scale, min;
      ScaleMinQ4_K(rows.Block(r, b) + 4, j, &scale, &min);
      dst[2048 + 16 * j + row] = static_cast<uint8_t>(scale);
      dst[2176 + 32 * (j / 2) + 2 * row + j % 2] = static_cast<uint8_t>(min);
    }
  }
  StoreHalfs(rows, b, 0, dst + 2304 + 16 * group);
  StoreHalfs(rows, b, 2, dst + 2336 + 16 * group);
}

void PackQ6_K(const Rows8& rows, int64_t b, int group, uint8_t* dst) {
  for (int j = 0; j < 8; ++j) {
    __m256i codes[8];
    for (int r = 0; r < 8; ++r) codes[r] = CodesOfQ6_K(rows.Block(r, b), j);
    Transpose8x8(codes);
    StoreNibbles(codes, group, dst + 256 * j);
    for (int u = 0; u < 2; ++u) {
      __m256i pairs = _mm256_setzero_si256();
      for (int i = 0; i < 4; ++i) {
        const __m256i two =
            _mm256_and_si256(_mm256_srli_epi16(codes[4 * u + i], 4), _mm256_set1_epi8(3));
        pairs = _mm256_or_si256(pairs, _mm256_sll_epi16(two, _mm_cvtsi32_si128(2 * i)));
      }
      Store256(dst + 2048 + (4 * j + 2 * u + group) * 32, pairs);
    }
  }
  for (int r = 0; r < 8; ++r) {
    for (int j = 0; j < 16; ++j) {
      dst[3072 + 16 * j + 8 * group + r] = rows.Block(r, b)[192 + j];
    }
  }
  StoreHalfs(rows, b, 208, dst + 3328 + 16 * group);
}

// [cols][16] of 2- or 4-byte elements.
void PackPlain(int64_t element_bytes, const Rows8& rows, int64_t k, int group, uint8_t* dst) {
  for (int r = 0; r < 8; ++r) {
    std::memcpy(dst + (8 * group + r) * element_bytes, rows.Block(r, k),
                static_cast<size_t>(element_bytes));
  }
}

struct Shape {
  int64_t block_values;
  int64_t source_bytes;  // of a row's block in GGUF
  int64_t tile_bytes;    // of a 16-row block here
};
Shape ShapeOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return {1, 4, 64};
    case TensorType::kF16:
    case TensorType::kBF16:
      return {1, 2, 32};
    case TensorType::kQ8_0:
      return {32, sizeof(BlockQ8_0), kBytesQ8_0};
    case TensorType::kQ5_0:
      return {32, sizeof(BlockQ5_0), kBytesQ5_0};
    case TensorType::kQ4_1:
      return {32, sizeof(BlockQ4_1), kBytesQ4_1};
    case TensorType::kQ4_K:
      return {256, sizeof(BlockQ4_K), kBytesQ4_K};
    case TensorType::kQ6_K:
      return {256, sizeof(BlockQ6_K), kBytesQ6_K};
  }
  return {1, 4, 64};
}

void PackBlock(TensorType type, const Rows8& rows, int64_t b, int group, uint8_t* dst) {
  switch (type) {
    case TensorType::kF32:
      return PackPlain(4, rows, b, group, dst);
    case TensorType::kF16:
    case TensorType::kBF16:
      return PackPlain(2, rows, b, group, dst);
    case TensorType::kQ8_0:
      return PackQ8_0(rows, b, group, dst);
    case TensorType::kQ5_0:
      return PackQ5_0(rows, b, group, dst);
    case TensorType::kQ4_1:
      return PackQ4_1(rows, b, group, dst);
    case TensorType::kQ4_K:
      return PackQ4_K(rows, b, group, dst);
    case TensorType::kQ6_K:
      return PackQ6_K(rows, b, group, dst);
  }
}

}  // namespace

size_t PackedBytes(TensorType type, int64_t rows, int64_t cols) {
  const Shape shape = ShapeOf(type);
  const int64_t num_tiles = (rows + kTileRows - 1) / kTileRows;
  return static_cast<size_t>(num_tiles * (cols / shape.block_values) * shape.tile_bytes);
}

void Pack(TensorType type, int64_t rows, int64_t cols, const uint8_t* src, uint8_t* dst,
          int64_t row_begin, int64_t row_end) {
  const Shape shape = ShapeOf(type);
  const int64_t num_blocks = cols / shape.block_values;
  for (int64_t tile_row = row_begin; tile_row < row_end; tile_row += kTileRows) {
    uint8_t* tile = dst + tile_row / kTileRows * num_blocks * shape.tile_bytes;
    for (int group = 0; group < 2; ++group) {
      Rows8 source;
      for (int r = 0; r < 8; ++r) {
        const int64_t row = tile_row + 8 * group + r;
        const bool exists = row < rows;
        source.row[r] = exists ? src + row * num_blocks * shape.source_bytes : kZeroBlock;
        source.stride[r] = exists ? shape.source_bytes : 0;
      }
      for (int64_t b = 0; b < num_blocks; ++b) {
        PackBlock(type, source, b, group, tile + b * shape.tile_bytes);
      }
    }
  }
}

}  // namespace vericache::avx2
