#include "remote/squeeze.h"

#include <zstd.h>

#include <cstring>
#include <vector>

namespace vericache {
namespace {

constexpr char kMagic[8] = {'V', 'C', 'S', 'Q', 'Z', 0, 0, 1};
constexpr size_t kHeadBytes = 24;
// Higher levels gain a hundredth and take twice the time.
constexpr int kLevel = 1;
constexpr size_t kLeastGain = 32;  // a thirty-second

uint64_t ReadU64(const uint8_t* bytes) {
  uint64_t value = 0;
  std::memcpy(&value, bytes, sizeof(value));  // little-endian, as all machines that we run on
  return value;
}

}  // namespace

std::string Squeeze(std::string_view blob) {
  const size_t num_high = blob.size() / 2, num_low = blob.size() - num_high;
  if (num_high == 0) return "";
  std::vector<char> high(num_high);
  for (size_t i = 0; i < num_high; ++i) high[i] = blob[2 * i + 1];
  const size_t bound = ZSTD_compressBound(num_high);
  std::string out(kHeadBytes + bound + num_low, '\0');
  const size_t frame = ZSTD_compress(out.data() + kHeadBytes, bound, high.data(), num_high, kLevel);
  if (ZSTD_isError(frame)) return "";
  const size_t size = kHeadBytes + frame + num_low;
  if (size > blob.size() - blob.size() / kLeastGain) return "";
  const uint64_t sizes[] = {blob.size(), frame};
  std::memcpy(out.data(), kMagic, sizeof(kMagic));
  std::memcpy(out.data() + sizeof(kMagic), sizes, sizeof(sizes));
  char* low = out.data() + kHeadBytes + frame;
  for (size_t i = 0; i < num_low; ++i) low[i] = blob[2 * i];
  out.resize(size);
  return out;
}

bool IsSqueezed(absl::Span<const uint8_t> bytes) {
  return bytes.size() >= kHeadBytes && std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) == 0;
}

absl::StatusOr<BlobBytes> Unsqueeze(absl::Span<const uint8_t> bytes) {
  const uint64_t size = ReadU64(bytes.data() + 8), frame = ReadU64(bytes.data() + 16);
  const size_t rest = bytes.size() - kHeadBytes;
  // The low bytes are there as they are: nobody can claim more than twice what was sent.
  if (size > 2 * rest || frame > rest || size - size / 2 != rest - frame)
    return absl::DataLossError("a squeezed blob has lengths that do not fit");
  const size_t num_high = size / 2, num_low = size - num_high;
  std::vector<uint8_t> high(num_high);
  const size_t got = ZSTD_decompress(high.data(), num_high, bytes.data() + kHeadBytes, frame);
  if (ZSTD_isError(got) || got != num_high)
    return absl::DataLossError("a squeezed blob holds no such frame");
  BlobBytes blob(size);
  uint8_t* out = blob.data();
  const uint8_t* low = bytes.data() + kHeadBytes + frame;
  for (size_t i = 0; i < num_high; ++i) {
    out[2 * i] = low[i];
    out[2 * i + 1] = high[i];
  }
  if (num_low > num_high) out[size - 1] = low[num_low - 1];
  return blob;
}

}  // namespace vericache
