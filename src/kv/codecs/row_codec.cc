#include "kv/codecs/row_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/float16.h"
#include "base/fp_env.h"
#include "base/text.h"
#include "base/types.h"

namespace vericache {
namespace {

constexpr int kGroup = 32;  // channels
constexpr int64_t kLotRows = 64;
constexpr int kHeadBytes = 2;
constexpr int kBits = 4, kBaseBits = 8;
constexpr int kScaleShift = 7;       // of f16 bits that a scale has not
constexpr uint8_t kScaleEnd = 0xf8;  // from here on f16 has infinities and NaNs

int64_t VectorBytes(int head_dim, int bits) {
  int64_t bytes = 0;
  for (int at = 0; at < head_dim; at += kGroup)
    bytes += kHeadBytes + CeilDiv(std::min(kGroup, head_dim - at) * bits, 8);
  return bytes;
}

// Where things are in a lot. A *list* is the vectors of one layer and KV head.
struct Layout {
  explicit Layout(const KvShape& shape)
      : lists(shape.num_layers * shape.num_kv_heads),
        head_dim(shape.head_dim),
        base_vector(VectorBytes(head_dim, kBaseBits)),
        vector(VectorBytes(head_dim, kBits)) {}
  int64_t base_bytes() const { return lists * base_vector; }
  int64_t row_bytes() const { return lists * 2 * vector; }
  int64_t At(int64_t row, int list) const {
    return base_bytes() + row * row_bytes() + list * 2 * vector;
  }
  int lists, head_dim;
  int64_t base_vector, vector;  // bytes of one
};

// To the nearest integer, ties to even, of what is below 2^22.
float Round(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

float Number(const char* f16) {
  uint16_t bits;
  std::memcpy(&bits, f16, sizeof(bits));
  const float x = F16ToF32(bits);
  return std::isfinite(x) ? x : 0.0f;
}

// Returns the end of what is written. out: zeros.
uint8_t* EncodeGroup(const float* x, int num, int bits, uint8_t* out) {
  float low = 0, high = 0;
  for (int i = 0; i < num; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  const float last = static_cast<float>((1 << bits) - 1);
  // Rounded up, so that the codes reach both ends.
  const int step = F32ToF16Saturated((high - low) / last) + ((1 << kScaleShift) - 1);
  out[0] = static_cast<uint8_t>(step >> kScaleShift);
  const float scale = F16ToF32(static_cast<uint16_t>(out[0] << kScaleShift));
  const float zero = scale > 0 ? std::min(Round(-low / scale), last) : 0.0f;
  out[1] = static_cast<uint8_t>(zero);
  out += kHeadBytes;
  for (int i = 0, bit = 0; i < num; ++i, bit += bits) {
    const float code = scale > 0 ? std::clamp(Round(x[i] / scale) + zero, 0.0f, last) : zero;
    out[bit / 8] |= static_cast<uint8_t>(static_cast<int>(code) << (bit % 8));
  }
  return out + CeilDiv(num * bits, 8);
}

// False: the scale is none.
bool DecodeGroup(const uint8_t* in, int num, int bits, float* x) {
  if (in[0] >= kScaleEnd) return false;
  const float scale = F16ToF32(static_cast<uint16_t>(in[0] << kScaleShift));
  const int zero = in[1], mask = (1 << bits) - 1;
  in += kHeadBytes;
  for (int i = 0, bit = 0; i < num; ++i, bit += bits)
    x[i] = scale * static_cast<float>((in[bit / 8] >> (bit % 8) & mask) - zero);
  return true;
}

void EncodeVector(const float* x, int head_dim, int bits, uint8_t* out) {
  for (int at = 0; at < head_dim; at += kGroup)
    out = EncodeGroup(x + at, std::min(kGroup, head_dim - at), bits, out);
}

bool DecodeVector(const uint8_t* in, int head_dim, int bits, float* x) {
  for (int at = 0; at < head_dim; at += kGroup) {
    const int num = std::min(kGroup, head_dim - at);
    if (!DecodeGroup(in, num, bits, x + at)) return false;
    in += kHeadBytes + CeilDiv(num * bits, 8);
  }
  return true;
}

// The rows of one lot, list by list.
class ListCodec {
 public:
  explicit ListCodec(const Layout& layout)
      : layout_(layout), base_(layout.head_dim), values_(layout.head_dim) {}

  void Pack(const char* rows, int64_t num_rows, int list, uint8_t* out) {
    const int dim = layout_.head_dim;
    const int64_t stride = int64_t{layout_.lists} * 2 * dim * sizeof(uint16_t);
    const char* keys = rows + int64_t{list} * 2 * dim * sizeof(uint16_t);
    for (int c = 0; c < dim; ++c) {
      float low = Number(keys + c * sizeof(uint16_t)), high = low;
      for (int64_t r = 1; r < num_rows; ++r) {
        const float x = Number(keys + r * stride + c * sizeof(uint16_t));
        low = std::min(low, x);
        high = std::max(high, x);
      }
      values_[c] = (low + high) * 0.5f;
    }
    uint8_t* base = out + list * layout_.base_vector;
    EncodeVector(values_.data(), dim, kBaseBits, base);
    // What the other side will have.
    VC_CHECK(DecodeVector(base, dim, kBaseBits, base_.data()));
    for (int64_t r = 0; r < num_rows; ++r) {
      const char* key = keys + r * stride;
      uint8_t* at = out + layout_.At(r, list);
      for (int c = 0; c < dim; ++c) values_[c] = Number(key + c * sizeof(uint16_t)) - base_[c];
      EncodeVector(values_.data(), dim, kBits, at);
      for (int c = 0; c < dim; ++c) values_[c] = Number(key + (dim + c) * sizeof(uint16_t));
      EncodeVector(values_.data(), dim, kBits, at + layout_.vector);
    }
  }

  // False: there is a scale that is none.
  bool Unpack(const uint8_t* in, int64_t num_rows, int list, char* rows) {
    const int dim = layout_.head_dim;
    if (!DecodeVector(in + list * layout_.base_vector, dim, kBaseBits, base_.data())) return false;
    for (int64_t r = 0; r < num_rows; ++r) {
      char* out = rows + (r * layout_.lists + list) * 2 * dim * sizeof(uint16_t);
      const uint8_t* at = in + layout_.At(r, list);
      if (!DecodeVector(at, dim, kBits, values_.data())) return false;
      for (int c = 0; c < dim; ++c) values_[c] += base_[c];
      Store(out);
      if (!DecodeVector(at + layout_.vector, dim, kBits, values_.data())) return false;
      Store(out + dim * sizeof(uint16_t));
    }
    return true;
  }

 private:
  void Store(char* out) const {
    for (const float x : values_) {
      const uint16_t bits = F32ToF16Saturated(x);
      std::memcpy(out, &bits, sizeof(bits));
      out += sizeof(bits);
    }
  }

  const Layout layout_;
  std::vector<float> base_, values_;  // [head_dim]
};

}  // namespace

int64_t PackedRowsBytes(const KvShape& shape, int64_t num_rows) {
  const Layout layout(shape);
  return CeilDiv(num_rows, kLotRows) * layout.base_bytes() + num_rows * layout.row_bytes();
}

std::string PackRows(const KvShape& shape, std::string_view rows) {
  const int64_t row_bytes = static_cast<int64_t>(shape.bytes_per_token());
  const int64_t num_rows = static_cast<int64_t>(rows.size()) / row_bytes;
  VC_CHECK(static_cast<int64_t>(rows.size()) == num_rows * row_bytes);
  const ScopedFpEnv fp_env;
  const Layout layout(shape);
  ListCodec codec(layout);
  std::string packed(PackedRowsBytes(shape, num_rows), '\0');
  auto* out = reinterpret_cast<uint8_t*>(packed.data());
  for (int64_t begin = 0; begin < num_rows; begin += kLotRows) {
    const int64_t lot = std::min(kLotRows, num_rows - begin);
    for (int list = 0; list < layout.lists; ++list)
      codec.Pack(rows.data() + begin * row_bytes, lot, list, out);
    out += PackedRowsBytes(shape, lot);
  }
  return packed;
}

absl::StatusOr<std::string> UnpackRows(const KvShape& shape, int64_t max_rows,
                                       std::string_view packed) {
  const ScopedFpEnv fp_env;
  const Layout layout(shape);
  const int64_t size = static_cast<int64_t>(packed.size());
  const int64_t whole_lots = size / PackedRowsBytes(shape, kLotRows);
  const int64_t rest = size % PackedRowsBytes(shape, kLotRows);
  const int64_t rest_rows = rest == 0 ? 0 : (rest - layout.base_bytes()) / layout.row_bytes();
  const int64_t num_rows = whole_lots * kLotRows + rest_rows;
  if (rest_rows < 0 || PackedRowsBytes(shape, num_rows) != size)
    return absl::DataLossError(StrCat(size, " bytes are not packed K/V rows of ",
                                      layout.row_bytes(), " behind bases of ",
                                      layout.base_bytes()));
  if (num_rows > max_rows)
    return absl::DataLossError(StrCat(num_rows, " packed K/V rows, where there can be ", max_rows));
  std::string rows(num_rows * shape.bytes_per_token(), '\0');
  ListCodec codec(layout);
  const auto* in = reinterpret_cast<const uint8_t*>(packed.data());
  for (int64_t begin = 0; begin < num_rows; begin += kLotRows) {
    const int64_t lot = std::min(kLotRows, num_rows - begin);
    char* out = rows.data() + begin * static_cast<int64_t>(shape.bytes_per_token());
    for (int list = 0; list < layout.lists; ++list)
      if (!codec.Unpack(in, lot, list, out))
        return absl::DataLossError("packed K/V rows have a scale that is not a number");
    in += PackedRowsBytes(shape, lot);
  }
  return rows;
}

}  // namespace vericache
