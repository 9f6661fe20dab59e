#include "server/verifier_server.h"

#include <exception>
#include <new>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"
#include "server/api_keys.h"
#include "server/stop_signals.h"
#include "server/verifier_metrics.h"
#include "vericache/remote_wire.h"

namespace vericache::server {
namespace {

constexpr double kFlushSeconds = 1, kExitSeconds = 5;
constexpr std::string_view kOpen = "/v1/remote/open", kVerify = "/v1/remote/verify",
                           kClose = "/v1/remote/close", kHealth = "/health", kMetrics = "/metrics";

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      return 400;
    case absl::StatusCode::kInvalidArgument:
      return 422;
    case absl::StatusCode::kOutOfRange:
      return 413;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kFailedPrecondition:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

}  // namespace

void VerifierHandler::SetHost(std::shared_ptr<VerifierHost> host) {
  const std::lock_guard<std::mutex> lock(mutex_);
  host_ = std::move(host);
}

bool VerifierHandler::IsQuick(const HttpRequest& request) const {
  return request.path == kHealth || request.path == kMetrics || !HasKey(request, keys_);
}

HttpResponse VerifierHandler::ErrorResponse(int status, std::string_view message) const {
  HttpResponse response;
  response.status = status;
  response.content_type = "text/plain";
  response.body = StrCat(message, "\n");
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

void VerifierHandler::SetCounts(std::function<HttpCounts()> counts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  counts_ = std::move(counts);
}

HttpResponse VerifierHandler::Metrics(const VerifierHost* host) const {
  std::function<HttpCounts()> counts;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    counts = counts_;
  }
  VerifierStats stats;
  if (host != nullptr) stats = host->stats();
  return {
      200,
      "text/plain; version=0.0.4; charset=utf-8",
      {},
      VerifierMetricsText(host != nullptr ? &stats : nullptr, counts ? counts() : HttpCounts())};
}

absl::StatusOr<std::string> VerifierHandler::Answer(const HttpRequest& request,
                                                    VerifierHost* host) const {
  if (request.path == kOpen) {
    VC_ASSIGN_OR_RETURN(const RemoteOpen open, DecodeRemoteOpen(request.body));
    VC_ASSIGN_OR_RETURN(const std::string session, host->Open(open));
    return EncodeSession(session);
  }
  if (request.path == kVerify) {
    VC_ASSIGN_OR_RETURN(const RemoteVerify verify, DecodeRemoteVerify(request.body));
    VC_ASSIGN_OR_RETURN(const RemoteVerified verified, host->Verify(verify));
    return EncodeRemote(verified);
  }
  VC_ASSIGN_OR_RETURN(const std::string session, DecodeSession(request.body));
  host->Close(session);
  return EncodeSession(session);
}

void VerifierHandler::Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  const bool known = request.path == kOpen || request.path == kVerify || request.path == kClose;
  std::shared_ptr<VerifierHost> host;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    host = host_;
  }
  if (request.path == kHealth)
    return reply->Send(host == nullptr ? ErrorResponse(503, "the model is loading")
                                       : HttpResponse{200, "text/plain", {}, "ok\n"});
  if (!HasKey(request, keys_))
    return reply->Send(ErrorResponse(401, "the API key is missing or wrong"));
  if (request.path == kMetrics && request.method == "GET") return reply->Send(Metrics(host.get()));
  if (!known) return reply->Send(ErrorResponse(404, "there is nothing at this path"));
  if (request.method != "POST") return reply->Send(ErrorResponse(405, "only POST is for it"));
  if (host == nullptr) return reply->Send(ErrorResponse(503, "the model is loading"));
  absl::StatusOr<std::string> body = absl::InternalError("");
  try {
    body = Answer(request, host.get());
  } catch (const std::bad_alloc&) {
    body = absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    body = absl::InternalError(error.what());
  }
  if (!body.ok())
    return reply->Send(
        ErrorResponse(HttpStatusOf(body.status()), std::string(body.status().message())));
  reply->Send({200, "application/octet-stream", {}, *std::move(body)});
}

absl::Status RunVerifierServer(const VerifierServerOptions& options, const VerifierHooks& hooks) {
  InstallStopSignals();
  VerifierHandler handler(options.keys);
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> http,
                      HttpServer::Listen(options.http, &handler));
  handler.SetCounts([&http] { return http->counts(); });
  if (hooks.on_listening) hooks.on_listening(http->port());
  VC_ASSIGN_OR_RETURN(const std::shared_ptr<VerifierHost> host, hooks.load());
  ExpectStop();
  handler.SetHost(host);
  absl::Status status;
  if (hooks.on_ready) status = hooks.on_ready(http->port());
  if (status.ok()) WaitForStop();
  ExitWithin(kExitSeconds);
  host->Stop();
  http->Stop(kFlushSeconds);
  if (hooks.on_stopped) status.Update(hooks.on_stopped(host.get()));
  return status;
}

}  // namespace vericache::server
