// Who may ask: keys of requests, compared in constant time.
#pragma once

#include <string>
#include <vector>

#include "server/http.h"

namespace vericache::server {

// True for any request where there are no keys. Compares digests, all of them: neither how much of
// a key is right nor which one it is like can be told from how long this takes.
bool HasKey(const HttpRequest& request, const std::vector<std::string>& keys);

}  // namespace vericache::server
