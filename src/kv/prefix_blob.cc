#include "kv/prefix_blob.h"

#include <cstring>

namespace vericache {
namespace {

constexpr size_t kIdsAt = 32;

size_t HeadBytes(size_t num_ids) {
  return static_cast<size_t>(RoundUp(static_cast<int64_t>(kIdsAt + num_ids * sizeof(TokenId)), 64));
}

}  // namespace

std::string PrefixBlobHead(PrefixBlobKind kind, const PrefixKey& key, absl::Span<const TokenId> ids,
                           uint64_t payload_bytes) {
  std::string head(HeadBytes(ids.size()), '\0');
  const uint32_t num_ids = static_cast<uint32_t>(ids.size());
  std::memcpy(head.data(), &kind, 4);
  std::memcpy(head.data() + 4, &num_ids, 4);
  std::memcpy(head.data() + 8, &payload_bytes, 8);
  std::memcpy(head.data() + 16, key.fingerprint.data(), 16);
  if (!ids.empty()) std::memcpy(head.data() + kIdsAt, ids.data(), ids.size() * sizeof(TokenId));
  return head;
}

absl::StatusOr<absl::Span<const uint8_t>> OpenPrefixBlob(absl::Span<const uint8_t> blob,
                                                         PrefixBlobKind kind, const PrefixKey& key,
                                                         absl::Span<const TokenId> ids) {
  const absl::Status damaged = absl::DataLossError("a prefix blob does not fit its own sizes");
  PrefixBlobKind stored_kind;
  uint32_t num_ids = 0;
  uint64_t payload_bytes = 0;
  if (blob.size() < kIdsAt) return damaged;
  std::memcpy(&stored_kind, blob.data(), 4);
  std::memcpy(&num_ids, blob.data() + 4, 4);
  std::memcpy(&payload_bytes, blob.data() + 8, 8);
  if (num_ids > kBlockTokens) return damaged;
  const size_t head_bytes = HeadBytes(num_ids);
  if (blob.size() < head_bytes || payload_bytes != blob.size() - head_bytes) return damaged;
  if (stored_kind != kind || num_ids != ids.size() ||
      std::memcmp(blob.data() + 16, key.fingerprint.data(), 16) != 0 ||
      (num_ids > 0 &&
       std::memcmp(blob.data() + kIdsAt, ids.data(), num_ids * sizeof(TokenId)) != 0))
    return absl::NotFoundError("a prefix blob of other tokens");
  return blob.subspan(head_bytes);
}

}  // namespace vericache
