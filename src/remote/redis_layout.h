// What stands at P{HEX} before the payload; see redis_store.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "base/text.h"
#include "storage/blob_header.h"

namespace vericache {

inline constexpr size_t kRedisHeadBytes = kBlobHeaderBytes + 16;
// Longer blobs are refused: a head that lies must not become an allocation.
inline constexpr uint64_t kMaxRedisBlobBytes = uint64_t{1} << 30;
inline constexpr uint32_t kMinPieceBytes = 4096, kMaxPieceBytes = 64 << 20;

struct RedisHead {
  BlobHeader header{};
  uint32_t piece_bytes = 0;
  uint32_t num_pieces = 0;  // 0: the payload follows
  uint64_t generation = 0;

  void Write(uint8_t* to) const {
    std::memcpy(to, header.data(), header.size());
    std::memcpy(to + kBlobHeaderBytes, &piece_bytes, 4);
    std::memcpy(to + kBlobHeaderBytes + 4, &num_pieces, 4);
    std::memcpy(to + kBlobHeaderBytes + 8, &generation, 8);
  }
  void ReadFrom(const uint8_t* from) {
    std::memcpy(header.data(), from, header.size());
    std::memcpy(&piece_bytes, from + kBlobHeaderBytes, 4);
    std::memcpy(&num_pieces, from + kBlobHeaderBytes + 4, 4);
    std::memcpy(&generation, from + kBlobHeaderBytes + 8, 8);
  }
  uint64_t payload_bytes() const { return PayloadBytesOf(header); }
  // `value_bytes`: of the whole value at P{HEX}.
  bool Fits(const BlobKey& key, uint64_t value_bytes) const {
    const uint64_t payload = payload_bytes();
    if (payload > kMaxRedisBlobBytes ||
        !CheckBlobHeader(header, key, kBlobHeaderBytes + payload).ok())
      return false;
    if (num_pieces == 0) return value_bytes == kRedisHeadBytes + payload;
    return value_bytes == kRedisHeadBytes && piece_bytes >= kMinPieceBytes &&
           piece_bytes <= kMaxPieceBytes && num_pieces == (payload + piece_bytes - 1) / piece_bytes;
  }
  uint64_t BytesOfPiece(uint32_t index) const {
    const uint64_t begin = uint64_t{index} * piece_bytes;
    return payload_bytes() - begin < piece_bytes ? payload_bytes() - begin : piece_bytes;
  }
};

inline std::string RedisPieceKey(const std::string& main, uint64_t generation, uint32_t index) {
  return StrCat(main, ":", absl::Hex(generation), ":", index);
}

}  // namespace vericache
