#include "server/server.h"

#include <utility>

#include "base/status_macros.h"
#include "server/stop_signals.h"

namespace vericache::server {
namespace {

// Of kLastWordSeconds: for replies that are ready to be read by their clients.
constexpr double kFlushSeconds = 1;

}  // namespace

absl::Status RunServer(const ServerOptions& options, const ServerHooks& hooks) {
  InstallStopSignals();
  ApiServer api(options.api);
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> http,
                      HttpServer::Listen(options.http, &api));
  api.SetHttpCounts([&http] { return http->counts(); });
  if (hooks.on_listening) hooks.on_listening(http->port());
  VC_ASSIGN_OR_RETURN(const std::shared_ptr<CompletionService> service, hooks.load());
  ExpectStop();
  api.SetService(service);
  absl::Status status;
  if (hooks.on_ready) status = hooks.on_ready(http->port());
  if (status.ok()) {
    WaitForStop();
    if (hooks.on_stopping) hooks.on_stopping();
  }
  ExitWithin(options.grace_s + kLastWordSeconds);
  api.SetStopping();
  service->Stop(options.grace_s);
  http->Stop(kFlushSeconds);
  return status;
}

}  // namespace vericache::server
