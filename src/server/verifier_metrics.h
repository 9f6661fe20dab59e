// What a verifier's /metrics tells: Prometheus' text format.
#pragma once

#include <string>

#include "server/http_server.h"
#include "vericache/remote.h"

namespace vericache::server {

// stats: null while the model is loading.
std::string VerifierMetricsText(const VerifierStats* stats, const HttpCounts& http);

}  // namespace vericache::server
