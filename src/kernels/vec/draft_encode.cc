// Codes of draft keys and values (what they are: scalar/draft_encode.cc).
//
// Draft KVs may be chosen anew after every round, and this is most of the arithmetic. Lanes are the
// 32 values of a row; four rows become the four bytes of a lane, which is how blocks lie in memory.
#include "kernels/table_parts.h"
#include "kernels/vec/vec16.h"

namespace vericache::VC_KERNEL_NS {
namespace {

// NaN counts as 0.
VC_INLINE Vec16 LoadNumbers(const float* x) {
  const Vec16 v = Load(x);
  return ZeroWhere(Unordered(v, v), v);
}

// Least and largest value of every row, then scale and minimum in f16, and both in fp32.
VC_INLINE void FindScales(const float* x, int64_t stride, float last, uint16_t* scale,
                          uint16_t* min, float* wide_scale, float* wide_min) {
  float low[32], high[32];
  for (int row = 0; row < 32; ++row) {
    const Vec16 a = LoadNumbers(x + row * stride), b = LoadNumbers(x + row * stride + 16);
    low[row] = -MaxLane(MaxOrSecond(Negate(a), Negate(b)));
    high[row] = MaxLane(MaxOrSecond(a, b));
  }
  for (int row = 0; row < 32; row += 16) {
    StoreF16Saturated(Add(Load(low + row), Zero()), min + row);
    const Vec16 m = Load(min + row);
    const Vec16 step = Div(Sub(Load(high + row), m), Set(last));
    StoreF16Saturated(MaxOrSecond(step, Zero()), scale + row);
    Store(m, wide_min + row);
    Store(Load(scale + row), wide_scale + row);
  }
}

// Codes of 16 values of one row, still as fp32.
VC_INLINE Vec16 Codes(const float* x, Vec16 scale, Vec16 min, Vec16 last) {
  const Vec16 code = Div(Sub(LoadNumbers(x), min), scale);
  // Where the scale is 0 the quotient is infinite or NaN, and any range would clamp it wrongly.
  const Vec16 in_range = MinOrSecond(MaxOrSecond(code, Zero()), last);
  return Select(Less(Zero(), scale), in_range, Zero());
}

// One step of a block: low and high are the codes of lanes 0 to 15 and 16 to 31.
template <int kBits>
VC_INLINE void StoreStep(int step, Bytes64 low, Bytes64 high, uint8_t* block) {
  if constexpr (kBits == 8) {
    StoreBytes64(low, block + step * 128);
    StoreBytes64(high, block + step * 128 + 64);
    return;
  }
  int bit = 0;  // of a code, at which the plane begins
  for (int w = 4; w > 0; w /= 2) {
    if ((kBits & w) == 0) continue;
    const int at = w * (step % (4 / w));
    const uint8_t mask = static_cast<uint8_t>((1 << w) - 1);
    uint8_t* dst = block + step / (4 / w) * 64;
    Bytes64 bytes = Or(ShiftLeft(Mask(ShiftRight(low, bit), mask), at),
                       ShiftLeft(Mask(ShiftRight(high, bit), mask), at + 4));
    if (at > 0) bytes = Or(bytes, LoadBytes64(dst));
    StoreBytes64(bytes, dst);
    bit += w;
    block += 128 * w;
  }
}

template <int kBits>
VC_NOINLINE void Encode(const float* x, int64_t stride, uint8_t* block, uint16_t* scale,
                        uint16_t* min) {
  constexpr float kLast = (1 << kBits) - 1;
  float scales[32], mins[32];
  FindScales(x, stride, kLast, scale, min, scales, mins);
  const Vec16 last = Set(kLast);
  for (int step = 0; step < 8; ++step) {
    Vec16 low[4], high[4];
    for (int i = 0; i < 4; ++i) {
      const int row = 4 * step + i;
      const Vec16 s = Set(scales[row]), m = Set(mins[row]);
      low[i] = Codes(x + row * stride, s, m, last);
      high[i] = Codes(x + row * stride + 16, s, m, last);
    }
    StoreStep<kBits>(step, PackBytes(low), PackBytes(high), block);
  }
}

void EncodeBlock(DraftFormat format, const float* x, int64_t stride, uint8_t* block,
                 uint16_t* scale, uint16_t* min) {
  switch (format) {
    case DraftFormat::kInt2:
      return Encode<2>(x, stride, block, scale, min);
    case DraftFormat::kInt3:
      return Encode<3>(x, stride, block, scale, min);
    case DraftFormat::kInt4:
      return Encode<4>(x, stride, block, scale, min);
    case DraftFormat::kInt5:
      return Encode<5>(x, stride, block, scale, min);
    case DraftFormat::kInt6:
      return Encode<6>(x, stride, block, scale, min);
    case DraftFormat::kInt7:
      return Encode<7>(x, stride, block, scale, min);
    case DraftFormat::kInt8:
      return Encode<8>(x, stride, block, scale, min);
    case DraftFormat::kF16:
      return;  // has no codes
  }
}

}  // namespace

void FillDraftEncode(KernelTable* table) { table->encode_block = EncodeBlock; }

}  // namespace vericache::VC_KERNEL_NS
