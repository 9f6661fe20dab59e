// Any bytes as a stored blob: missing, or exactly the payload that its header speaks of.
//
// The first byte chooses: a blob's header before a payload, or what a prefix keeps within one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kv/prefix_blob.h"
#include "storage/blob_header.h"

namespace {

using namespace vericache;

void OpenAsStored(absl::Span<const uint8_t> bytes) {
  BlobHeader header{};
  if (bytes.size() < header.size()) return;
  std::copy_n(bytes.data(), header.size(), header.data());
  BlobKey key{};
  std::copy_n(bytes.data() + 16, key.size(), key.data());
  const absl::Span<const uint8_t> payload = bytes.subspan(header.size());
  if (!CheckBlobHeader(header, key, bytes.size()).ok()) return;
  if (!CheckBlobPayload(header, payload).ok()) return;
  // What passes is what we would have written.
  const std::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
  VC_CHECK(MakeBlobHeader(key, {text}) == header);
}

void OpenAsPrefix(absl::Span<const uint8_t> bytes) {
  PrefixKey key;
  std::vector<TokenId> ids;
  uint32_t num_ids = 0;
  if (bytes.size() >= 32) {
    std::copy_n(bytes.data() + 16, key.fingerprint.size(), key.fingerprint.data());
    std::memcpy(&num_ids, bytes.data() + 4, sizeof(num_ids));
    const size_t held = std::min<size_t>(num_ids, (bytes.size() - 32) / sizeof(TokenId));
    ids.resize(held);
    if (held > 0) std::memcpy(ids.data(), bytes.data() + 32, held * sizeof(TokenId));
  }
  for (PrefixBlobKind kind :
       {PrefixBlobKind::kBlock, PrefixBlobKind::kDraft, PrefixBlobKind::kScores}) {
    const auto payload = OpenPrefixBlob(bytes, kind, key, ids);
    if (!payload.ok()) continue;
    VC_CHECK(payload->data() >= bytes.data() + 32 + ids.size() * sizeof(TokenId));
    VC_CHECK(payload->data() + payload->size() == bytes.data() + bytes.size());
    VC_CHECK(ids.size() == num_ids);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::Span<const uint8_t> bytes(data + 1, size - 1);
  if (data[0] % 2 == 0) {
    OpenAsStored(bytes);
  } else {
    OpenAsPrefix(bytes);
  }
  return 0;
}
