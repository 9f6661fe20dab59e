// SHA-256 (identities that cross trust boundaries) and XXH3-128 (fast checks), behind one file.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace vericache {

using Sha256Digest = std::array<uint8_t, 32>;

// Incremental SHA-256 (OpenSSL).
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(const void* data, size_t size);
  Sha256Digest Finish();  // once

 private:
  void* ctx_;
};

Sha256Digest Sha256Of(const void* data, size_t size);
std::array<uint8_t, 16> Xxh3_128(const void* data, size_t size);
uint64_t Xxh3_64(const void* data, size_t size);
// XXH3-128 of parts that lie apart: the same bytes as Xxh3_128 over all of them in a row.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(const Xxh3Stream&) = delete;
  Xxh3Stream& operator=(const Xxh3Stream&) = delete;
  void Update(const void* data, size_t size);
  std::array<uint8_t, 16> Finish() const;

 private:
  void* state_;
};
std::string HexOf(absl::Span<const uint8_t> bytes);
// ERRORS: kNotFound / kUnavailable if the file cannot be read.
absl::StatusOr<Sha256Digest> Sha256OfFile(const std::string& path);

}  // namespace vericache
