// A server's life: listen, load the model, serve until a signal, stop in good order.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api_server.h"
#include "server/http_server.h"
#include "vericache/serving.h"

namespace vericache::server {

struct ServerOptions {
  HttpOptions http;
  ApiOptions api;
  // After SIGTERM or SIGINT: what runs has so long to end, and all ends kLastWordSeconds later.
  double grace_s = 3;
};
inline constexpr double kLastWordSeconds = 2;

struct ServerHooks {
  // Called once the port is bound; makes the service. Must not be empty.
  std::function<absl::StatusOr<std::shared_ptr<CompletionService>>()> load;
  std::function<void(int port)> on_listening;      // before `load`
  std::function<absl::Status(int port)> on_ready;  // after it; an error ends the server
  std::function<void()> on_stopping;
};

// Returns after a stop in good order, or with why there was none. A signal while the model loads
// ends the process with status 0, a second one with 128 + its number; both at once.
absl::Status RunServer(const ServerOptions& options, const ServerHooks& hooks);

}  // namespace vericache::server
