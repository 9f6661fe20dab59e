#include "storage/blob_header.h"

#include <cstring>
#include <new>

#include "base/hash.h"

namespace vericache {
namespace {

constexpr char kMagic[] = "VCBLOB01";
constexpr uint32_t kVersion = 1;
constexpr size_t kVersionAt = 8, kKeyAt = 16, kBytesAt = 48, kSumAt = 56, kSumEnd = 72;

}  // namespace

BlobHeader MakeBlobHeader(const BlobKey& key, absl::Span<const std::string_view> parts) {
  BlobHeader header{};
  uint64_t payload_bytes = 0;
  for (std::string_view part : parts) payload_bytes += part.size();
  std::memcpy(header.data(), kMagic, sizeof(kMagic) - 1);
  std::memcpy(header.data() + kVersionAt, &kVersion, sizeof(kVersion));
  std::memcpy(header.data() + kKeyAt, key.data(), key.size());
  std::memcpy(header.data() + kBytesAt, &payload_bytes, sizeof(payload_bytes));
  Xxh3Stream sum;
  sum.Update(header.data(), kSumAt);
  for (std::string_view part : parts) sum.Update(part.data(), part.size());
  const std::array<uint8_t, 16> digest = sum.Finish();
  std::memcpy(header.data() + kSumAt, digest.data(), digest.size());
  return header;
}

uint64_t PayloadBytesOf(const BlobHeader& header) {
  uint64_t payload_bytes = 0;
  std::memcpy(&payload_bytes, header.data() + kBytesAt, sizeof(payload_bytes));
  return payload_bytes;
}

absl::Status CheckBlobHeader(const BlobHeader& header, const BlobKey& key, uint64_t file_bytes) {
  uint32_t version = 0;
  uint64_t payload_bytes = 0;
  std::memcpy(&version, header.data() + kVersionAt, sizeof(version));
  std::memcpy(&payload_bytes, header.data() + kBytesAt, sizeof(payload_bytes));
  if (std::memcmp(header.data(), kMagic, sizeof(kMagic) - 1) != 0)
    return absl::DataLossError("not a blob");
  if (version != kVersion) return absl::DataLossError("a blob of another version");
  if (std::memcmp(header.data() + kKeyAt, key.data(), key.size()) != 0)
    return absl::DataLossError("a blob of another key");
  if (file_bytes < kBlobHeaderBytes || payload_bytes != file_bytes - kBlobHeaderBytes ||
      payload_bytes > kMaxBlobBytes)
    return absl::DataLossError("a blob of another length");
  for (size_t i = kSumEnd; i < kBlobHeaderBytes; ++i)
    if (header[i] != 0) return absl::DataLossError("a blob with a damaged header");
  return absl::OkStatus();
}

bool MakeRoomFor(uint64_t payload_bytes, BlobBytes* payload) {
  try {
    payload->Resize(static_cast<size_t>(payload_bytes));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

absl::Status CheckBlobPayload(const BlobHeader& header, absl::Span<const uint8_t> payload) {
  Xxh3Stream sum;
  sum.Update(header.data(), kSumAt);
  sum.Update(payload.data(), payload.size());
  const std::array<uint8_t, 16> digest = sum.Finish();
  if (std::memcmp(header.data() + kSumAt, digest.data(), digest.size()) != 0)
    return absl::DataLossError("a blob whose checksum does not hold");
  return absl::OkStatus();
}

}  // namespace vericache
