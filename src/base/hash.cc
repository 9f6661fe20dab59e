#include "base/hash.h"

#define OPENSSL_API_COMPAT 0x10100000L  // no warnings about SHA256_Init and its kin
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <xxhash.h>

#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace vericache {

Sha256::Sha256() : ctx_(EVP_MD_CTX_new()) {
  VC_CHECK(ctx_ != nullptr);
  VC_CHECK(EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(ctx_), EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(ctx_)); }
void Sha256::Update(const void* data, size_t size) {
  VC_CHECK(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(ctx_), data, size) == 1);
}
Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  unsigned length = 0;
  VC_CHECK(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(ctx_), digest.data(), &length) == 1);
  VC_CHECK(length == digest.size());
  return digest;
}

// By the functions of OpenSSL 1.1: those of version 3 allocate for every digest, and each emitted
// token takes one (engine/logits_chain.h).
Sha256Digest Sha256Of(const void* data, size_t size) {
  SHA256_CTX ctx;
  Sha256Digest digest;
  VC_CHECK(SHA256_Init(&ctx) == 1);
  VC_CHECK(SHA256_Update(&ctx, data, size) == 1);
  VC_CHECK(SHA256_Final(digest.data(), &ctx) == 1);
  return digest;
}

namespace {

std::array<uint8_t, 16> Canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  std::array<uint8_t, 16> bytes;
  for (int i = 0; i < 16; ++i) bytes[i] = canonical.digest[i];
  return bytes;
}

}  // namespace

std::array<uint8_t, 16> Xxh3_128(const void* data, size_t size) {
  return Canonical(XXH3_128bits(data, size));
}

Xxh3Stream::Xxh3Stream() : state_(XXH3_createState()) {
  VC_CHECK(state_ != nullptr);
  VC_CHECK(XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_)) == XXH_OK);
}
Xxh3Stream::~Xxh3Stream() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
void Xxh3Stream::Update(const void* data, size_t size) {
  VC_CHECK(XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), data, size) == XXH_OK);
}
std::array<uint8_t, 16> Xxh3Stream::Finish() const {
  return Canonical(XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_)));
}

uint64_t Xxh3_64(const void* data, size_t size) { return XXH3_64bits(data, size); }

std::string HexOf(absl::Span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (uint8_t byte : bytes) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

absl::StatusOr<Sha256Digest> Sha256OfFile(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  Sha256 sha;
  std::vector<char> buffer(1 << 20);
  size_t n;
  while ((n = std::fread(buffer.data(), 1, buffer.size(), file)) > 0) sha.Update(buffer.data(), n);
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return absl::UnavailableError(absl::StrCat("read error in ", path));
  return sha.Finish();
}

}  // namespace vericache
