#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <strings.h>

#include <string_view>

#include "base/hash.h"

namespace vericache::server {

bool HasKey(const HttpRequest& request, const std::vector<std::string>& keys) {
  if (keys.empty()) return true;
  std::string_view given = request.api_key;
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view header = request.authorization;
  if (header.size() > kBearer.size() &&
      strncasecmp(header.data(), kBearer.data(), kBearer.size()) == 0)
    given = header.substr(kBearer.size());
  const Sha256Digest digest = Sha256Of(given.data(), given.size());
  int good = 0;
  for (const std::string& key : keys) {
    const Sha256Digest expected = Sha256Of(key.data(), key.size());
    good |= CRYPTO_memcmp(digest.data(), expected.data(), digest.size()) == 0;
  }
  return good != 0;
}

}  // namespace vericache::server
