// Packed K/V rows: whatever comes in is refused or gives finite numbers, no more than were allowed.
// The first byte chooses the shape.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/float16.h"
#include "kv/codecs/row_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vericache;
  if (size == 0) return 0;
  constexpr KvShape kShapes[] = {{2, 2, 32}, {1, 1, 24}, {1, 2, 80}, {1, 1, 5}};
  constexpr int64_t kMaxRows = 100;
  const KvShape& shape = kShapes[data[0] % 4];
  const std::string packed(reinterpret_cast<const char*>(data) + 1, size - 1);
  const absl::StatusOr<std::string> rows = UnpackRows(shape, kMaxRows, packed);
  if (!rows.ok()) return 0;
  if (rows->size() > kMaxRows * shape.bytes_per_token()) std::abort();
  for (size_t i = 0; i < rows->size(); i += sizeof(uint16_t)) {
    uint16_t bits;
    std::memcpy(&bits, rows->data() + i, sizeof(bits));
    if (!std::isfinite(F16ToF32(bits))) std::abort();
  }
  if (PackRows(shape, *rows).size() != packed.size()) std::abort();
  return 0;
}
