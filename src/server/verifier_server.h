// The verifier of remote drafting over HTTP (docs/remote_drafting.md).
//
//   POST /v1/remote/open, /v1/remote/verify, /v1/remote/close   messages of remote_wire.h
//   GET  /metrics                                               Prometheus' text format
//   GET  /health                                                needs no key
// Errors are one line of text.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/http_server.h"
#include "vericache/remote.h"

namespace vericache::server {

class VerifierHandler : public HttpHandler {
 public:
  explicit VerifierHandler(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  // 503 until there is one.
  void SetHost(std::shared_ptr<VerifierHost> host);
  // For /metrics; empty: there is nobody to ask (any more).
  void SetCounts(std::function<HttpCounts()> counts);

  bool IsQuick(const HttpRequest& request) const override;
  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override;
  HttpResponse ErrorResponse(int status, std::string_view message) const override;

 private:
  HttpResponse Metrics(const VerifierHost* host) const;
  absl::StatusOr<std::string> Answer(const HttpRequest& request, VerifierHost* host) const;

  const std::vector<std::string> keys_;
  mutable std::mutex mutex_;  // of all below
  std::shared_ptr<VerifierHost> host_;
  std::function<HttpCounts()> counts_;
};

struct VerifierServerOptions {
  HttpOptions http;
  std::vector<std::string> keys;  // none: any request passes
};

struct VerifierHooks {
  // Called once the port is bound. Must not be empty.
  std::function<absl::StatusOr<std::shared_ptr<VerifierHost>>()> load;
  std::function<void(int port)> on_listening;
  std::function<absl::Status(int port)> on_ready;
  std::function<absl::Status(VerifierHost* host)> on_stopped;  // may be empty
};

// Returns after a signal, or with why there was no server. Sessions end with it.
absl::Status RunVerifierServer(const VerifierServerOptions& options, const VerifierHooks& hooks);

}  // namespace vericache::server
